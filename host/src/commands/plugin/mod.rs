//! `kubewitness plugin`: what somebody who writes a plugin needs. It makes, builds, tries, tests,
//! measures, packs and installs one, and needs no controller. `shadow` asks one, and `install` and `cutover` write into a
//! cluster.

mod bench;
mod build;
mod compare;
mod cutover;
mod new;
mod pack;
mod replay;
mod run;
mod shadow;
mod subject;
mod test;
mod trial;

use super::{Ended, journal};
use crate::cli::Plugin;

pub async fn plugin(command: Plugin) -> Ended {
    match command {
        Plugin::New(args) => new::new(&args),
        Plugin::Build(args) => build::build(args).await,
        Plugin::Run(args) => run::run(args).await,
        Plugin::Replay(args) => replay::replay(*args).await,
        Plugin::Bench(args) => bench::bench(args).await,
        Plugin::Test(args) => test::test(args).await,
        Plugin::Shadow(args) => shadow::shadow(args).await,
        Plugin::Cutover(args) => cutover::cutover(args).await,
        Plugin::Forget(args) => journal::forget(*args).await,
        Plugin::Pack(args) => pack::pack(args).await,
        Plugin::Install(args) => pack::install(args).await,
    }
}

//! `kubewitness plugin`: the commands for plugin authors. They make, build, try, test, measure, pack and
//! install a plugin, and need no controller. `shadow` calls one, and `install` and `cutover` write into a
//! cluster.

mod bench;
mod build;
mod compare;
mod new;
mod release;
mod replay;
mod run;
mod subject;
mod test;
mod trial;

use super::{CommandResult, journal};
use crate::cli::Plugin;

pub async fn plugin(command: Plugin) -> CommandResult {
    match command {
        Plugin::New(args) => new::new(&args),
        Plugin::Build(args) => build::build(args).await,
        Plugin::Run(args) => run::run(args).await,
        Plugin::Replay(args) => replay::replay(*args).await,
        Plugin::Bench(args) => bench::bench(args).await,
        Plugin::Test(args) => test::test(args).await,
        Plugin::Shadow(args) => release::shadow(args).await,
        Plugin::Cutover(args) => release::cutover(args).await,
        Plugin::Forget(args) => journal::forget(*args).await,
        Plugin::Pack(args) => release::pack(args).await,
        Plugin::Install(args) => release::install(args).await,
    }
}

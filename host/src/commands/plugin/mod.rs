//! `kubewitness plugin`: the commands for plugin authors.
//!
//! An author should know whether a plugin works before any cluster does. So the commands make, build, try,
//! test, measure and pack a plugin without a controller, with the sandbox that the controller uses. Only
//! `shadow` calls a controller, and only `install` and `cutover` write into a cluster.

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
        Plugin::Bench(args) => bench::run_bench(args).await,
        Plugin::Test(args) => test::test(args).await,
        Plugin::Shadow(args) => release::shadow(args).await,
        Plugin::Cutover(args) => release::cutover(args).await,
        Plugin::Forget(args) => journal::forget_plugin(*args).await,
        Plugin::Pack(args) => release::pack(args).await,
        Plugin::Install(args) => release::install(args).await,
    }
}

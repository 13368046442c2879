//! `kubewitness plugin`: what somebody who writes a plugin needs. It makes, builds, tries, tests and packs one, and needs
//! neither a controller nor a cluster.

mod build;
mod new;
mod pack;
mod run;
mod subject;
mod test;
mod trial;

use super::Ended;
use crate::cli::Plugin;

pub async fn plugin(command: Plugin) -> Ended {
    match command {
        Plugin::New(args) => new::new(&args),
        Plugin::Build(args) => build::build(args).await,
        Plugin::Run(args) => run::run(args).await,
        Plugin::Test(args) => test::test(args).await,
        Plugin::Pack(args) => pack::pack(args).await,
    }
}

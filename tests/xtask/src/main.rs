//! The task runner: `cargo xtask COMMAND` does all the set-up that a command needs.
//!
//! Tests need plugins compiled to WebAssembly, the program with its simulated cluster, and databases, which a
//! plain
//! `cargo test` can't build or start. So the commands for them are one Rust program, which needs only Cargo,
//! and CI uses the same commands as developers.

mod build;
mod ci;
mod docs;
mod fuzz;
mod images;
mod measure;
mod proof;
mod run;
mod services;
mod structure;
mod suite;

use std::process::ExitCode;

use anyhow::{Result, bail};

use build::{HostBuild, LintMode};
use measure::figures;
use proof::real;

const HELP: &str = "\
cargo xtask COMMAND

  playground [FLAGS]   build everything and run the playground (flags of `kubewitness playground`)
  playground --real [MINOR] [--data FOLDER] [--listen ADDRESS] [--for SECONDS]
                       the same on a real cluster: API server, controllers and scheduler are Kubernetes' own; needs Go
  test [--timings] [--complete]
                       build everything and run all tests. Of two tests that differ by MySQL and MariaDB alone, or by
                       Python and JavaScript, the seed takes one, and of the cases of some long tests one half; with
                       --complete all run. With --timings: what took how long, from compiling to the twenty longest
                       tests and what they wait for
  test CRATE|NAME...   the tests of a crate (`core`, `host/core` or its whole name), or all that have NAME in their names
  build [--release]    the plugins and the host, ready to run
  build --image        the same for production: optimised, without the simulated cluster
  real [MINOR...] [--all] [--faults NUMBER] [--fault NAME,NAME] [--seeds NUMBER] [--postgres]
                       builds real API servers (1.36; or the minors that you name, or all) and proves against them that
                       each version arrives once and in order, or lies in a gap, while faults happen: each possible
                       fault once, a number of faults, or those that you name; needs Go. With --postgres the journal is
                       in PostgreSQL, whose server fails over
  real --peers [MINOR] [--seeds NUMBER]
                       runs client-go, controller-runtime and kube-rs beside the controller, and writes what each of them
                       misses under the same faults into docs/reference/peers.md; needs Go
  real --access [MINOR...]
                       applies deploy/kustomize to a real API server and runs the controller as its account: its roles
                       are exactly enough, and people see on each route what the API server lets them see; needs Go
  real --record [CASE...]
                       records labelled histories of Jobs, JobSets, TrainJobs, RayJobs and jobs in queues of Kueue
                       against real controllers into tests/causes/histories: all cases in minutes, or those whose names
                       contain a word; needs Go
  prove [NAME...|--all]
                       runs what proves these claims of the README; without names it lists the claims
  plugins              only the plugins, into target/plugins
  bench [NAME]         the benchmarks; figures go to standard output
  figures [NAME...]    measures all figures that the pages show, or those of these benchmarks; keeps them, writes the
                       pages, and prints what moved. It takes hours, and a quiet machine
  figures --check      whether each page shows what was measured
  figures --stale      which figures are older than the code that they measure
  figures --write      writes what is kept into the pages
  figures --gate       measures what CI measures, and fails if it moved further than CI allows
  release              the program of the image, if this commit can be released: no figure is stale
  fuzz [TARGET] [--for 60s]
                       runs the fuzz targets, which search for input that breaks a parser
  structure            how large folders and files are, which folders use each other in circles, and which names and
                       doc comments say too little
  docs [--check]       writes docs/reference from the code; with --check only compares it
  images [--pages FOLDER]
                       takes the pictures of docs/images from a playground; needs chromium. With --pages: a picture
                       of each page of the portal into the folder, light and dark, wide and narrow
  ci                   what CI runs: format, structure, lints, dependencies, all tests, and the gate of figures. Nothing
                       is skipped: what can't be installed is named. A short `real` is the last of it
  help                 prints this text
";

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let command = if args.is_empty() { "help".to_string() } else { args.remove(0) };
    match dispatch(&command, &args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: &str, args: &[String]) -> Result<ExitCode> {
    match command {
        "playground" => match args.split_first() {
            Some((first, rest)) if first == "--real" => real::playground(rest),
            _ => run::playground(args),
        },
        "test" => run::test(&run::selection(args)?, LintMode::Ignored),
        "build" => match args {
            [] => built(HostBuild::Tests),
            [flag] if flag == "--release" => built(HostBuild::Release),
            [flag] if flag == "--image" => built(HostBuild::Image),
            _ => bail!("`build` takes --release, --image or nothing"),
        },
        "plugins" => build::plugins::shipped(&build::plugins::SHIPPED).map(|()| ExitCode::SUCCESS),
        "bench" => measure::bench(args, None).map(|()| ExitCode::SUCCESS),
        "prove" => proof::command(args),
        "real" => real::command(args),
        "figures" => figures::command(args),
        "release" => figures::release(),
        "fuzz" => fuzz::command(args).map(|()| ExitCode::SUCCESS),
        "structure" => structure::command(),
        "docs" => docs::reference(args).map(|()| ExitCode::SUCCESS),
        "images" => images::command(args).map(|()| ExitCode::SUCCESS),
        "ci" => ci::all(),
        "help" | "-h" | "--help" => {
            build::print_text(HELP)?;
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("there is no command `{command}`\n\n{HELP}"),
    }
}

fn built(host: HostBuild) -> Result<ExitCode> {
    build::everything(host).map(|()| ExitCode::SUCCESS)
}

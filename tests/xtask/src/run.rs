//! The commands that run what was built.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::build::{self, Host, Lints, cargo, check, root, step};
use crate::plugins::PluginProfile;
use crate::suite::{BuildTimes, Selection};
use crate::{packages, peer, services, suite};

/// Measured on two idle cores. Most of it is dependencies, which are built once.
const FIRST_BUILD: &str = "the first build compiles everything, dependencies included: about five minutes on two \
    cores, and some 2 GB in target/. Later starts take less than two seconds";

pub fn playground(args: &[String]) -> Result<ExitCode> {
    let binary = build::playground_program();
    if !binary.is_file() {
        step(FIRST_BUILD);
    }
    build::everything(Host::Playground)?;
    replace(Command::new(&binary).arg("playground").args(args))
}

/// Replaces this process by the command, so that the command owns the signals and the terminal.
fn replace(command: &mut Command) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(error).with_context(|| format!("starting {:?}", command.get_program()))
}

/// Reads the arguments of `cargo xtask test`.
pub fn selection(args: &[String]) -> Result<Selection> {
    let members = packages::members()?;
    let mut selection = Selection::default();
    for arg in args {
        match packages::find(&members, arg) {
            _ if arg == "--timings" => selection.timings = true,
            _ if arg == "--" => {}
            _ if arg.starts_with('-') => {
                bail!("`test` knows no `{arg}`: it takes crates, names of tests and --timings")
            }
            Some(package) => selection.packages.push(package),
            None => selection.filters.push(arg.clone()),
        }
    }
    Ok(selection)
}

pub fn test(selection: &Selection, lints: Lints) -> Result<ExitCode> {
    test_with(selection, lints, |_| ()).map(|()| ExitCode::SUCCESS)
}

/// The same with more variables for the tests.
pub fn test_with(selection: &Selection, lints: Lints, variables: impl Fn(&mut Command)) -> Result<()> {
    let mut times = BuildTimes::new(selection.timings);
    // Installing waits for the network and for disks, and compiling does not.
    let (artifacts, missing) = std::thread::scope(|scope| {
        let services = scope.spawn(services::ensure);
        (build::tests(&selection.packages, lints, &mut times), services.join())
    });
    let missing = missing.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if !missing.is_empty() && std::env::var_os("CI").is_some() {
        bail!("in CI nothing may be skipped, and these could not be installed: {}", missing.join(", "));
    }
    let artifacts = artifacts?;
    let list = build::target().join("skipped-tests");
    match std::fs::remove_file(&list) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", list.display()));
        }
        _ => {}
    }
    let prepare = |command: &mut Command| {
        command.env("KUBEWITNESS_PLUGINS", PluginProfile::Quick.folder());
        command.env("KUBEWITNESS_SERVICES", build::services_folder());
        command.env("KUBEWITNESS_BIN_DIR", build::target().join("debug"));
        command.env("KUBEWITNESS_SKIPPED", &list);
        lints.apply(command);
        variables(command);
    };
    let mut result = suite::run(selection, &artifacts, &times, &prepare);
    if selection.packages.is_empty() && selection.filters.is_empty() {
        result = result.and(doc_examples(&prepare));
    }
    let skipped = std::fs::read_to_string(&list).unwrap_or_default();
    if !skipped.is_empty() {
        eprintln!("xtask: {} tests skipped:", skipped.lines().count());
        skipped.lines().for_each(|line| eprintln!("  SKIPPED {line}"));
    }
    result
}

/// The code blocks of the SDK's documentation and of the tutorial: the other libraries have none.
fn doc_examples(prepare: &dyn Fn(&mut Command)) -> Result<()> {
    step("examples in the documentation");
    let mut examples = cargo();
    examples.args(["test", "--locked", "--workspace", "--no-fail-fast", "--doc"]);
    prepare(&mut examples);
    check(&mut examples)
}

pub fn bench(args: &[String]) -> Result<ExitCode> {
    // What comes behind the name is for the programs. A flag in its place would start all of them, for an hour.
    if let Some(flag) = args.first().filter(|first| first.starts_with('-')) {
        bail!(
            "`bench` takes no `{flag}`, but the name of a benchmark or nothing: {}",
            programs()?.join(", ")
        );
    }
    // Linking takes minutes a program: `plugins-swap` and `plugins` link that of `plugins` alone.
    let programs = programs()?;
    let asked = args.first().and_then(|name| name.split('-').next());
    let chosen = match programs.iter().find(|program| asked == Some(program)) {
        Some(program) => vec!["--bench", program],
        None => vec!["--benches"],
    };
    let peer = peer::client_go();
    build::benches(&chosen)?;
    step("running the benchmarks");
    let mut command = cargo();
    command.args(["bench", "--locked"]).args(build::BENCHED).args(&chosen);
    command.arg("--").args(args);
    command.env("KUBEWITNESS_PLUGINS", PluginProfile::Shipped.folder());
    if let Some(peer) = peer {
        command.env("KUBEWITNESS_CLIENT_GO", peer);
    }
    check(command.env("KUBEWITNESS_BIN_DIR", build::target().join("release")))?;
    Ok(ExitCode::SUCCESS)
}

/// The benchmarks that `cargo bench` knows, each a file or a folder.
fn programs() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for folder in ["parts", "whole"].map(|name| root().join("tests/bench/benches").join(name)) {
        for entry in folder.read_dir().with_context(|| format!("reading {}", folder.display()))? {
            names.extend(entry?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

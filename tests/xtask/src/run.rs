//! The commands that run what was built.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::build::{self, Host, cargo, check, root, step};
use crate::{fuzz, peer, services, structure};

/// Measured on two idle cores. Most of it is dependencies, which are built once.
const FIRST_BUILD: &str = "the first build compiles everything, dependencies included: a little more than five \
    minutes on two cores, and some 2 GB in target/. Later starts take seconds";

pub fn playground(args: &[String]) -> Result<ExitCode> {
    let binary = build::target().join("playground").join("kubewitness");
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

pub fn test(args: &[String]) -> Result<ExitCode> {
    let missing = services::ensure();
    if !missing.is_empty() && std::env::var_os("CI").is_some() {
        bail!("in CI nothing may be skipped, and these could not be installed: {}", missing.join(", "));
    }
    build::tests()?;
    step("running the tests");
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace", "--no-fail-fast"]).args(args);
    // The host's own binary must stay the one that contains the plugins.
    command.env("KUBEWITNESS_EMBED", build::plugins_folder());
    command.env("KUBEWITNESS_PLUGINS", build::plugins_folder());
    command.env("KUBEWITNESS_SERVICES", build::services_folder());
    command.env("KUBEWITNESS_BIN_DIR", build::target().join("debug"));
    let list = build::target().join("skipped-tests");
    match std::fs::remove_file(&list) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", list.display()));
        }
        _ => {}
    }
    let result = check(command.env("KUBEWITNESS_SKIPPED", &list));
    let skipped = std::fs::read_to_string(&list).unwrap_or_default();
    if !skipped.is_empty() {
        eprintln!("xtask: {} tests skipped:", skipped.lines().count());
        skipped.lines().for_each(|line| eprintln!("  SKIPPED {line}"));
    }
    result.map(|()| ExitCode::SUCCESS)
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
    command.env("KUBEWITNESS_PLUGINS", build::plugins_folder());
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

pub fn ci() -> Result<ExitCode> {
    step("format");
    check(cargo().args(["fmt", "--all", "--check"]))?;
    check(cargo().args(["fmt", "--check", "--manifest-path", "tests/fuzz/libfuzzer/Cargo.toml"]))?;
    step("structure");
    if structure::command()? != ExitCode::SUCCESS {
        bail!("folders are too large, or use each other in circles: what is printed above says which");
    }
    step("dependencies");
    dependencies()?;
    // The host contains the plugins, also for `cargo check`.
    build::plugins()?;
    step("lints");
    let mut clippy = cargo();
    clippy.args(["clippy", "--locked", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
    check(clippy.env("KUBEWITNESS_EMBED", build::plugins_folder()))?;
    // Of the whole workspace: the host alone has its dependencies with other features, and they take minutes more.
    let mut production = cargo();
    production.args(["clippy", "--locked", "--workspace", "--no-default-features", "--"]);
    check(production.args(["--deny", "warnings"]).env("KUBEWITNESS_EMBED", build::plugins_folder()))?;
    step("the documentation of the SDK");
    let mut documented = cargo();
    // The plugins were built in this profile, so the macros that the SDK needs are compiled already.
    documented.args(["doc", "--locked", "--no-deps", "--package", "kubewitness-sdk", "--profile", "plugin"]);
    check(documented.env("RUSTDOCFLAGS", "--deny warnings"))?;
    fuzz::all(fuzz::IN_CI)?;
    // They include the tests that compare docs/reference with the code.
    test(&[])
}

/// Checks licences, sources, bans and duplicates. Advisories need a database that a closed network does not
/// have; `cargo deny check advisories` reads it.
fn dependencies() -> Result<()> {
    let tools = build::target().join("tools");
    let program = tools.join("bin").join("cargo-deny");
    if !program.is_file() {
        step("installing cargo-deny");
        // It runs for a second: compiling it with optimisations would take minutes.
        let install = ["install", "--debug", "--locked", "--quiet", "cargo-deny@0.20.2", "--root"];
        check(cargo().args(install).arg(&tools))?;
    }
    for manifest in ["Cargo.toml", "tests/fuzz/libfuzzer/Cargo.toml"] {
        let mut command = Command::new(&program);
        command.current_dir(root()).args(["--all-features", "--manifest-path", manifest]);
        command.args(["--config", "deny.toml"]);
        let status =
            command.args(["check", "bans", "licenses", "sources"]).status().context("starting cargo-deny")?;
        if !status.success() {
            bail!("cargo-deny found what deny.toml does not allow; what it printed above says where");
        }
    }
    Ok(())
}

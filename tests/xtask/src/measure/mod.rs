//! Builds and runs benchmarks. The benchmarks themselves define what is measured.

pub mod figures;
pub mod peer;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build::plugins::PluginProfile;
use crate::build::{self, BuildTimes, LintMode, cargo, check, root, step};
use crate::services;

/// The programs that compare Kubewitness with client-go, and the one that also compares databases.
const WITH_CLIENT_GO: [&str; 2] = ["pipeline", "queue"];
const WITH_DATABASES: &str = "pipeline-servers";
const UNDER_VALGRIND: &str = "instructions";

/// The benchmarks that CI measures. An optimised build would take CI a quarter of an hour, so they
/// measure what the tests are compiled to.
const MEASURED_BY_GATE: [&str; 2] = ["pipeline-gate", UNDER_VALGRIND];

/// Runs benchmarks, which append their measurements to `records`.
pub fn bench(args: &[String], records: Option<&Path>) -> Result<()> {
    // The arguments after the name are for the programs. A flag in place of the name would start all of them,
    // for an hour.
    if let Some(flag) = args.first().filter(|first| first.starts_with('-')) {
        bail!(
            "`bench` takes no `{flag}`, but the name of a benchmark or nothing: {}",
            programs()?.join(", ")
        );
    }
    // Linking takes minutes for each program. `plugins-swap` and `plugins` only need the program `plugins`.
    let programs = programs()?;
    let asked = args.first().map(String::as_str);
    let program =
        asked.and_then(|name| programs.iter().find(|program| name.split('-').next() == Some(program)));
    let chosen = match program {
        Some(program) => vec!["--bench", program],
        None => vec!["--benches"],
    };
    let has_peer = program.is_none_or(|program| WITH_CLIENT_GO.contains(&program.as_str()));
    let peer = match has_peer {
        true => peer::client_go(asked.is_none_or(|name| WITH_DATABASES.contains(name)))?,
        false => None,
    };
    if program.is_none_or(|program| program == UNDER_VALGRIND)
        && !services::ensure_valgrind()
        && std::env::var_os("CI").is_some()
    {
        bail!(
            "in CI nothing may be skipped: instructions are counted under valgrind, which can't be installed"
        );
    }
    let mut command = match asked.is_some_and(|name| MEASURED_BY_GATE.contains(&name)) {
        true => as_gate()?,
        false => optimised(&chosen)?,
    };
    step("running the benchmarks");
    command.args(&chosen).arg("--").args(args);
    command.env("KUBEWITNESS_SERVICES", build::services_folder());
    if let Some(peer) = peer {
        command.env("KUBEWITNESS_CLIENT_GO", peer);
    }
    if let Some(records) = records {
        command.env(build::RECORDS, records);
    }
    check(&mut command)
}

/// Builds the programs that benchmarks start, and returns the command that builds and runs benchmarks.
fn optimised(chosen: &[&str]) -> Result<Command> {
    build::benches(chosen)?;
    let mut command = cargo();
    command.args(["bench", "--locked", "--profile", build::OPTIMISED_PROFILE]).args(build::BENCHED);
    command.env("KUBEWITNESS_PLUGINS", PluginProfile::Shipped.folder());
    command.env("KUBEWITNESS_BIN_DIR", build::target().join(build::OPTIMISED_PROFILE));
    Ok(command)
}

/// The same for the gate, with the build of the tests. What makes a state dearer shows in both.
///
/// CI has compiled the tests with clippy's compiler. It optimises differently from the plain one, so their
/// figures can't be compared: the gate always uses clippy's.
fn as_gate() -> Result<Command> {
    build::tests(&[], LintMode::Denied, &mut BuildTimes::default())?;
    let mut command = cargo();
    command.args(["bench", "--locked", "--workspace", "--profile", "dev"]);
    // Incremental builds produce other instructions.
    command.env("CARGO_INCREMENTAL", "0");
    command.env("KUBEWITNESS_PLUGINS", PluginProfile::Quick.folder());
    command.env("KUBEWITNESS_BIN_DIR", build::target().join("debug"));
    LintMode::Denied.apply(&mut command);
    Ok(command)
}

/// The benchmarks for `cargo bench`, each a file or a folder.
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

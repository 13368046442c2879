//! The steps that CI runs.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::build::BuildTimes;
use crate::build::plugins::PluginProfile;
use crate::build::{self, LintMode, cargo, check, root, step};
use crate::measure::figures;
use crate::suite::TestSelection;
use crate::{fuzz, real, run, services, structure};

pub fn all() -> Result<ExitCode> {
    step("format");
    check(cargo().args(["fmt", "--all", "--check"]))?;
    check(cargo().args(["fmt", "--check", "--manifest-path", "tests/fuzz/libfuzzer/Cargo.toml"]))?;
    step("structure");
    if structure::command()? != ExitCode::SUCCESS {
        bail!("folders are too large, or use each other in circles: what is printed above says which");
    }
    // Building the tool that checks them leaves a core idle at its end, and so does the other build.
    // Installing services waits for the network: the tests request it again, and then find it done.
    let (lints, dependencies) = std::thread::scope(|scope| {
        let dependencies = scope.spawn(dependencies);
        scope.spawn(|| (services::ensure(), services::ensure_valgrind()));
        (lints(), dependencies.join())
    });
    lints?;
    dependencies.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    fuzz::compiles()?;
    // The tests include those that compare docs/reference with the code, and the figures in pages with
    // measured ones.
    let (tested, servers) = std::thread::scope(|scope| {
        let servers = scope.spawn(real::build_for_ci);
        (run::test(&TestSelection::default(), LintMode::Denied), servers.join())
    });
    if tested? != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    let servers = servers.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    step("what a state costs");
    if figures::gate()? != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    real::in_ci(servers)
}

/// Compiles everything that tests do not compile, with the same lints.
fn lints() -> Result<()> {
    // The programs of tests come first, so that each crate is compiled once.
    build::tests(&[], LintMode::Denied, &mut BuildTimes::default())?;
    step("lints of the benchmarks, the examples and the production build");
    let mut benches = cargo();
    benches.args(["build", "--locked", "--workspace", "--benches", "--examples"]);
    // The production binary contains the plugins. Setting this variable makes cargo compile the host anew, so
    // no other step sets it.
    let mut production = cargo();
    production.args(["build", "--locked"]).args(build::PRODUCTION);
    production.env("KUBEWITNESS_EMBED", PluginProfile::Quick.folder());
    // The release compiles the allocator with its own settings. This step does not compile its sources.
    if let Some(library) = services::installed_jemalloc() {
        production.env("JEMALLOC_OVERRIDE", library);
    }
    for mut command in [benches, production] {
        LintMode::Denied.apply(&mut command);
        check(&mut command)?;
    }
    production_names_the_playground()?;
    production_has_no_short_timers()?;
    step("the documentation of the SDK");
    let mut documented = cargo();
    // This profile already has the macros that the SDK needs, because the plugins were built with it.
    documented.args([
        "doc",
        "--locked",
        "--no-deps",
        "--package",
        "kubewitness-sdk",
        "--profile",
        "quick-plugin",
    ]);
    check(documented.env("RUSTDOCFLAGS", "--deny warnings"))
}

/// Checks licences, sources, bans and duplicates. Advisories need a database that a closed network does not
/// have; `cargo deny check advisories` reads it.
fn dependencies() -> Result<()> {
    let tools = build::target().join("tools");
    let program = tools.join("bin").join("cargo-deny");
    if !program.is_file() {
        step("installing cargo-deny");
        // It runs for a second, and optimising it would take minutes.
        let install = ["install", "--debug", "--locked", "--quiet", "cargo-deny@0.20.2", "--root"];
        check(cargo().args(install).arg(&tools).env("CARGO_PROFILE_DEV_DEBUG", "false"))?;
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

/// Checks that the production build names the command that has a playground, if somebody requests one.
fn production_names_the_playground() -> Result<()> {
    let program = build::target().join("debug").join("kubewitness");
    let output = Command::new(&program).arg("playground").output();
    let output = output.with_context(|| format!("starting {}", program.display()))?;
    let stderr_text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(2) || !stderr_text.contains("`cargo xtask playground` builds and starts")
    {
        bail!("`kubewitness playground` of the production build ended with {}: {stderr_text}", output.status);
    }
    Ok(())
}

/// Checks that the production build does not contain the environment variable that shortens Leases and pauses
/// for tests.
fn production_has_no_short_timers() -> Result<()> {
    const VARIABLE: &[u8] = b"KUBEWITNESS_TEST_TIMERS";
    let program = build::target().join("debug").join("kubewitness");
    let bytes = std::fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
    if bytes.windows(VARIABLE.len()).any(|part| part == VARIABLE) {
        bail!("the production build reads {}: tests alone may", String::from_utf8_lossy(VARIABLE));
    }
    Ok(())
}

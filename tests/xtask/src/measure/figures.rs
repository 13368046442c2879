//! `cargo xtask figures`: measures the figures in the pages, and compares them with the recorded ones.
//!
//! The program in `tests/figures` defines the figures. This command starts the benchmarks, which append their
//! measurements to one file, and passes the file to that program.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::bench;
use crate::build::{self, cargo, check, root, step};
use crate::run;

pub fn command(args: &[String]) -> Result<ExitCode> {
    match args {
        [flag] if flag == "--check" => keeper(&["check"]),
        [flag] if flag == "--stale" => keeper(&["stale"]),
        [flag] if flag == "--write" => keeper(&["write"]),
        [flag] if flag == "--gate" => gate(),
        [flag, ..] if flag.starts_with('-') => {
            bail!("`figures` takes names of benchmarks, or one of --check, --stale, --write and --gate")
        }
        names => measure(names),
    }
}

/// Measures all figures, or those of the named benchmarks, and records them. A run takes hours, so if one
/// benchmark fails, the others still run.
fn measure(names: &[String]) -> Result<ExitCode> {
    let plan = plan(names)?;
    let records = begin()?;
    let mut failed = Vec::new();
    for (way, name) in &plan {
        step(&format!("measuring: {way} {name}"));
        if let Err(why) = measure_by(way, name, &records) {
            eprintln!("xtask: {way} {name} failed: {why:#}");
            failed.push(name.as_str());
        }
    }
    let taken = keeper(&["take", &records.display().to_string()])?;
    if !failed.is_empty() {
        bail!("not measured: {}; what is printed above says why", failed.join(", "));
    }
    Ok(taken)
}

fn measure_by(way: &str, name: &String, records: &Path) -> Result<()> {
    match way {
        "bench" => bench(std::slice::from_ref(name), Some(records)),
        "tests" => run::test_recorded(name, records),
        "first-build" => first_build(records),
        _ => bail!("the program of tests/figures knows a way to measure that this one does not"),
    }
}

/// Measures the figures that CI judges: the pipeline compared with client-go, and the instructions of the
/// hottest paths. If one moved too far, a second run decides: other load may have slowed one of two programs
/// that took turns.
pub fn gate() -> Result<ExitCode> {
    let mut ended = ExitCode::FAILURE;
    for _ in 0..2 {
        let records = begin()?;
        for name in super::MEASURED_BY_GATE {
            bench(&[name.to_owned()], Some(&records))?;
        }
        ended = keeper(&["gate", &records.display().to_string()])?;
        if ended == ExitCode::SUCCESS {
            break;
        }
    }
    Ok(ended)
}

/// Creates the file of a run, with the commit and the machine.
fn begin() -> Result<PathBuf> {
    let records = build::target().join("figures.jsonl");
    if keeper(&["begin", &records.display().to_string()])? != ExitCode::SUCCESS {
        bail!("the run can't begin; what is printed above says why");
    }
    Ok(records)
}

/// The commands that start benchmarks, by name.
fn plan(names: &[String]) -> Result<Vec<(String, String)>> {
    let mut command = keepers_command(&["plan"]);
    let output = command.args(names).stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("there is nothing to measure; what is printed above says why");
    }
    let lines = String::from_utf8(output.stdout).context("the plan is no text")?;
    let pair = |line: &str| {
        let (way, name) = line.split_once(' ').unwrap_or((line, ""));
        (way.to_owned(), name.to_owned())
    };
    Ok(lines.lines().map(pair).collect())
}

fn keeper(args: &[&str]) -> Result<ExitCode> {
    let status = keepers_command(args).status().context("starting cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn keepers_command(args: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["run", "--locked", "--quiet", "--package", "kubewitness-figures", "--"]).args(args);
    command
}

/// Builds the playground as on a fresh machine, and then starts it once more.
fn first_build(records: &Path) -> Result<()> {
    let folder = build::target().join("first-build");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let mut playground = cargo();
    playground.args(["xtask", "playground", "--help"]).env("CARGO_TARGET_DIR", &folder).stdout(Stdio::null());
    let begun = Instant::now();
    check(&mut playground)?;
    record(records, "first-build.minutes", begun.elapsed().as_secs_f64() / 60.0)?;
    let begun = Instant::now();
    check(&mut playground)?;
    record(records, "first-build.again", begun.elapsed().as_secs_f64())?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))
}

/// Appends a line in the format of the benchmarks.
fn record(records: &Path, name: &str, value: f64) -> Result<()> {
    use std::io::Write;
    let file = std::fs::File::options().append(true).open(records);
    let mut file = file.with_context(|| format!("opening {}", records.display()))?;
    writeln!(file, r#"{{"figure":{{"name":"{name}","value":{value}}}}}"#).context("recording a figure")
}

/// Checks that a release can be made from this commit.
pub fn release() -> Result<ExitCode> {
    let mut git = Command::new("git");
    let status = git.args(["status", "--porcelain"]).current_dir(root()).output().context("starting git")?;
    if !status.status.success() {
        bail!("a release is made in a clone: {}", String::from_utf8_lossy(&status.stderr).trim());
    }
    if !status.stdout.is_empty() {
        bail!(
            "a release is made of a commit, and these files differ:\n{}",
            String::from_utf8_lossy(&status.stdout)
        );
    }
    step("figures");
    for question in ["check", "stale"] {
        if keeper(&[question])? != ExitCode::SUCCESS {
            bail!("a release tells no figure that nobody measured, and none that is older than its code");
        }
    }
    build::everything(build::HostBuild::Image)?;
    step("the program of the release is target/release/kubewitness; its image: deploy/Dockerfile");
    Ok(ExitCode::SUCCESS)
}

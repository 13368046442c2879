//! Runs the programs of all tests, as `cargo test --workspace` does, but two at a time: many tests wait for databases
//! and for time that passes. The end-to-end tests, which use both processors, then run alone.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use crate::build::{self, cargo, step};

const AT_ONCE: usize = 2;
/// The package whose tests take the longest. It begins first, so that nothing waits for it at the end.
const LONGEST: &str = "host/journal";
const ALONE: &str = "tests/e2e";

/// A program with tests, of the package in this folder.
struct Program {
    package: PathBuf,
    file: PathBuf,
}

/// Runs all of them, also after one failed. `prepare` sets the variables that they need.
pub fn all(prepare: impl Fn(&mut Command) + Sync) -> Result<()> {
    let mut programs = built(&prepare)?;
    programs.sort_by_key(|program| !program.package.ends_with(LONGEST));
    let (alone, others): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| program.package.ends_with(ALONE));
    let mut failed = beside_each_other(others, &prepare);
    for program in alone {
        step(&program.name());
        failed.extend(failure(&program.name(), succeeded(program.command(&prepare))));
    }
    step("examples in the documentation");
    let mut examples = cargo();
    examples.args(["test", "--locked", "--workspace", "--no-fail-fast", "--doc"]);
    prepare(&mut examples);
    failed.extend(failure("examples in the documentation", succeeded(examples)));
    if !failed.is_empty() {
        bail!("tests failed, and what is printed above says why:\n  {}", failed.join("\n  "));
    }
    Ok(())
}

/// Returns the names of those that failed.
fn beside_each_other(programs: Vec<Program>, prepare: &(impl Fn(&mut Command) + Sync)) -> Vec<String> {
    let queue = Mutex::new(programs.into_iter());
    let next = || queue.lock().ok()?.next();
    let work = || {
        let mut failed = Vec::new();
        while let Some(program) = next() {
            failed.extend(failure(&program.name(), program.run_aside(prepare)));
        }
        failed
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended.flat_map(|failed| failed.unwrap_or_else(|_| vec!["the runner itself".to_owned()])).collect()
    })
}

fn failure(name: &str, result: Result<()>) -> Option<String> {
    Some(format!("{name}: {:#}", result.err()?))
}

/// What `cargo test` would run.
fn built(prepare: &impl Fn(&mut Command)) -> Result<Vec<Program>> {
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace", "--no-run"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    prepare(&mut command);
    let output = command.stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("the tests can't be built; what is printed above says why");
    }
    let messages = String::from_utf8(output.stdout).context("cargo wrote no text")?;
    let programs: Vec<_> = messages.lines().filter_map(program).collect();
    if programs.is_empty() {
        bail!("cargo names no program with tests");
    }
    Ok(programs)
}

/// Reads one of cargo's messages. A parser of JSON would have to be compiled before anything else can begin.
fn program(message: &str) -> Option<Program> {
    let is_test = message.contains("\"reason\":\"compiler-artifact\"") && message.contains("\"test\":true},");
    if !is_test {
        return None;
    }
    let path = |name: &str| {
        let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
        Some(Path::new(rest.split_once('"')?.0))
    };
    Some(Program { package: path("manifest_path")?.parent()?.into(), file: path("executable")?.into() })
}

impl Program {
    fn name(&self) -> String {
        let package = self.package.strip_prefix(build::root()).unwrap_or(&self.package);
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        let name = file.rsplit_once('-').map_or(&*file, |(name, _hash)| name);
        format!("tests of {}: {name}", package.display())
    }

    fn command(&self, prepare: &impl Fn(&mut Command)) -> Command {
        let mut command = build::program(&self.file);
        prepare(command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package));
        command
    }

    /// What it prints comes at its end, in one piece.
    fn run_aside(&self, prepare: &impl Fn(&mut Command)) -> Result<()> {
        let log = build::target().join("test-output");
        std::fs::create_dir_all(&log).with_context(|| format!("making {}", log.display()))?;
        let log = log.join(self.file.file_name().context("a program without a name")?);
        let output = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let mut command = self.command(prepare);
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        let result = succeeded(command);
        print(&self.name(), &log)?;
        result
    }
}

fn print(name: &str, log: &Path) -> Result<()> {
    let text = std::fs::read(log).with_context(|| format!("reading {}", log.display()))?;
    let mut output = io::stderr().lock();
    step(name);
    output.write_all(&text).context("printing what the tests printed")
}

fn succeeded(mut command: Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_cargo_builds_the_programs_with_tests_are_run() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/k/host/core/Cargo.toml","target":{{"test":true}},"profile":{{"opt_level":"0","test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = program(&message(true, r#""/k/target/debug/deps/core-5f0c""#)).expect("a program");
        assert_eq!(found.package, Path::new("/k/host/core"));
        assert_eq!(found.file, Path::new("/k/target/debug/deps/core-5f0c"));
        assert!(found.name().ends_with("host/core: core"), "{}", found.name());
        let others = [message(false, "null"), message(true, "null"), r#"{"reason":"build-finished"}"#.into()];
        assert!(others.iter().all(|other| program(other).is_none()), "nothing else is a program with tests");
    }
}

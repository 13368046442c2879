//! Runs the programs of all tests, as `cargo test --workspace` does, but two at a time: many tests wait for databases
//! and for time that passes. The end-to-end tests, which use both processors, then run alone.

use std::collections::VecDeque;
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
    let (last, first): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| program.package.ends_with(ALONE));
    let failed = Mutex::new(Vec::new());
    let queue = Mutex::new(VecDeque::from(first));
    let next = || queue.lock().ok()?.pop_front();
    let fails = |name: String| failed.lock().map(|mut failed| failed.push(name)).unwrap_or_default();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = next() {
                    if let Err(error) = program.run_aside(&prepare) {
                        fails(format!("{}: {error:#}", program.name()));
                    }
                }
            });
        }
    });
    for program in last {
        step(&program.name());
        if let Err(error) = succeeded(program.command(&prepare)) {
            fails(format!("{}: {error:#}", program.name()));
        }
    }
    step("examples in the documentation");
    let mut examples = cargo();
    examples.args(["test", "--locked", "--workspace", "--no-fail-fast", "--doc"]);
    prepare(&mut examples);
    if let Err(error) = succeeded(examples) {
        fails(format!("{error:#}"));
    }
    let failed = failed.into_inner().unwrap_or_default();
    if !failed.is_empty() {
        bail!("tests failed, and what is printed above says why:\n  {}", failed.join("\n  "));
    }
    Ok(())
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
    let text = |name: &str| {
        let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
        Some(PathBuf::from(rest.split_once('"')?.0))
    };
    let package = text("manifest_path")?.parent()?.to_path_buf();
    is_test.then_some(())?;
    Some(Program { package, file: text("executable")? })
}

impl Program {
    fn name(&self) -> String {
        let package = self.package.strip_prefix(build::root()).unwrap_or(&self.package);
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        format!("tests of {}: {file}", package.display())
    }

    fn command(&self, prepare: &impl Fn(&mut Command)) -> Command {
        let mut command = Command::new(&self.file);
        prepare(command.current_dir(&self.package));
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

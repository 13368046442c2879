//! Runs the programs of all tests, as `cargo test --workspace` does, but two at a time: many tests wait for databases
//! and for time that passes. The end-to-end tests, which use both processors, then run alone.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::build::{self, cargo, check, step};

const AT_ONCE: usize = 2;
/// The package whose tests take the longest. It begins first, so that nothing waits for it at the end.
const LONGEST: &str = "host/journal";
const ALONE: &str = "tests/e2e";
/// How often is looked for new lines of a program that is shown while it runs.
const LOOK: Duration = Duration::from_millis(200);
/// How much of what failed is repeated at the end: of a test, and of all tests of a program.
const LINES_OF_A_TEST: usize = 15;
const LINES_OF_A_PROGRAM: usize = 60;
const LONGEST_LINE: usize = 500;

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
        failed.extend(failure(&program.name(), program.run(&prepare, true)));
    }
    step("examples in the documentation");
    let mut examples = cargo();
    examples.args(["test", "--locked", "--workspace", "--no-fail-fast", "--doc"]);
    prepare(&mut examples);
    failed.extend(failure("examples in the documentation", check(&mut examples)));
    if !failed.is_empty() {
        bail!("tests failed:\n\n{}", failed.join("\n\n"));
    }
    Ok(())
}

/// Returns what is to be said of those that failed.
fn beside_each_other(programs: Vec<Program>, prepare: &(impl Fn(&mut Command) + Sync)) -> Vec<String> {
    let queue = Mutex::new(programs.into_iter());
    let next = || queue.lock().ok()?.next();
    let work = || {
        let mut failed = Vec::new();
        while let Some(program) = next() {
            failed.extend(failure(&program.name(), program.run(prepare, false)));
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

    /// What it prints is shown while it runs, or at its end in one piece.
    fn run(&self, prepare: &impl Fn(&mut Command), is_alone: bool) -> Result<()> {
        let log = build::target().join("test-output");
        std::fs::create_dir_all(&log).with_context(|| format!("making {}", log.display()))?;
        let log = log.join(self.file.file_name().context("a program without a name")?);
        let output = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let mut shown = File::open(&log).with_context(|| format!("reading {}", log.display()))?;
        let mut command = self.command(prepare);
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        let mut child = command.spawn().with_context(|| format!("starting {}", self.file.display()))?;
        loop {
            let ended = child.try_wait()?;
            let mut screen = io::stderr().lock();
            if ended.is_some() && !is_alone {
                step(&self.name());
            }
            if ended.is_some() || is_alone {
                io::copy(&mut shown, &mut screen).context("showing what the tests print")?;
            }
            drop(screen);
            match ended {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    bail!("{status}\n{}", reasons(&String::from_utf8_lossy(&std::fs::read(&log)?)))
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }
}

/// The beginning of what each failed test says, or the end of what a program printed that ended before it could list
/// them.
fn reasons(printed: &str) -> String {
    let cut = |line: &str| line.chars().take(LONGEST_LINE).collect::<String>();
    let Some((_, listed)) = printed.split_once("\nfailures:\n") else {
        let lines: Vec<_> = printed.lines().map(cut).collect();
        return lines[lines.len().saturating_sub(LINES_OF_A_TEST)..].join("\n");
    };
    let mut of_this_test = 0;
    let first = |line: &&str| {
        of_this_test = if line.starts_with("---- ") { 0 } else { of_this_test + 1 };
        of_this_test <= LINES_OF_A_TEST
    };
    listed.lines().filter(first).take(LINES_OF_A_PROGRAM).map(cut).collect::<Vec<_>>().join("\n")
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

    #[test]
    fn the_beginning_of_what_each_failed_test_says_is_repeated() {
        let long = "a line\n".repeat(LINES_OF_A_TEST * 2);
        let wide = "w".repeat(LONGEST_LINE * 2);
        let printed = format!(
            "test a ... FAILED\ntest c ... ok\n\nfailures:\n\n---- a stdout ----\nthe reason\n{long}\n---- b stdout ----\n{wide}\n"
        );
        let told = reasons(&printed);
        assert!(told.contains("---- a stdout ----\nthe reason\n"), "{told}");
        assert!(told.contains("---- b stdout ----\nw") && !told.contains("... ok"), "{told}");
        assert!(told.lines().count() < LINES_OF_A_TEST + 6, "{told}");
        assert!(told.lines().all(|line| line.len() <= LONGEST_LINE), "{told}");
    }

    #[test]
    fn of_a_program_that_was_killed_the_last_lines_are_repeated() {
        let printed: String = (0..LINES_OF_A_TEST * 2).map(|it| format!("line {it}\n")).collect();
        let told = reasons(&printed);
        assert!(told.starts_with("line 15\n") && told.ends_with("line 29"), "{told}");
    }
}

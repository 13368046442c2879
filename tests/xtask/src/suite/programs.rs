//! The test programs that cargo built, and the tests in each of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::build;

/// Packages whose tests start processes and servers. Each of their tests is a separate process, so that many
/// can wait concurrently.
const ONE_JOB_A_TEST: [&str; 2] = ["tests/e2e", "tests/processes"];

/// A program with tests, of the package in this folder.
pub struct TestProgram {
    /// The package's folder within the workspace with the program's own name: `host/core: kubewitness_core`.
    pub name: String,
    package: PathBuf,
    file: PathBuf,
    /// The names of its tests.
    pub tests: Vec<String>,
}

/// Finds the programs in cargo's messages about the build.
pub fn of_messages(messages: &str, prepare: &dyn Fn(&mut Command)) -> Result<Vec<TestProgram>> {
    let mut programs: Vec<_> = messages.lines().filter_map(of_message).collect();
    if programs.is_empty() {
        bail!("cargo names no program with tests");
    }
    for program in &mut programs {
        program.tests = program.list(prepare)?;
    }
    Ok(programs)
}

/// Reads one of cargo's messages. A JSON parser would have to be compiled before anything else can begin.
fn of_message(message: &str) -> Option<TestProgram> {
    // A program without tests has this in its target, but not in its profile.
    let (profile, _) = message.split_once("\"profile\":{")?.1.split_once('}')?;
    if !message.contains("\"reason\":\"compiler-artifact\"") || !profile.contains("\"test\":true") {
        return None;
    }
    let path = |name: &str| {
        let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
        Some(Path::new(rest.split_once('"')?.0))
    };
    let (package, file) = (path("manifest_path")?.parent()?, path("executable")?);
    let folder = package.strip_prefix(build::root()).unwrap_or(package);
    let hashed = file.file_name()?.to_string_lossy();
    let own_name = hashed.rsplit_once('-').map_or(&*hashed, |(name, _hash)| name);
    Some(TestProgram {
        name: format!("{}: {own_name}", folder.display()),
        package: package.into(),
        file: file.into(),
        tests: Vec::new(),
    })
}

impl TestProgram {
    pub fn one_job_a_test(&self) -> bool {
        ONE_JOB_A_TEST.iter().any(|package| self.package.ends_with(package))
    }

    /// A command that runs the program in its package's folder, as cargo does.
    pub fn command(&self, prepare: &dyn Fn(&mut Command)) -> Command {
        let mut command = build::program(&self.file);
        prepare(command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package));
        command
    }

    fn list(&self, prepare: &dyn Fn(&mut Command)) -> Result<Vec<String>> {
        let mut command = self.command(prepare);
        command.args(["--list", "--format", "terse"]).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("starting {}", self.file.display()))?;
        if !output.status.success() {
            bail!("{} can't list its tests: {}", self.file.display(), output.status);
        }
        let listed = String::from_utf8(output.stdout).context("a test's name is no UTF-8")?;
        Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/k/host/core/Cargo.toml","target":{{"test":true}},"profile":{{"opt_level":"0","test":{test}}},"executable":{executable}}}"#
        )
    }

    #[test]
    fn only_programs_with_tests_are_taken_from_what_cargo_built() {
        let program = of_message(&message(true, r#""/k/target/debug/deps/kubewitness_core-ab12""#));
        let program = program.expect("a program with tests");
        assert_eq!(program.name, "/k/host/core: kubewitness_core");
        assert_eq!(program.file, Path::new("/k/target/debug/deps/kubewitness_core-ab12"));
        assert!(of_message(&message(false, r#""/k/target/debug/kubewitness""#)).is_none());
        assert!(of_message(&message(true, "null")).is_none(), "a library that was only checked");
    }
}

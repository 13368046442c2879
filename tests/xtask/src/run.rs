//! The commands that run what was built.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::build::BuildTimes;
use crate::build::plugins::PluginProfile;
use crate::build::{self, HostBuild, LintMode, cargo, check, step};
use crate::services::SharedServers;
use crate::suite::{TestSelection, packages};
use crate::{services, suite};

const FIRST_BUILD: &str = "the first build compiles everything, dependencies included, into target/; README.md says how \
    long it took us. Later starts take seconds";

pub fn playground(args: &[String]) -> Result<ExitCode> {
    let binary = build::playground_program();
    if !binary.is_file() {
        step(FIRST_BUILD);
    }
    build::everything(HostBuild::Playground)?;
    replace(Command::new(&binary).arg("playground").args(args))
}

/// Replaces this process by the command, so that the command owns the signals and the terminal.
pub fn replace(command: &mut Command) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(error).with_context(|| format!("starting {:?}", command.get_program()))
}

/// Reads the arguments of `cargo xtask test`.
pub fn selection(args: &[String]) -> Result<TestSelection> {
    let members = packages::members()?;
    let mut selection = TestSelection::default();
    for arg in args {
        match packages::find(&members, arg) {
            _ if arg == "--timings" => selection.timings = true,
            _ if arg == "--complete" => selection.complete = true,
            _ if arg == "--" => {}
            _ if arg.starts_with('-') => {
                bail!("`test` knows no `{arg}`: it takes crates, names of tests, --complete and --timings")
            }
            Some(package) => selection.packages.push(package),
            None => selection.filters.push(arg.clone()),
        }
    }
    Ok(selection)
}

pub fn test(selection: &TestSelection, lints: LintMode) -> Result<ExitCode> {
    test_with(selection, lints, |_| ()).map(|()| ExitCode::SUCCESS)
}

/// Runs the tests whose names contain one of these. They append their measurements to `records`.
pub fn test_recorded(filter: &str, records: &Path) -> Result<()> {
    let selection = TestSelection { filters: vec![filter.to_owned()], ..TestSelection::default() };
    test_with(&selection, LintMode::Ignored, |command| {
        command.env(build::RECORDS, records);
    })
}

/// The same as [`test`], with additional variables for the tests.
pub fn test_with(selection: &TestSelection, lints: LintMode, variables: impl Fn(&mut Command)) -> Result<()> {
    let mut times = BuildTimes::new(selection.timings);
    // Installing waits for the network and for disks, which compiling does not.
    let (artifacts, missing) = std::thread::scope(|scope| {
        let services = scope.spawn(services::ensure);
        (build::tests(&selection.packages, lints, &mut times), services.join())
    });
    let missing = missing.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if !missing.is_empty() && std::env::var_os("CI").is_some() {
        bail!("in CI nothing may be skipped, and these could not be installed: {}", missing.join(", "));
    }
    let artifacts = artifacts?;
    let seed = seed();
    step(&format!("running the tests with {}", repeat_command(&seed)));
    let list = build::target().join("skipped-tests");
    match std::fs::remove_file(&list) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", list.display()));
        }
        _ => {}
    }
    // The tests of a single crate start their own servers: fewer of them need any.
    let servers = if selection.packages.is_empty() { Some(SharedServers::start()?) } else { None };
    let prepare = |command: &mut Command| {
        servers.iter().for_each(|servers| servers.name_to(command));
        command.env("KUBEWITNESS_PLUGINS", PluginProfile::Quick.folder());
        command.env("KUBEWITNESS_SERVICES", build::services_folder());
        command.env("KUBEWITNESS_BIN_DIR", build::target().join("debug"));
        command.env("KUBEWITNESS_SKIPPED", &list);
        command.env(SEED, &seed);
        if selection.complete || !selection.filters.is_empty() {
            command.env(ALL_CASES, "1");
        }
        lints.apply(command);
        variables(command);
    };
    let mut result = suite::run(selection, &artifacts, &times, &seed, &prepare);
    if selection.is_everything() {
        result = result.and(doc_examples(&prepare));
    }
    let skipped = std::fs::read_to_string(&list).unwrap_or_default();
    if !skipped.is_empty() {
        eprintln!("xtask: {} tests skipped:", skipped.lines().count());
        skipped.lines().for_each(|line| eprintln!("  SKIPPED {line}"));
        if selection.skips_nothing {
            result = result.and(Err(anyhow::anyhow!("what was skipped is not proved")));
        }
    }
    result.with_context(|| repeat_command(&seed))
}

/// The variable with the seed of all random choices in tests.
pub const SEED: &str = "KUBEWITNESS_SEED";
/// The variable for tests that shall run all of their cases.
const ALL_CASES: &str = "KUBEWITNESS_ALL_CASES";

/// A new seed for each run, unless the environment has one.
fn seed() -> String {
    std::env::var(SEED).unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(1, |since| since.as_secs()).to_string()
    })
}

fn repeat_command(seed: &str) -> String {
    format!("seed {seed} (repeat with {SEED}={seed})")
}

/// The packages with the code blocks of the SDK's documentation and of the tutorial; the other libraries have none.
const WITH_EXAMPLES: [&str; 4] = ["--package", "kubewitness-sdk", "--package", "kubewitness-plugin-mailer"];

fn doc_examples(prepare: &dyn Fn(&mut Command)) -> Result<()> {
    step("examples in the documentation");
    let mut examples = cargo();
    examples.args(["test", "--locked", "--no-fail-fast", "--doc"]);
    examples.args(WITH_EXAMPLES).args(build::FEATURES_OF_TESTS);
    prepare(&mut examples);
    check(&mut examples)
}

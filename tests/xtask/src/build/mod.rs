//! Builds the controller, the programs with tests, the plugins and the benchmarks.

pub mod plugins;
pub mod process;
pub mod times;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use times::BuildTimes;

use plugins::PluginProfile;

/// The profile of installed programs and of benchmarks, and its folder in the target folder.
pub const OPTIMISED_PROFILE: &str = "release";
/// The variable with the file to which benchmarks and tests append their measurements.
pub const RECORDS: &str = "KUBEWITNESS_FIGURES";
/// A folder that every user may read, for downloads that can be repeated.
const SHARED: &str = "/var/cache/kubewitness-tests";

/// The package that requests the features of the whole workspace: see its manifest.
const FEATURES: &str = "kubewitness-features";
/// Requests them in builds of single packages' tests.
pub const FEATURES_OF_TESTS: [&str; 4] = ["--package", FEATURES, "--features", "kubewitness-features/tests"];
/// The packages whose tests start the controller and the simulated API server.
const STARTERS: [&str; 2] = ["kubewitness-e2e", "kubewitness-processes"];

/// The features and the profile of a build of the host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HostBuild {
    /// The fastest build, for a first look. Tests compile its dependencies with the same features.
    Playground,
    /// With the simulated API server as a program of its own, for tests.
    Tests,
    Release,
    /// For production: without the simulated cluster.
    Image,
}

impl HostBuild {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Playground => &["--package", FEATURES],
            Self::Tests => &["--package", "kubewitness-playground", "--package", FEATURES],
            Self::Release => &[
                "--package",
                "kubewitness-playground",
                "--profile",
                OPTIMISED_PROFILE,
                "--features",
                "kubewitness/jemalloc",
            ],
            Self::Image => {
                &["--profile", OPTIMISED_PROFILE, "--no-default-features", "--features", "jemalloc"]
            }
        }
    }
}

pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// The target folder of cargo. The variable `CARGO_TARGET_DIR` takes precedence, as it does for cargo.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The controller of a first look.
pub fn playground_program() -> PathBuf {
    target().join("debug").join("kubewitness")
}

/// The folder for downloads that the tests need because the machine has no package of them. If root runs the
/// tests, servers run as the user `nobody`, who can't enter every folder that root builds in.
pub fn services_folder() -> PathBuf {
    let is_closed =
        |folder: &Path| folder.metadata().is_ok_and(|folder| folder.permissions().mode() & 0o001 == 0);
    match is_root() && target().ancestors().any(is_closed) {
        true => PathBuf::from(SHARED),
        false => target().join("services"),
    }
}

pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

pub fn cargo() -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A command without the variables of the runner's own package.
pub fn program(file: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(file);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The time since the first step.
pub fn elapsed() -> Duration {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGUN.elapsed()
}

/// Prints the next step, and the time since the first one.
pub fn step(text: &str) {
    let seconds = elapsed().as_secs();
    eprintln!("\x1b[1m==>\x1b[0m {text} ({}:{:02})", seconds / 60, seconds % 60);
}

/// Prints lines on the standard output. A reader such as `head` may have closed it, which is no error.
pub fn print_text(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Runs a command to its end. The error contains the command.
pub fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {:?}", command.get_program()))?;
    succeeded(command, status)
}

pub fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        bail!("`cargo {}` failed ({status}); what it printed above says why", args.join(" "));
    }
    Ok(())
}

pub fn everything(host: HostBuild) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--locked", "--package", "kubewitness"]).args(host.arguments());
    match host {
        HostBuild::Playground => return playground(&mut command),
        HostBuild::Tests | HostBuild::Release | HostBuild::Image => plugins::shipped(&plugins::SHIPPED)?,
    }
    step("building the host");
    // The binary contains the plugins, so that `kubewitness playground` needs no other file.
    check(command.env("KUBEWITNESS_EMBED", PluginProfile::Shipped.folder()))
}

/// Builds the plugins and the host concurrently, because each alone leaves a core idle at its end. The host
/// finds the plugins in a folder beside it. If it contained them, it would have to wait for them.
fn playground(host: &mut Command) -> Result<()> {
    plugins::ensure_target()?;
    step("building the plugins and the host");
    let mut plugins = PluginProfile::Quick.command(&plugins::SHIPPED);
    let mut building = plugins.arg("--quiet").spawn().context("starting the build of the plugins")?;
    let built = check(host);
    // Waits for the plugins even if the host's build failed, so that nothing runs on behind the prompt.
    let status = building.wait().context("waiting for the build of the plugins")?;
    built?;
    succeeded(&plugins, status)?;
    PluginProfile::Quick.take(&plugins::SHIPPED)
}

/// The controller with the features of [`HostBuild::Image`], compiled as tests are.
pub const PRODUCTION: [&str; 8] = [
    "--package",
    "kubewitness",
    "--package",
    FEATURES,
    "--bins",
    "--no-default-features",
    "--features",
    "kubewitness/jemalloc",
];

/// Builds the programs with tests, the programs that tests start, and the plugins, and returns cargo's
/// message about each artifact. In one command the programs share every dependency. The plugins are built
/// concurrently, because each build alone leaves a core idle at its end: the controller finds them in a
/// folder, and need not contain them.
pub fn tests(packages: &[String], lints: LintMode, times: &mut BuildTimes) -> Result<String> {
    plugins::ensure_target()?;
    step("building the plugins, the host and the tests");
    let mut own_times = times.another();
    let (plugins, artifacts) = std::thread::scope(|scope| {
        let plugins = scope.spawn(|| {
            let mut command = plugins::for_tests();
            lints.apply(&mut command);
            own_times.measure("plugins", &mut command)?;
            plugins::take_for_tests()
        });
        let artifacts = test_programs(packages, lints, times);
        (plugins.join(), artifacts)
    });
    match plugins {
        Ok(result) => result?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    times.append(own_times);
    artifacts
}

fn test_programs(packages: &[String], lints: LintMode, times: &mut BuildTimes) -> Result<String> {
    let mut command = cargo();
    command.args(["build", "--locked", "--lib", "--bins", "--tests"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    match packages {
        [] => {
            command.arg("--workspace");
        }
        chosen => {
            if chosen.iter().any(|package| STARTERS.contains(&&**package)) {
                check(
                    cargo()
                        .args(["build", "--locked", "--package", "kubewitness"])
                        .args(HostBuild::Tests.arguments()),
                )?;
            }
            for package in chosen {
                command.args(["--package", package]);
            }
            command.args(FEATURES_OF_TESTS);
        }
    }
    lints.apply(&mut command);
    let messages = target().join("test-artifacts.json");
    let file = File::create(&messages).with_context(|| format!("making {}", messages.display()))?;
    times.measure("host and tests", command.stdout(file))?;
    std::fs::read_to_string(&messages).with_context(|| format!("reading {}", messages.display()))
}

/// Whether clippy checks each crate of the workspace while it is compiled, with warnings as errors.
///
/// `cargo clippy` would compile every dependency for itself, which takes minutes. Both modes instead make
/// cargo call clippy in place of the compiler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LintMode {
    Denied,
    Ignored,
}

impl LintMode {
    pub fn apply(self, command: &mut Command) {
        if self == Self::Denied {
            command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
            command.env("CLIPPY_ARGS", "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
        }
    }
}

/// The packages that benchmarks need. Built in one command, the host and the benchmarks share every
/// dependency; so the host has the features that benchmarks need, such as tokio's `test-util`.
pub const BENCHED: [&str; 8] = [
    "--package",
    "kubewitness",
    "--package",
    "kubewitness-playground",
    "--package",
    "kubewitness-bench",
    "--features",
    "kubewitness/jemalloc,kubewitness-bench/jemalloc",
];

/// Builds these benchmarks, and the programs that they start.
pub fn benches(chosen: &[&str]) -> Result<()> {
    plugins::shipped_and_for_tests()?;
    step("building the host and the benchmarks");
    let mut command = cargo();
    command.args(["build", "--locked", "--profile", OPTIMISED_PROFILE, "--bins"]).args(BENCHED).args(chosen);
    check(command.env("KUBEWITNESS_EMBED", PluginProfile::Shipped.folder()))
}

//! Builds the plugins as components, then the controller that embeds them.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::suite::BuildTimes;

const WASM_TARGET: &str = "wasm32-wasip2";
/// The profile of plugins that people install, and that of plugins for a first look.
const SMALL: &str = "plugin";
const QUICK: &str = "playground-plugin";
/// A folder that every user may read, for things that can be fetched again.
const SHARED: &str = "/var/cache/kubewitness-tests";
const SHIPPED: [&str; 3] = ["persistence", "notification", "audit"];
/// The plugin that does what a test asks of it, and the one that writes e-mail.
const FOR_TESTS: [&str; 2] = ["probe", "mailer"];

/// The package that asks for the features of the whole workspace: see its manifest.
const FEATURES: &str = "kubewitness-features";
/// The packages whose tests start the controller and the simulated API server.
const STARTERS: [&str; 2] = ["kubewitness-e2e", "kubewitness-processes"];

/// Which host to build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// The fastest build, for a first look. Tests compile its dependencies with the same features.
    Playground,
    /// With the simulated API server as a program of its own, for tests.
    Tests,
    Release,
    /// For production: without the simulated cluster.
    Image,
}

impl Host {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Playground => &["--package", FEATURES],
            Self::Tests => &["--package", "kubewitness-playground", "--package", FEATURES],
            Self::Release => {
                &["--package", "kubewitness-playground", "--release", "--features", "kubewitness/jemalloc"]
            }
            Self::Image => &["--release", "--no-default-features", "--features", "jemalloc"],
        }
    }
}

pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// Where cargo builds. The variable `CARGO_TARGET_DIR` wins, as it does for cargo.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The controller of a first look.
pub fn playground_program() -> PathBuf {
    target().join("debug").join("kubewitness")
}

/// A controller finds its plugins in this folder beside it. Tests name another folder, with plugins as people install them.
fn playground_plugins() -> PathBuf {
    target().join("debug").join("plugins")
}

pub fn plugins_folder() -> PathBuf {
    target().join("plugins")
}

/// The folder for what the runner fetched for tests because the machine has no package of it. If root runs
/// the tests, servers run as the user `nobody`, who can't enter every folder that root builds in.
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

/// A command that does not get the variables of the runner's own package.
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

/// Prints what begins, and how long everything before took.
pub fn step(text: &str) {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = BEGUN.elapsed().as_secs();
    eprintln!("\x1b[1m==>\x1b[0m {text} ({}:{:02})", seconds / 60, seconds % 60);
}

/// Runs a command to its end. The error says which command failed.
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

pub fn everything(host: Host) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--locked", "--package", "kubewitness"]).args(host.arguments());
    match host {
        Host::Playground => return playground(&mut command),
        Host::Image => build_plugins(&SHIPPED)?,
        Host::Tests | Host::Release => plugins()?,
    }
    step("building the host");
    // The binary contains the plugins, so that `kubewitness playground` needs no other file.
    check(command.env("KUBEWITNESS_EMBED", plugins_folder()))
}

/// Builds the plugins and the host at the same time: each alone leaves a core idle at its end. The host finds
/// the plugins in a folder beside it. With the plugins inside, it would have to wait for them.
fn playground(host: &mut Command) -> Result<()> {
    ensure_wasm_target()?;
    step("building the plugins and the host");
    let mut plugins = plugins_command(&SHIPPED, QUICK);
    let mut building = plugins.arg("--quiet").spawn().context("starting the build of the plugins")?;
    let built = check(host);
    // Also if the host's build failed: nothing goes on behind the prompt.
    let status = building.wait().context("waiting for the build of the plugins")?;
    built?;
    succeeded(&plugins, status)?;
    take_plugins(&SHIPPED, QUICK, &playground_plugins())
}

/// Builds the programs with tests, the programs that tests start and the plugins, and returns what cargo said of each
/// artifact. In one command the programs share every dependency. The plugins are built beside them, because each build
/// alone leaves a core idle at its end: the controller finds them in a folder, and does not have to contain them.
pub fn tests(packages: &[String], lints: Lints, times: &mut BuildTimes) -> Result<String> {
    ensure_wasm_target()?;
    step("building the plugins, the host and the tests");
    let mut own_times = times.another();
    let (plugins, artifacts) = std::thread::scope(|scope| {
        let plugins = scope.spawn(|| plugins_for_tests(&mut own_times));
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

fn test_programs(packages: &[String], lints: Lints, times: &mut BuildTimes) -> Result<String> {
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
                        .args(Host::Tests.arguments()),
                )?;
            }
            for package in chosen {
                command.args(["--package", package]);
            }
            command.args(["--package", FEATURES, "--features", "kubewitness-features/tests"]);
        }
    }
    lints.apply(&mut command);
    let messages = target().join("test-artifacts.json");
    let file = File::create(&messages).with_context(|| format!("making {}", messages.display()))?;
    times.measure("host and tests", command.stdout(file))?;
    std::fs::read_to_string(&messages).with_context(|| format!("reading {}", messages.display()))
}

fn plugins_for_tests(times: &mut BuildTimes) -> Result<()> {
    let names = [SHIPPED.as_slice(), &FOR_TESTS].concat();
    times.measure("plugins", &mut plugins_command(&names, SMALL))?;
    take_plugins(&names, SMALL, &plugins_folder())?;
    times.measure("hostile guests", &mut hostile_command())?;
    take_hostile_guests()
}

/// Whether clippy looks at each crate of the workspace while it is compiled, and a warning is an error.
///
/// `cargo clippy` compiles every dependency for itself alone, and so takes minutes that this does not. Both make cargo
/// call clippy in the place of the compiler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lints {
    Denied,
    Ignored,
}

impl Lints {
    pub fn apply(self, command: &mut Command) {
        if self == Self::Denied {
            command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
            command.env("CLIPPY_ARGS", "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
        }
    }
}

/// What benchmarks need. Built in one command, the host and the benchmarks share every dependency; so the host has the
/// features that benchmarks need, such as tokio's `test-util`.
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
    plugins()?;
    step("building the host and the benchmarks");
    let mut command = cargo();
    command.args(["build", "--locked", "--release", "--bins"]).args(BENCHED).args(chosen);
    check(command.env("KUBEWITNESS_EMBED", plugins_folder()))
}

/// Builds the plugins, including those for tests.
pub fn plugins() -> Result<()> {
    step("building the plugins");
    ensure_wasm_target()?;
    plugins_for_tests(&mut BuildTimes::default())
}

/// The guests that mean harm, each a component of its own. They are many, so each is built fast rather than small: 23 take
/// 7 s of processor time, and 23 s in the profile of plugins.
fn hostile_command() -> Command {
    let mut command = plugins_command(&[], QUICK);
    command.args(["--package", "kubewitness-hostile", "--examples"]);
    command
}

fn take_hostile_guests() -> Result<()> {
    let built = target().join(WASM_TARGET).join(QUICK).join("examples");
    let folder = plugins_folder().join("hostile");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for name in hostile_names()? {
        let file = format!("{name}.wasm");
        copy_if_changed(&built.join(&file), &folder.join(&file))?;
    }
    Ok(())
}

/// Each file in a folder of `examples` is one. What its `Cargo.toml` does not name was not built, and is missed.
fn hostile_names() -> Result<Vec<String>> {
    let examples = root().join("tests/guests/hostile/examples");
    let mut names = Vec::new();
    for folder in examples.read_dir().with_context(|| format!("reading {}", examples.display()))? {
        for program in folder?.path().read_dir()? {
            names.extend(program?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

fn build_plugins(names: &[&str]) -> Result<()> {
    ensure_wasm_target()?;
    step("building the plugins");
    check(&mut plugins_command(names, SMALL))?;
    take_plugins(names, SMALL, &plugins_folder())
}

fn plugins_command(names: &[&str], profile: &str) -> Command {
    let mut command = cargo();
    command.args(["build", "--locked", "--target", WASM_TARGET, "--profile", profile]);
    for plugin in names {
        command.args(["--package", &format!("kubewitness-plugin-{plugin}")]);
    }
    command
}

fn take_plugins(names: &[&str], profile: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for plugin in names {
        let built =
            target().join(WASM_TARGET).join(profile).join(format!("kubewitness_plugin_{plugin}.wasm"));
        copy_if_changed(&built, &folder.join(format!("{plugin}.wasm")))?;
    }
    Ok(())
}

/// Keeps the time of an unchanged file, so that the host is not built again.
fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let new = std::fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if std::fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    std::fs::write(to, new).with_context(|| format!("writing {}", to.display()))
}

fn ensure_wasm_target() -> Result<()> {
    if wasm_target_installed() {
        return Ok(());
    }
    step(&format!("adding the Rust target {WASM_TARGET}"));
    let added = Command::new("rustup").args(["target", "add", WASM_TARGET]).current_dir(root()).status();
    if added.is_ok_and(|status| status.success()) && wasm_target_installed() {
        return Ok(());
    }
    bail!(
        "the plugins are built for {WASM_TARGET}, and this Rust installation lacks it.\n\
         With rustup: `rustup target add {WASM_TARGET}`. Without: install your distribution's package \
         of the standard library for {WASM_TARGET}."
    )
}

fn wasm_target_installed() -> bool {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", WASM_TARGET])
        .current_dir(root())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else { return false };
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some())
}

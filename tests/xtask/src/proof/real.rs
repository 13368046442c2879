//! `cargo xtask real`: builds real Kubernetes servers from their Go modules, and proves the promises against
//! them. With `--peers` it runs other ways of watching beside the controller, and writes the page about what
//! they miss. With
//! `--record` it records labelled histories of Jobs instead, for which it also builds Kubernetes'
//! controllers. So does
//! `cargo xtask playground --real`.
//!
//! `tests/real/modules` has a Go module for each program, or for each minor version of Kubernetes, because
//! their dependencies exclude each other. A module pins its dependencies by version and hash. The results
//! stay in `target/real`, with a copy of the module's file, and are built again when that file changes.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::build::plugins::PluginProfile;
use crate::build::{self, HostBuild, cargo, check, root, step};
use crate::measure::peer;
use crate::run::{self, SEED};
use crate::services::{self, apt};

const MODULES: &str = "tests/real/modules";
const ETCD: GoModule = GoModule { name: "etcd", programs: &[("etcd", "go.etcd.io/etcd/server/v3")] };
/// The controller of JobSets, for the recorder.
const JOB_SETS: GoModule = GoModule { name: "jobset", programs: &[("jobset", "sigs.k8s.io/jobset")] };
/// The file of the module that the recorder passes to the API server.
const JOB_SETS_DEFINITION: &str = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml";
/// Other ways of watching, in Go.
const PEERS: GoModule = GoModule { name: "peers", programs: &[("peers", ".")] };
/// The page about what they miss.
const PEERS_PAGE: &str = "docs/reference/peers.md";
/// By minor, newest last.
const KUBERNETES: [GoModule; 3] =
    [of_kubernetes("kubernetes-1.34"), of_kubernetes("kubernetes-1.36"), of_kubernetes("kubernetes-1.37")];
/// The minor version of a run that names none.
const USUAL: &str = "1.36";
/// The variable for `cargo xtask ci`: with `1`, it fails if the servers can't be built. With `0`, it does not
/// try.
const IN_CI: &str = "KUBEWITNESS_REAL";
const OFF: &str = "0";
const REQUIRED_IN_CI: &str = "1";
/// How many faults CI has time for. They are always the same, so that a failure comes from the change.
const FAULTS_IN_CI: &str = "6";
const SEED_IN_CI: &str = "1";
/// The words before the version in the module's file.
const REQUIRED: &str = "k8s.io/kubernetes v";

struct GoModule {
    name: &'static str,
    /// The name of each program here, and its package.
    programs: &'static [(&'static str, &'static str)],
}

/// The programs that the recorder runs beside the servers, from the same module.
const CONTROLLERS: [(&str, &str); 2] = [
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
];
/// Where recorded histories are kept.
const HISTORIES: &str = "tests/causes/histories";
/// The files that record from which module file a module's programs, and its controllers, were built.
const BUILT_OF: &str = "built-of";
const CONTROLLERS_BUILT_OF: &str = "controllers-built-of";

const fn of_kubernetes(name: &'static str) -> GoModule {
    GoModule { name, programs: &[("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver")] }
}

impl GoModule {
    fn minor(&self) -> &'static str {
        self.name.trim_start_matches("kubernetes-")
    }
}

pub fn command(args: &[String]) -> Result<ExitCode> {
    if let Some((first, cases)) = args.split_first()
        && first == "--record"
    {
        return record(cases);
    }
    let asked = RealArguments::read(args)?;
    let go = match peer::go() {
        Ok(go) => go,
        Err(why) => {
            asked.skipped(&why.to_string());
            return Ok(ExitCode::SUCCESS);
        }
    };
    prove(&go, &asked)
}

/// Builds the servers for CI's run beside the tests. They take minutes of processor time, which the tests
/// leave unused, because they wait for servers and for time. So this must not take what a test needs.
pub fn build_for_ci() -> Result<()> {
    if is_off() {
        return Ok(());
    }
    let go = peer::go()?;
    for module in [&ETCD, of_minor(USUAL)?] {
        ensure_built(&GoBuild::beside_tests(&go), module, module.programs, BUILT_OF)?;
    }
    Ok(())
}

fn is_off() -> bool {
    wanted_in_ci() == OFF
}

fn wanted_in_ci() -> String {
    std::env::var(IN_CI).unwrap_or_default()
}

/// Runs one minor version with some faults, if its servers can be built: a machine may lack Go, or the proxy
/// of its modules.
pub fn in_ci(built: Result<()>) -> Result<ExitCode> {
    let args = ["--faults", FAULTS_IN_CI].map(str::to_owned);
    let asked = RealArguments { seed: Some(SEED_IN_CI), ..RealArguments::read(&args)? };
    match reason_to_skip(built, &wanted_in_ci())? {
        Some(why) => asked.skipped(&why),
        None => return prove(&peer::go()?, &asked),
    }
    Ok(ExitCode::SUCCESS)
}

/// The reason to skip the run, if there is one.
fn reason_to_skip(built: Result<()>, wanted: &str) -> Result<Option<String>> {
    match built {
        _ if wanted == OFF => Ok(Some(format!("{IN_CI} is {OFF}"))),
        Ok(()) => Ok(None),
        Err(why) if wanted == REQUIRED_IN_CI => Err(why.context("nothing may be skipped in CI")),
        Err(why) => Ok(Some(format!("{why:#}"))),
    }
}

/// How Go is called.
struct GoBuild<'a> {
    go: &'a Path,
    is_beside_tests: bool,
}

impl<'a> GoBuild<'a> {
    fn alone(go: &'a Path) -> Self {
        Self { go, is_beside_tests: false }
    }

    fn beside_tests(go: &'a Path) -> Self {
        Self { go, is_beside_tests: true }
    }

    fn command(&self, source: &Path) -> Command {
        let build = peer::go_build(self.go, source);
        if !self.is_beside_tests {
            return build;
        }
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(build.get_program()).args(build.get_args());
        // One package at a time, so that the memory of the linker and the compilers is bounded.
        command.args(["-p", "1"]).current_dir(source);
        command
    }
}

struct RealArguments {
    minors: Vec<&'static GoModule>,
    has_peers: bool,
    has_access: bool,
    /// The arguments as they were typed, for the page about peers.
    typed: String,
    /// Used instead of the environment's seed.
    seed: Option<&'static str>,
    /// For the suite.
    more: Vec<String>,
}

impl RealArguments {
    fn read(args: &[String]) -> Result<Self> {
        let typed = args.join(" ");
        let mut read = Self {
            minors: Vec::new(),
            has_peers: false,
            has_access: false,
            typed,
            seed: None,
            more: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--all" => read.minors = KUBERNETES.iter().collect(),
                "--peers" => read.has_peers = true,
                "--access" => read.has_access = true,
                "--faults" | "--fault" | "--seeds" => {
                    let value = args.next().with_context(|| format!("{arg} needs a value"))?;
                    read.more.extend([arg.clone(), value.clone()]);
                }
                "--postgres" => {
                    services::ensure_postgres();
                    read.more.push(arg.clone());
                }
                minor => read.minors.push(of_minor(minor)?),
            }
        }
        if read.minors.is_empty() {
            read.minors.push(of_minor(USUAL)?);
        }
        if read.has_peers && read.minors.len() > 1 {
            bail!("`real --peers` takes one minor: its page is about one");
        }
        Ok(read)
    }

    fn skipped(&self, why: &str) {
        for module in &self.minors {
            eprintln!("xtask: SKIPPED the promises against Kubernetes {}: {why}", module.minor());
        }
    }
}

fn prove(go: &Path, asked: &RealArguments) -> Result<ExitCode> {
    let peers = asked.has_peers.then_some(&PEERS);
    for module in [&ETCD].into_iter().chain(peers).chain(asked.minors.iter().copied()) {
        ensure_built(&GoBuild::alone(go), module, module.programs, BUILT_OF)?;
    }
    if asked.has_access {
        for module in &asked.minors {
            ensure_built(&GoBuild::alone(go), module, &CONTROLLERS, CONTROLLERS_BUILT_OF)?;
        }
    }
    step("building the controller and the suite");
    build::everything(HostBuild::Playground)?;
    let mut suite = bound_suite()?;
    suite.args(&asked.more);
    if let Some(seed) = asked.seed {
        suite.env(SEED, seed);
    }
    for module in &asked.minors {
        suite.args(["--minor", module.minor()]);
    }
    if asked.has_access {
        suite.arg("--access");
    }
    if asked.has_peers {
        suite.arg("--page").arg(root().join(PEERS_PAGE));
        suite.args(["--command", &format!("cargo xtask real {}", asked.typed)]);
        suite.env("KUBEWITNESS_GO_PEERS", folder().join(PEERS.name).join(PEERS.name));
    }
    suite.env("KUBEWITNESS_PLUGINS", PluginProfile::Quick.folder());
    suite.env("KUBEWITNESS_BIN_DIR", build::target().join("debug"));
    let status = suite.status().context("starting the suite")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The folder with the data of the playground on a real cluster.
const PLAY_DATA: &str = "kubewitness-real-playground";

/// The playground on a real cluster.
pub fn playground(args: &[String]) -> Result<ExitCode> {
    let (mut minor, mut data, mut more) = (USUAL.to_owned(), PLAY_DATA.to_owned(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--data" => data = value()?.clone(),
            "--listen" | "--for" => more.extend([arg.clone(), value()?.clone()]),
            other if other.starts_with('-') => {
                bail!(
                    "`playground --real` knows no {other}: it takes a minor, --data, --listen and --for SECONDS"
                )
            }
            named => minor = named.to_owned(),
        }
    }
    let module = of_minor(&minor)?;
    let go = peer::go().context("real servers are built with Go; `cargo xtask playground` needs none")?;
    let go = GoBuild::alone(&go);
    for needed in [&ETCD, module] {
        ensure_built(&go, needed, needed.programs, BUILT_OF)?;
    }
    ensure_built(&go, module, &CONTROLLERS, CONTROLLERS_BUILT_OF)?;
    step("building the controller and the playground");
    build::everything(HostBuild::Playground)?;
    let mut suite = Command::new(built_suite()?);
    suite.arg("--servers").arg(folder()).args(["--minor", &minor, "--play", &data]).args(more);
    suite.env("KUBEWITNESS_PLUGINS", PluginProfile::Quick.folder());
    suite.env("KUBEWITNESS_BIN_DIR", build::target().join("debug"));
    run::replace(&mut suite)
}

/// Records all cases, or those whose names contain one of `cases`.
fn record(cases: &[String]) -> Result<ExitCode> {
    let go = peer::go().context("recording needs real controllers")?;
    let go = GoBuild::alone(&go);
    let module = of_minor(USUAL)?;
    for needed in [&ETCD, module] {
        ensure_built(&go, needed, needed.programs, BUILT_OF)?;
    }
    ensure_built(&go, module, &CONTROLLERS, CONTROLLERS_BUILT_OF)?;
    ensure_built(&go, &JOB_SETS, JOB_SETS.programs, BUILT_OF)?;
    copy_of_module(&go, &JOB_SETS, "sigs.k8s.io/jobset", JOB_SETS_DEFINITION)?;
    step("building the recorder");
    let mut suite = bound_suite()?;
    suite.args(["--minor", USUAL, "--record"]).arg(root().join(HISTORIES));
    suite.args(cases.iter().flat_map(|case| ["--case", case]));
    let status = suite.status().context("starting the recorder")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The suite, which ends in order when this process ends, even if this one is killed.
fn bound_suite() -> Result<Command> {
    let mut suite = Command::new("setpriv");
    suite.args(["--pdeathsig", "TERM", "--"]).arg(built_suite()?).arg("--servers").arg(folder());
    Ok(suite)
}

/// Builds the program that starts the servers.
fn built_suite() -> Result<PathBuf> {
    // It creates the certificates of the servers.
    if !services::runs("openssl") {
        services::install(&["openssl"]);
    }
    let mut build = cargo();
    build.args(["build", "--locked", "--package", "kubewitness-real"]).args(build::FEATURES_OF_TESTS);
    check(&mut build)?;
    Ok(build::target().join("debug").join("kubewitness-real"))
}

fn of_minor(minor: &str) -> Result<&'static GoModule> {
    KUBERNETES.iter().find(|module| module.minor() == minor).with_context(|| {
        let known: Vec<_> = KUBERNETES.iter().map(GoModule::minor).collect();
        format!(
            "`real` takes minors of Kubernetes ({}), --all, --faults NUMBER, --fault NAME,NAME, --seeds NUMBER, \
             --postgres, --peers and --access; or --record first",
            known.join(", ")
        )
    })
}

fn folder() -> PathBuf {
    build::target().join("real")
}

/// Builds these programs of a module, unless they were built from its present files. `note` names the file
/// that records it.
fn ensure_built(go: &GoBuild<'_>, module: &GoModule, programs: &[(&str, &str)], note: &str) -> Result<()> {
    let source = root().join(MODULES).join(module.name);
    let read = |name: &str| {
        let path = source.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let (pinned, sums) = (read("go.mod")?, read("go.sum")?);
    // A module may have a program of its own in addition to those that it pins.
    let own = read("main.go").unwrap_or_default();
    let (target, stamp) = (folder_of(module), pinned.clone() + &sums + &own);
    let note = target.join(note);
    if std::fs::read_to_string(&note).is_ok_and(|of| of == stamp) {
        return Ok(());
    }
    std::fs::create_dir_all(&target).with_context(|| format!("making {}", target.display()))?;
    for (program, package) in programs {
        step(&format!("building {program} of {}", module.name));
        let begun = Instant::now();
        let mut command = go.command(&source);
        command.args(["-ldflags", &linker_flags(&pinned)?]).env("CGO_ENABLED", "0");
        apt::run(command.arg("-o").arg(target.join(program)).arg(package))?;
        let size = target.join(program).metadata().context("what was built")?.len();
        step(&format!("{program}: {} s, {} MB", begun.elapsed().as_secs(), size / 1_000_000));
    }
    std::fs::write(&note, stamp).with_context(|| format!("writing {}", note.display()))
}

/// Copies a file of a pinned module into the folder of the programs built from it.
fn copy_of_module(go: &GoBuild<'_>, module: &GoModule, package: &str, file: &str) -> Result<()> {
    let source = root().join(MODULES).join(module.name);
    let mut list = Command::new(go.go);
    list.args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", package]).current_dir(source);
    let output = list.output().context("starting go")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("`go list` does not find {package} ({}): {}", output.status, why.trim());
    }
    let folder = String::from_utf8(output.stdout).context("the folder of a module")?;
    let from = Path::new(folder.trim()).join(file);
    let name = from.file_name().with_context(|| format!("{file} names no file"))?;
    // Files in the module cache are read-only, so their rights are not copied.
    let text = std::fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
    let to = folder_of(module).join(name);
    std::fs::write(&to, text).with_context(|| format!("writing {}", to.display()))
}

fn folder_of(module: &GoModule) -> PathBuf {
    folder().join(module.name)
}

/// Flags with the version that a Kubernetes server reports to its clients. Without them it reports one that
/// clients refuse.
fn linker_flags(pinned: &str) -> Result<String> {
    let small = "-s -w".to_owned();
    let Some((_, rest)) = pinned.split_once(REQUIRED) else { return Ok(small) };
    let version = rest.split_whitespace().next().unwrap_or_default();
    let mut parts = version.split('.');
    let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
        bail!("`{REQUIRED}{version}` is no version");
    };
    let of = "-X k8s.io/component-base/version";
    Ok(format!("{small} {of}.gitVersion=v{version} {of}.gitMajor={major} {of}.gitMinor={minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_the_version_that_its_module_pins() {
        let flags = linker_flags("require (\n\tk8s.io/kubernetes v1.36.3\n)").expect("a version");
        assert!(flags.contains("gitVersion=v1.36.3 ") && flags.ends_with("gitMinor=36"), "{flags}");
        assert_eq!(linker_flags("require go.etcd.io/etcd/server/v3 v3.6.16").expect("none"), "-s -w");
    }

    #[test]
    fn in_ci_servers_that_were_not_built_are_skipped_unless_they_are_required() {
        let failed = || Err(anyhow::anyhow!("there is no Go"));
        assert_eq!(reason_to_skip(failed(), "").expect("a reason").as_deref(), Some("there is no Go"));
        reason_to_skip(failed(), REQUIRED_IN_CI).expect_err("nothing may be skipped");
        assert_eq!(reason_to_skip(Ok(()), "").expect("no reason"), None);
        assert_eq!(reason_to_skip(Ok(()), REQUIRED_IN_CI).expect("no reason"), None);
        for built in [Ok(()), failed()] {
            assert!(reason_to_skip(built, OFF).expect("a reason").is_some());
        }
    }

    #[test]
    fn each_module_pins_what_is_built_of_it() {
        for module in KUBERNETES.iter().chain([&ETCD, &JOB_SETS]) {
            let file = root().join(MODULES).join(module.name).join("go.mod");
            let pinned = std::fs::read_to_string(&file).expect("a module");
            let is_kubernetes = module.name.starts_with("kubernetes-");
            let controllers = CONTROLLERS.iter().filter(|_| is_kubernetes);
            for (_, package) in module.programs.iter().chain(controllers) {
                assert!(pinned.contains(package), "{} does not name {package}", file.display());
            }
        }
    }
}

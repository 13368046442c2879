//! `cargo xtask real`: builds real Kubernetes servers from their Go modules, and proves the promises against
//! them. With `--peers` it runs other ways of watching beside the controller, and writes the page about what
//! they miss. With `--record` it records labelled histories of Jobs instead, for which it also builds
//! Kubernetes' controllers, and those of other projects. `cargo xtask playground --real` needs Kubernetes'
//! controllers, too.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::servers::{GoBuild, GoModule, OperatorModule, copy_definitions, ensure_built, folder};
use crate::build::plugins::PluginProfile;
use crate::build::{self, HostBuild, cargo, check, root, step};
use crate::measure::peer;
use crate::run::{self, SEED};
use crate::services;

const ETCD: GoModule = GoModule { name: "etcd", programs: &[("etcd", "go.etcd.io/etcd/server/v3")] };
/// Controllers of kinds that are not Kubernetes' own, for the recorder.
const OPERATORS: [OperatorModule; 4] = [
    OperatorModule {
        module: GoModule { name: "jobset", programs: &[("jobset", "sigs.k8s.io/jobset")] },
        path: "sigs.k8s.io/jobset",
        definitions: "config/components/crd/bases",
    },
    OperatorModule {
        module: GoModule { name: "kueue", programs: &[("kueue", "sigs.k8s.io/kueue/cmd/kueue")] },
        path: "sigs.k8s.io/kueue",
        definitions: "config/components/crd/bases",
    },
    OperatorModule {
        module: GoModule {
            name: "kuberay",
            programs: &[("kuberay", "github.com/ray-project/kuberay/ray-operator")],
        },
        path: "github.com/ray-project/kuberay/ray-operator",
        definitions: "config/crd/bases",
    },
    OperatorModule {
        module: GoModule {
            name: "trainer",
            programs: &[("trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager")],
        },
        path: "github.com/kubeflow/trainer/v2",
        definitions: "manifests/base/crds",
    },
];
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
/// How long after CI's beginning the servers must be built, if nothing requires them. On a slow machine the tests
/// leave them no processor time, and CI has an end.
const BUILT_WITHIN: Duration = Duration::from_secs(55 * 60);
/// The same if something requires them.
const REQUIRED_WITHIN: Duration = Duration::from_secs(4 * 60 * 60);
/// How many faults CI has time for. They are always the same, so that a failure comes from the change.
const FAULTS_IN_CI: &str = "6";
const SEED_IN_CI: &str = "1";
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
    let within = if wanted_in_ci() == REQUIRED_IN_CI { REQUIRED_WITHIN } else { BUILT_WITHIN };
    let minutes = within.as_secs() / 60;
    for module in [&ETCD, of_minor(USUAL)?] {
        let go = GoBuild::beside_tests(&go, within.saturating_sub(build::elapsed()));
        ensure_built(&go, module, module.programs, BUILT_OF)
            .with_context(|| format!("building {} within the first {minutes} minutes of CI", module.name))?;
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
    step("building the recorder");
    let chosen = || cases.iter().flat_map(|case| ["--case", case]);
    let needed = Command::new(built_suite()?).arg("--needs").args(chosen()).output();
    for operator in needed_operators(&needed.context("asking the recorder what it needs")?)? {
        ensure_built(&go, &operator.module, operator.module.programs, BUILT_OF)?;
        copy_definitions(&go, operator)?;
    }
    let mut suite = bound_suite()?;
    suite.args(["--minor", USUAL, "--record"]).arg(root().join(HISTORIES)).args(chosen());
    let status = suite.status().context("starting the recorder")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The controllers that the recorder's answer names.
fn needed_operators(answer: &Output) -> Result<Vec<&'static OperatorModule>> {
    if !answer.status.success() {
        bail!("{}", String::from_utf8_lossy(&answer.stderr).trim());
    }
    let named = String::from_utf8_lossy(&answer.stdout);
    let known = |name: &str| OPERATORS.iter().find(|operator| operator.module.name == name);
    named.lines().map(|name| known(name).with_context(|| format!("{name} has no module"))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let operators = OPERATORS.iter().map(|operator| &operator.module);
        for module in KUBERNETES.iter().chain([&ETCD]).chain(operators) {
            let file = module.source().join("go.mod");
            let pinned = std::fs::read_to_string(&file).expect("a module");
            let is_kubernetes = module.name.starts_with("kubernetes-");
            let controllers = CONTROLLERS.iter().filter(|_| is_kubernetes);
            for (_, package) in module.programs.iter().chain(controllers) {
                assert!(pinned.contains(package), "{} does not name {package}", file.display());
            }
        }
    }
}

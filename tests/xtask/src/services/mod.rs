//! Installs the services that tests need on the machine, if that is possible. It names those that are not
//! available, whose tests count as skipped.

pub mod apt;
mod languages;
mod mysql;
mod shared;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

pub use shared::SharedServers;

use crate::build::{is_root, step};

struct ServiceTool {
    program: &'static str,
    package: &'static str,
}

const TOOLS: [ServiceTool; 10] = [
    ServiceTool { program: "chromium", package: "chromium" },
    ServiceTool { program: "chromedriver", package: "chromium-driver" },
    ServiceTool { program: "kubectl", package: "kubernetes-client" },
    // Tests start their own servers. The package's server is never started.
    ServiceTool { program: "initdb", package: "postgresql" },
    ServiceTool { program: "pgbouncer", package: "pgbouncer" },
    ServiceTool { program: "mariadbd", package: "mariadb-server" },
    ServiceTool { program: "nats-server", package: "nats-server" },
    // Creates certificates for TLS servers.
    ServiceTool { program: "openssl", package: "openssl" },
    // Used to test the shells' completion.
    ServiceTool { program: "fish", package: "fish" },
    ServiceTool { program: "zsh", package: "zsh" },
];

/// The folder outside the path in which Debian has the programs of each PostgreSQL version.
const POSTGRES: &str = "/usr/lib/postgresql";
/// The packages' scripts run this file before they start a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Counts the instructions of the hottest paths. No test needs it.
const COUNTER: ServiceTool = ServiceTool { program: "valgrind", package: "valgrind" };

/// Whether valgrind exists or could be installed.
pub fn ensure_valgrind() -> bool {
    if !runs(COUNTER.program) {
        install(&[COUNTER.package]);
    }
    runs(COUNTER.program)
}

/// The package's programs; its server is never started.
pub fn ensure_postgres() {
    if !runs("initdb") {
        install(&["postgresql"]);
    }
}

/// Debian's build of production's allocator. Compiling its C code takes a minute and a half of processor
/// time, which a build that is only linked and asked for its help does not need.
pub fn installed_jemalloc() -> Option<PathBuf> {
    let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let library = Path::new(&folder).join("libjemalloc.so");
    let find = || library.is_file().then(|| library.clone());
    find().or_else(|| {
        install(&["libjemalloc-dev"]);
        find()
    })
}

/// Tries to install what is missing, as root on Debian. Returns the names of what is still missing.
pub fn ensure() -> Vec<&'static str> {
    let missing: Vec<_> = TOOLS.iter().filter(|tool| !runs(tool.program)).collect();
    if !missing.is_empty() {
        install(&missing.iter().map(|tool| tool.package).collect::<Vec<_>>());
    }
    let languages = languages::ensure();
    let missing = TOOLS.iter().map(|tool| tool.program).filter(|program| !runs(program));
    missing.chain(languages).chain((!mysql::ensure()).then_some(mysql::NAME)).collect()
}

/// Serialises installations: Debian allows one at a time, and the end of one would remove the policy of
/// another.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Installs packages as root on Debian, and does nothing elsewhere. If some are not available, the others are
/// installed one by one.
pub fn install(packages: &[&str]) {
    if !is_root() || !runs("apt-get") {
        return;
    }
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    step(&format!("installing {}", packages.join(", ")));
    // An installation must not start a service, which this file prevents. It is removed afterwards; an
    // existing one is left alone.
    let policy = PlacedFile::new(POLICY, "#!/bin/sh\nexit 101\n");
    apt(&["update", "--quiet"]);
    const INSTALL: [&str; 4] = ["install", "--yes", "--quiet", "--no-install-recommends"];
    if !apt(&[&INSTALL[..], packages].concat()) {
        for package in packages {
            apt(&[&INSTALL[..], &[package]].concat());
        }
    }
    drop(policy);
}

/// A file that exists until this is dropped.
struct PlacedFile(Option<&'static str>);

impl PlacedFile {
    fn new(path: &'static str, text: &str) -> Self {
        if Path::new(path).exists() {
            return Self(None);
        }
        let placed = std::fs::write(path, text)
            .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)));
        if let Err(error) = placed {
            eprintln!("xtask: {path} can't be written: {error}");
        }
        Self(Some(path))
    }
}

impl Drop for PlacedFile {
    fn drop(&mut self) {
        if let Some(path) = self.0
            && let Err(error) = std::fs::remove_file(path)
        {
            eprintln!("xtask: {path} is left: {error}");
        }
    }
}

/// Runs apt, and returns whether it succeeded. If it failed, the caller finds what is still missing, too.
fn apt(args: &[&str]) -> bool {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    let has_succeeded = status.is_ok_and(|status| status.success());
    if !has_succeeded {
        eprintln!("xtask: `apt-get {}` failed", args.join(" "));
    }
    has_succeeded
}

/// The path, and folders outside an ordinary user's path, because servers are installed elsewhere.
pub fn search_path() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    folders.into_iter().chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
}

pub fn runs(program: &str) -> bool {
    let versions = std::fs::read_dir(POSTGRES).into_iter().flatten().flatten();
    search_path()
        .chain(versions.map(|entry| entry.path().join("bin")))
        .any(|folder| folder.join(program).is_file())
}

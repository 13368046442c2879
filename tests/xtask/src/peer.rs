//! Builds the benchmarks' peer in Go: our small program on client-go, from Debian's packages alone. Debian 12
//! has no package of client-go. There Debian's source package of Kubernetes has it with everything that it
//! needs. Go itself downloads nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::build::{root, step, target};
use crate::services;
use crate::services::apt::{Apt, MIRROR, run};

/// Where Debian puts the sources of Go packages.
const PACKAGED: &str = "/usr/share/gocode";
/// The database drivers in it, each with its import path and its package. The peer supports the databases
/// whose drivers exist.
const DRIVERS: [(&str, &str, &str); 3] = [
    ("src/github.com/mattn/go-sqlite3", "sqlite libsqlite3", "golang-github-mattn-go-sqlite3-dev"),
    ("src/github.com/lib/pq", "postgres", "golang-github-lib-pq-dev"),
    ("src/github.com/go-sql-driver/mysql", "mysql", "golang-github-go-sql-driver-mysql-dev"),
];
/// The import path of our program within the sources of Kubernetes.
const INSIDE: &str = "k8s.io/kubernetes/cmd/kubewitness-peer";

/// Returns `None` if it can't be built. It prints the reason, and the benchmarks say that they run without
/// it.
pub fn client_go() -> Option<PathBuf> {
    let missing = || DRIVERS.iter().filter(|(folder, ..)| !Path::new(PACKAGED).join(folder).is_dir());
    if !services::runs("go") || missing().next().is_some() {
        let packages: Vec<_> = missing().map(|(.., package)| *package).chain(["golang-go"]).collect();
        services::install(&packages);
    }
    if !services::runs("go") {
        return None;
    }
    match built() {
        Ok(program) => Some(program),
        Err(why) => {
            eprintln!("xtask: the peer on client-go can't be built: {why:#}");
            None
        }
    }
}

fn built() -> Result<PathBuf> {
    let folder = target().join("clientgo");
    let (program, source) = (folder.join("peer"), root().join("tests/bench/peers/clientgo"));
    let files = ["main.go", "sqlite.go", "postgres.go", "mysql.go"].map(|name| source.join(name));
    let age = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let newest = files.iter().filter_map(|file| age(file).ok()).max();
    if age(&program).is_ok_and(|built| newest.is_some_and(|written| built > written)) {
        return Ok(program);
    }
    fs::create_dir_all(&folder)?;
    let (gopath, what) = if Path::new(PACKAGED).join("src/k8s.io/client-go/tools/cache").is_dir() {
        (PACKAGED.into(), source.display().to_string())
    } else {
        let gopath = folder.join("gopath");
        let place = gopath.join("src").join(INSIDE);
        if !place.is_dir() {
            fetch(&folder, &gopath.join("src/k8s.io"))?;
            fs::create_dir_all(&place)?;
        }
        for file in &files {
            fs::copy(file, place.join(file.file_name().unwrap_or_default()))?;
        }
        (format!("{}:{PACKAGED}", gopath.display()), INSIDE.to_owned())
    };
    step("building the peer on client-go");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program);
    let there = DRIVERS.iter().filter(|(folder, ..)| Path::new(PACKAGED).join(folder).is_dir());
    go.args(["-tags", &there.map(|(_, tags, _)| *tags).collect::<Vec<_>>().join(" ")]);
    go.arg(what);
    go.env("GO111MODULE", "off").env("GOFLAGS", "").env("GOPATH", gopath);
    run(go.env("GOCACHE", folder.join("cache")))?;
    Ok(program)
}

/// Fetches Debian's source package of Kubernetes and lays it out for Go. The machine's package manager does
/// not notice.
fn fetch(folder: &Path, into: &Path) -> Result<()> {
    step("fetching Debian's sources of client-go");
    let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("it is no release of Debian")?;
    let apt = Apt::new(folder, &format!("deb-src {MIRROR} {codename} main"))?;
    apt.run(&["update"])?;
    apt.run(&["source", "--download-only", "kubernetes"])?;
    let named =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".orig.tar."));
    let archive = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).find(|path| named(path));
    let place = into.join("kubernetes");
    fs::create_dir_all(&place)?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive.context("apt-get left no archive")?);
    run(tar.args(["--strip-components", "1", "-C"]).arg(&place))?;
    ensure!(place.join("vendor/k8s.io/client-go").exists(), "the archive has no client-go");
    Ok(())
}

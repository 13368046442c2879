//! Builds the benchmarks' peer in Go: a small program on client-go. Its `go.mod` pins the versions of
//! client-go and everything that it needs, and its `go.sum` their content. Go fetches them from the machine's
//! proxy.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::build::{root, step, target};
use crate::services;
use crate::services::apt::run;

const SOURCE: &str = "tests/bench/peers/clientgo";
/// The folder into which Go's instructions unpack its archive.
const GO_FOLDER: &str = "/usr/local/go/bin/go";

/// Builds the program. `None` if that fails: the reason is printed, and the benchmarks report that they run
/// without it.
pub fn client_go(has_databases: bool) -> Result<Option<PathBuf>> {
    match go().and_then(|go| build(&go, has_databases)) {
        Ok(program) => Ok(Some(program)),
        Err(why) => {
            eprintln!("xtask: SKIPPED the peer on client-go: {why:#}");
            Ok(None)
        }
    }
}

/// The Go installation of this machine.
pub fn go() -> Result<PathBuf> {
    if services::runs("go") {
        return Ok("go".into());
    }
    if Path::new(GO_FOLDER).is_file() {
        return Ok(GO_FOLDER.into());
    }
    bail!("there is no Go: unpack it to /usr/local/go, or install it into the path")
}

/// A build with the versions that `go.mod` and `go.sum` of the folder pin. The caller adds the packages.
pub fn go_build(go: &Path, folder: &Path) -> Command {
    let mut command = Command::new(go);
    command.args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false"]).current_dir(folder);
    command
}

/// Go itself caches builds.
fn build(go: &Path, has_databases: bool) -> Result<PathBuf> {
    step("building the peer on client-go");
    let program = target().join(if has_databases { "clientgo-databases" } else { "clientgo" });
    let mut command = go_build(go, &root().join(SOURCE));
    command.arg("-o").arg(&program);
    if has_databases {
        command.args(["-tags", "databases"]);
    }
    run(command.arg("."))?;
    Ok(program)
}

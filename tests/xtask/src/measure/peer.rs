//! Builds the benchmarks' peer in Go: a small program on client-go. Its `go.mod` pins client-go and everything that it
//! needs, its `go.sum` their bytes. Go fetches them from the proxy that the machine names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::build::{root, step, target};
use crate::services;
use crate::services::apt::run;

const SOURCE: &str = "tests/bench/peers/clientgo";
/// Where Go's own archive is unpacked, as its page tells people to.
const UNPACKED: &str = "/usr/local/go/bin/go";

/// Returns `None` if it can't be built. It prints the reason, and the benchmarks say that they run without it.
pub fn client_go(has_databases: bool) -> Result<Option<PathBuf>> {
    match go().and_then(|go| build(&go, has_databases)) {
        Ok(program) => Ok(Some(program)),
        Err(why) => {
            eprintln!("xtask: SKIPPED the peer on client-go: {why:#}");
            Ok(None)
        }
    }
}

/// The Go of this machine.
pub fn go() -> Result<PathBuf> {
    if services::runs("go") {
        return Ok("go".into());
    }
    if Path::new(UNPACKED).is_file() {
        return Ok(UNPACKED.into());
    }
    bail!("there is no Go: unpack it to /usr/local/go, or install it into the path")
}

/// Builds with what `go.mod` and `go.sum` of the folder pin. The caller adds what is built.
pub fn go_build(go: &Path, folder: &Path) -> Command {
    let mut command = Command::new(go);
    command.args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false"]).current_dir(folder);
    command
}

/// Go itself knows what it has built already.
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

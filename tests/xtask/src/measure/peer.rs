//! Builds the benchmarks' peer in Go: a small program on client-go. Its `go.mod` pins client-go and everything that it
//! needs, its `go.sum` their bytes. Go fetches them from the proxy that the machine names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::build::{root, step, target};
use crate::services;
use crate::services::apt::run;

const SOURCE: &str = "tests/bench/peers/clientgo";
/// Where Go's own archive is unpacked, as its page tells people to.
const UNPACKED: &str = "/usr/local/go/bin/go";

/// Returns `None` if it can't be built. It prints the reason, and the benchmarks say that they run without it.
pub fn client_go(has_databases: bool) -> Result<Option<PathBuf>> {
    let built = match go() {
        Some(go) => build(&go, has_databases),
        None => {
            Err(anyhow::anyhow!("there is no Go: unpack it to /usr/local/go, or install it into the path"))
        }
    };
    match built {
        Ok(program) => Ok(Some(program)),
        Err(why) => {
            eprintln!("xtask: SKIPPED the peer on client-go: {why:#}");
            Ok(None)
        }
    }
}

/// The Go of this machine.
pub fn go() -> Option<PathBuf> {
    if services::runs("go") {
        return Some("go".into());
    }
    Path::new(UNPACKED).is_file().then(|| UNPACKED.into())
}

/// Go itself knows what it has built already.
fn build(go: &Path, has_databases: bool) -> Result<PathBuf> {
    step("building the peer on client-go");
    let program = target().join(if has_databases { "clientgo-databases" } else { "clientgo" });
    let mut command = Command::new(go);
    command.args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o"]).arg(&program);
    if has_databases {
        command.args(["-tags", "databases"]);
    }
    run(command.arg(".").current_dir(root().join(SOURCE)))?;
    Ok(program)
}

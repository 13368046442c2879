//! The programs of PostgreSQL and their arguments.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{PASSWORD, USER, folder_with, guard, output, search_path};

/// Debian keeps the programs of each version in a folder that is in nobody's path.
const DEBIAN: &str = "/usr/lib/postgresql";

pub fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut versions: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort_unstable();
    folder_with(versions.into_iter().rev().chain(search_path()), &["initdb", "postgres", "psql"])
}

fn program(name: &str) -> Result<PathBuf> {
    Ok(programs().context("PostgreSQL is not installed")?.join(name))
}

pub fn install(folder: &Path) -> Result<()> {
    let password = folder.join("password");
    std::fs::write(&password, PASSWORD).context("the password's file")?;
    let mut initdb = guard::command(folder, &program("initdb")?);
    initdb.args(["--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync", "--username", USER]);
    initdb.arg("--pwfile").arg(password).arg("--pgdata").arg(folder.join("data"));
    output(&mut initdb).map(drop)
}

pub fn server(folder: &Path, port: u16) -> Result<Vec<String>> {
    let data = folder.join("data").to_string_lossy().into_owned();
    let mut command: Vec<String> = vec![program("postgres")?.to_string_lossy().into_owned()];
    command.extend(["-D".to_owned(), data, "-p".to_owned(), port.to_string()]);
    let settings = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        // What a process that is killed has written, the kernel keeps.
        "fsync=off",
        "shared_buffers=32MB",
        "max_connections=100",
        "log_min_messages=warning",
    ];
    command.extend(settings.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]));
    Ok(command)
}

pub fn client(port: u16, database: Option<&str>) -> Result<Command> {
    let mut psql = Command::new(program("psql")?);
    psql.args(["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", USER]);
    psql.args(["-p", &port.to_string(), "-d", database.unwrap_or("postgres"), "-c"]);
    psql.env("PGPASSWORD", PASSWORD).env("PGCONNECT_TIMEOUT", "5");
    Ok(psql)
}

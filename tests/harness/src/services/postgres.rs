//! The programs of PostgreSQL and their arguments.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::templates::{DATA, hash_version};
use super::{
    DatabaseServer, PASSWORD, PAUSE, SqlService, USER, WITHIN, folder_with, guard, output, search_path,
};

/// Debian keeps the programs of each version in a folder that is in nobody's path.
const DEBIAN: &str = "/usr/lib/postgresql";

pub fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut versions: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort_unstable();
    folder_with(versions.into_iter().rev().chain(search_path()), &["initdb", "postgres"])
}

fn program(name: &str) -> Result<PathBuf> {
    Ok(programs().context("PostgreSQL is not installed")?.join(name))
}

/// Segments of the log are as small as can be: the server makes one of full size at once.
const INITIALIZATION: [&str; 7] = [
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--no-locale",
    "--no-sync",
    "--wal-segsize=1",
    "--username",
    USER,
];

pub fn install(folder: &Path) -> Result<()> {
    let password = folder.join("password");
    std::fs::write(&password, PASSWORD).context("the password's file")?;
    let mut initdb = guard::command(folder, &program("initdb")?);
    initdb.args(INITIALIZATION).arg("--pwfile").arg(password).arg("--pgdata").arg(folder.join(DATA));
    output(&mut initdb).map(drop)
}

/// Hashes everything that the data depends on.
pub fn shape(hasher: &mut impl Hasher) -> Result<()> {
    hash_version(&program("postgres")?, hasher)?;
    (INITIALIZATION, PASSWORD).hash(hasher);
    Ok(())
}

pub fn server(folder: &Path, port: u16) -> Result<Vec<String>> {
    let data = folder.join(DATA).to_string_lossy().into_owned();
    let mut command: Vec<String> = vec![program("postgres")?.to_string_lossy().into_owned()];
    command.extend(["-D".to_owned(), data, "-p".to_owned(), port.to_string()]);
    let settings = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        // What a process that is killed has written, the kernel keeps.
        "fsync=off",
        "shared_buffers=32MB",
        "max_connections=100",
        // A checkpoint writes all that changed; by itself it would come after 64 small segments.
        "max_wal_size=1GB",
        "log_min_messages=warning",
    ];
    command.extend(settings.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]));
    Ok(command)
}

const FOLLOWERS: &str = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";

/// A PostgreSQL alone has these.
impl DatabaseServer {
    /// A standby of this server. From now on each commit waits until the standby has it, so a standby that takes over has
    /// every commit that was answered.
    pub fn start_standby(&self) -> Result<Self> {
        let mut standby = Self::without_data(SqlService::Postgres)?;
        let folder = standby.folder()?;
        let mut copy = guard::command(folder, &program("pg_basebackup")?);
        copy.env("PGPASSWORD", PASSWORD).args(["--host=127.0.0.1", "--username", USER, "--port"]);
        copy.arg(self.port.to_string()).args(["--checkpoint=fast", "--no-sync", "--wal-method=stream"]);
        output(copy.arg("--write-recovery-conf").arg("--pgdata").arg(folder.join(DATA)))?;
        standby.start_at_free_port()?;
        self.run(None, "ALTER SYSTEM SET synchronous_standby_names = '*'")?;
        self.run(None, "SELECT pg_reload_conf()")?;
        let deadline = Instant::now() + WITHIN;
        while self.run(None, FOLLOWERS)?.trim() != "1" {
            ensure!(Instant::now() < deadline, "the standby does not follow; it said:\n{}", standby.log());
            std::thread::sleep(PAUSE);
        }
        Ok(standby)
    }

    /// A standby takes over. It waits for no other standby.
    pub fn promote(&self) -> Result<()> {
        let promoted = self.run(None, "SELECT pg_promote()")?;
        ensure!(promoted.trim() == "t", "pg_promote answered {promoted}; the server said:\n{}", self.log());
        Ok(())
    }
}

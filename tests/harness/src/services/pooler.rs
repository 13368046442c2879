//! PgBouncer in front of a PostgreSQL server of the tests.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::guard::{self, ServiceGuard};
use super::{DatabaseServer, PASSWORD, PAUSE, PORTS, USER, WITHIN, folder_with, search_path};
use crate::free_port;

const PROGRAM: &str = "pgbouncer";
const SETTINGS: &str = "settings";

/// A pooler of a test's own.
pub struct Pooler {
    server: u16,
    port: u16,
    folder: PathBuf,
    guard: Option<ServiceGuard>,
}

impl Pooler {
    /// `mode` is what PgBouncer calls `pool_mode`. Where it is not installed, `test` is counted as skipped.
    pub fn start(server: &DatabaseServer, mode: &str, test: &str) -> Result<Option<Self>> {
        let Some(programs) = folder_with(search_path(), &[PROGRAM]) else {
            crate::skip(test, "PgBouncer is not installed");
            return Ok(None);
        };
        let folder =
            tempfile::Builder::new().prefix("kubewitness-pgbouncer-").tempdir().context("a folder")?;
        std::fs::write(folder.path().join("users"), format!("\"{USER}\" \"{PASSWORD}\"\n"))?;
        let command = [programs.join(PROGRAM).to_string_lossy().into_owned(), SETTINGS.into()];
        // From here on the guard removes it, also when this process is killed.
        let mut pooler = Self { server: server.port(), port: 0, folder: folder.keep(), guard: None };
        for _ in 0..PORTS {
            pooler.port = free_port()?;
            pooler.write_settings(mode)?;
            let log = pooler.folder.join("pooler.log");
            let guard = ServiceGuard::start(&command, &pooler.folder, &log)?;
            if answers(&guard, pooler.port) {
                pooler.guard = Some(guard);
                return Ok(Some(pooler));
            }
            guard.end("KILL", WITHIN)?;
        }
        bail!("PgBouncer does not answer")
    }

    fn write_settings(&self, mode: &str) -> Result<()> {
        let (server, port, users) = (self.server, self.port, self.folder.join("users"));
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {}\npool_mode = {mode}\n",
            users.display()
        );
        std::fs::write(self.folder.join(SETTINGS), text).context("the pooler's settings")?;
        guard::give_away(&self.folder)
    }

    /// As its operator would, while clients are connected.
    pub fn change_mode(&self, mode: &str) -> Result<()> {
        self.write_settings(mode)?;
        let guard = self.guard.as_ref().context("the pooler does not run")?;
        guard::signal("HUP", &[guard.pid])
    }

    /// The address of a server's database, by way of the pooler.
    pub fn url(&self, address: &str) -> Result<String> {
        let (user, rest) = address.split_once('@').context("an address with a user")?;
        let (_, database) = rest.split_once('/').context("an address with a database")?;
        Ok(format!("{user}@127.0.0.1:{}/{database}", self.port))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.clean_up();
        } else if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left: {error}", self.folder.display());
        }
    }
}

/// Another program may have come to the port first: then it ends by itself.
fn answers(guard: &ServiceGuard, port: u16) -> bool {
    let deadline = Instant::now() + WITHIN;
    while guard::is_alive(guard.pid) && Instant::now() < deadline {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return guard::is_alive(guard.pid);
        }
        std::thread::sleep(PAUSE);
    }
    false
}

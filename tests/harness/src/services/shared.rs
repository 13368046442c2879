//! Servers that tests share: one of each kind for a whole run, or else one for each process.
//!
//! Each test of a run is a process of its own. The runner starts `kubewitness-test-services`, which starts the servers and
//! prints a variable for each. The runner gives the variables to the tests.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use ring::rand::{SecureRandom, SystemRandom};

use super::{DatabaseServer, SqlService, guard};

/// The beginning of the names of tests' databases.
const PREFIX: &str = "test_";

/// The variable that holds the port of a run's server.
pub fn variable(service: SqlService) -> String {
    format!("KUBEWITNESS_SHARED_{}", service.to_string().to_uppercase())
}

/// The port of the run's server, where the runner has started one.
pub fn port(service: SqlService) -> Result<Option<u16>> {
    let variable = variable(service);
    let Some(port) = std::env::var_os(&variable) else { return Ok(None) };
    let port = port.to_str().and_then(|port| port.parse().ok());
    Ok(Some(port.with_context(|| format!("{variable} holds no port"))?))
}

/// The server that all tests of this process share; nobody may stop it. Where there is none to
/// start, `test` is counted as skipped.
pub fn shared_server(service: SqlService, test: &str) -> Option<&'static DatabaseServer> {
    static SERVERS: [OnceLock<Option<DatabaseServer>>; SqlService::ALL.len()] =
        [const { OnceLock::new() }; SqlService::ALL.len()];
    let server = SERVERS[service as usize].get_or_init(|| {
        let started = DatabaseServer::shared(service);
        started.unwrap_or_else(|error| panic!("{service} can't be started: {error:#}"))
    });
    if server.is_none() {
        crate::skip(test, &format!("{service} is not installed"));
    }
    server.as_ref()
}

/// A name that no other database of the server has: of this process, and a chance number since others may have had
/// this process id before.
pub fn database_name() -> String {
    static START: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = START.get_or_init(|| {
        let mut bytes = [0; 4];
        SystemRandom::new().fill(&mut bytes).expect("the system has random bytes");
        u32::from_le_bytes(bytes)
    });
    format!("{PREFIX}{}_{start:x}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The process that made the database of this name.
fn owner(database: &str) -> Option<u32> {
    database.strip_prefix(PREFIX)?.split('_').next()?.parse().ok()
}

/// Servers of each installed kind, for a whole run.
pub struct RunServers(Vec<DatabaseServer>);

impl RunServers {
    /// Starts all at the same time.
    pub fn start() -> Result<Self> {
        let started = std::thread::scope(|scope| {
            let start = |service| move || DatabaseServer::start_for_all(service);
            let starts = SqlService::ALL.map(|service| scope.spawn(start(service)));
            starts.map(|start| start.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let started: Result<Vec<_>> = started.into_iter().collect();
        Ok(Self(started?.into_iter().flatten().collect()))
    }

    /// `NAME=value` for each, then an empty line.
    pub fn tell(&self, out: &mut impl Write) -> Result<()> {
        for server in &self.0 {
            writeln!(out, "{}={}", variable(server.service()), server.port())?;
        }
        writeln!(out)?;
        out.flush().context("telling where the servers are")
    }

    /// Drops the databases whose processes have ended. Otherwise those of PostgreSQL would take gigabytes.
    pub fn drop_unused(&self) -> Result<()> {
        for server in &self.0 {
            let (all, drop) = match server.service() {
                SqlService::Postgres => ("SELECT datname FROM pg_database", " WITH (FORCE)"),
                SqlService::MariaDb | SqlService::MySql => ("SHOW DATABASES", ""),
            };
            let names = server.run(None, all)?;
            let is_unused = |name: &&str| owner(name).is_some_and(|owner| !guard::is_alive(owner));
            for name in names.lines().filter(is_unused) {
                server.run(None, &format!("DROP DATABASE IF EXISTS {name}{drop}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_databases_name_is_used_once_tells_its_process_and_leaves_room_for_names_of_users() {
        let (one, two) = (database_name(), database_name());
        assert_ne!(one, two);
        assert_eq!(owner(&one), Some(std::process::id()));
        assert_eq!((owner("postgres"), owner("test")), (None, None));
        // MySQL's users have at most 32 letters, and some are named for their database.
        let longest = format!("guest_{PREFIX}{}_{:x}_{}", 1 << 22, u32::MAX, 99);
        assert!(longest.len() <= 32, "{longest}");
    }
}

//! PostgreSQL, MariaDB, MySQL and NATS for tests: real servers, on loopback, each in a temporary folder of its own. A
//! server that runs on the machine already is never touched.
//!
//! Everything here blocks, so that one server can serve all tests of a binary, whose runtimes come
//! and go. A guard starts each server. When the test's process ends, for whatever reason, the guard ends the server
//! by its process id and removes its folder.

mod chats;
mod disk;
mod guard;
mod mysql;
mod nats;
mod postgres;
pub mod tls;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use self::chats::{ADDRESS_SECRET, Chats, SIGNING_SECRET};
pub use self::disk::SmallDisk;
use self::guard::Guard;
pub use self::nats::MessageServer;
use crate::free_port;

/// The only user that tests know.
const USER: &str = "kubewitness";
/// Said in URLs alone: a test can look for it where it must not be.
pub const PASSWORD: &str = "hush-4711";
/// Recovery after a kill takes seconds; a machine that compiles meanwhile takes its time.
const WITHIN: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(20);
/// Tries to find a port that is still free when the server comes to it.
const PORTS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Postgres,
    MariaDb,
    MySql,
}

impl Service {
    pub const ALL: [Self; 3] = [Self::Postgres, Self::MariaDb, Self::MySql];

    /// What its addresses begin with, and what the configuration calls it.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb | Self::MySql => "mysql",
        }
    }

    /// Whether it can be started on this machine.
    pub fn is_installed(self) -> bool {
        match self {
            Self::Postgres => postgres::programs().is_some(),
            Self::MariaDb | Self::MySql => mysql::programs(self).is_some(),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
            Self::MySql => "MySQL",
        })
    }
}

/// A server of a test's own: it may be stopped, killed, paused, and started again on its data.
pub struct DatabaseServer {
    service: Service,
    folder: PathBuf,
    port: u16,
    args: Vec<String>,
    guard: Option<Guard>,
    databases: AtomicU32,
}

/// The server that all tests of this binary share; nobody may stop it. Where there is none to
/// start, `test` is counted as skipped.
pub fn shared_server(service: Service, test: &str) -> Option<&'static DatabaseServer> {
    static SERVERS: [OnceLock<Option<DatabaseServer>>; Service::ALL.len()] =
        [const { OnceLock::new() }; Service::ALL.len()];
    let server = SERVERS[service as usize].get_or_init(|| {
        let started = DatabaseServer::start(service, &[]);
        started.unwrap_or_else(|error| panic!("{service} can't be started: {error:#}"))
    });
    if server.is_none() {
        crate::skip(test, &format!("{service} is not installed"));
    }
    server.as_ref()
}

impl DatabaseServer {
    /// `None` where it is not installed. `args` come last on the server's command line, so that
    /// they can undo what is set here for speed.
    pub fn start(service: Service, args: &[&str]) -> Result<Option<Self>> {
        if !service.is_installed() {
            return Ok(None);
        }
        Self::start_in(service, args, |_| Ok(Vec::new())).map(Some)
    }

    /// One that can be spoken with over TLS, and the file of the authority that vouches for it.
    pub fn start_with_tls(service: Service) -> Result<Option<(Self, PathBuf)>> {
        if !service.is_installed() || !tls::is_installed() {
            return Ok(None);
        }
        let mut authority = PathBuf::new();
        let server = Self::start_in(service, &[], |folder| {
            let made = tls::make(folder)?;
            let settings = [("cert", &made.certificate), ("key", &made.key)];
            authority = made.authority;
            Ok(match service {
                Service::Postgres => {
                    let set = |(what, path): (&str, &PathBuf)| {
                        ["-c".to_owned(), format!("ssl_{what}_file={}", path.display())]
                    };
                    let on = ["-c".to_owned(), "ssl=on".to_owned()];
                    on.into_iter().chain(settings.into_iter().flat_map(set)).collect()
                }
                Service::MariaDb | Service::MySql => {
                    settings.map(|(what, path)| format!("--ssl-{what}={}", path.display())).to_vec()
                }
            })
        })?;
        Ok(Some((server, authority)))
    }

    fn start_in(
        service: Service,
        args: &[&str],
        more: impl FnOnce(&Path) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let name = format!("kubewitness-{}-", service.to_string().to_lowercase());
        let folder = tempfile::Builder::new().prefix(&name).tempdir().context("a temporary folder")?;
        guard::give_away(folder.path())?;
        let args = more(folder.path())?.into_iter().chain(args.iter().map(ToString::to_string)).collect();
        guard::give_away(folder.path())?;
        // From here on the guard removes it, also when this process is killed.
        let folder = folder.keep();
        let mut server =
            Self { service, folder, port: 0, args, guard: None, databases: AtomicU32::default() };
        match server.service {
            Service::Postgres => postgres::install(&server.folder)?,
            service => mysql::install(service, &server.folder)?,
        }
        for left in (0..PORTS).rev() {
            server.port = free_port()?;
            match server.start_again() {
                Ok(()) => break,
                Err(error) if left == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(server)
    }

    pub fn service(&self) -> Service {
        self.service
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of a database, with user and password.
    pub fn url(&self, database: &str) -> String {
        let scheme = self.service.scheme();
        format!("{scheme}://{USER}:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// A new, empty database; gives its address.
    pub fn create_database(&self) -> Result<String> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.run(None, &format!("CREATE DATABASE {name}"))?;
        Ok(self.url(&name))
    }

    /// Runs statements with the service's own client and gives what it printed: rows as lines,
    /// columns with tabs between.
    pub fn run(&self, database: Option<&str>, statements: &str) -> Result<String> {
        let mut command = match self.service {
            Service::Postgres => postgres::client(self.port, database)?,
            service => mysql::client(service, self.port, database)?,
        };
        output(command.arg(statements))
    }

    /// Those of MySQL and MariaDB that go on.
    pub fn sessions(&self) -> Result<Vec<mysql::Session>> {
        self.run(None, mysql::SESSIONS)?.lines().map(mysql::session).collect()
    }

    /// For the next start.
    pub fn set_args(&mut self, args: Vec<String>) {
        self.args = args;
    }

    /// What it has lies here, and goes with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the server's user the owner.
    pub fn own(&self, folder: &Path) -> Result<()> {
        guard::give_away(folder)
    }

    pub fn pid(&self) -> Result<u32> {
        Ok(self.guard.as_ref().with_context(|| format!("{} does not run", self.service))?.pid)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_else(|error| format!("({error})"))
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Starts it on the data that is there, at the same address, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        if self.guard.is_some() {
            bail!("{} runs already", self.service);
        }
        let mut command = match self.service {
            Service::Postgres => postgres::server(&self.folder, self.port)?,
            service => mysql::server(service, &self.folder, self.port)?,
        };
        command.extend(self.args.iter().cloned());
        let guard = self.guard.insert(Guard::start(&command, &self.folder, &self.log_file())?);
        let (pid, deadline) = (guard.pid, Instant::now() + WITHIN);
        loop {
            let Err(error) = self.run(None, "SELECT 1") else { return Ok(()) };
            let ended = !guard::is_alive(pid);
            if ended || Instant::now() > deadline {
                self.kill()?;
                let what = if ended { "ended at once" } else { "does not answer" };
                let log = self.log();
                return Err(error.context(format!("{} {what}; it said:\n{log}", self.service)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// An orderly end, as its operator would ask for: clients are disconnected, nothing waits for
    /// them.
    pub fn stop(&mut self) -> Result<()> {
        match self.service {
            Service::Postgres => self.end("INT"),
            Service::MariaDb | Service::MySql => self.end("TERM"),
        }
    }

    /// As fast as it can end by itself, with recovery at the next start. MySQL and MariaDB
    /// know no such end: they are killed.
    pub fn stop_at_once(&mut self) -> Result<()> {
        match self.service {
            Service::Postgres => self.end("QUIT"),
            Service::MariaDb | Service::MySql => self.kill(),
        }
    }

    /// SIGKILL to all its processes.
    pub fn kill(&mut self) -> Result<()> {
        self.end("KILL")
    }

    fn end(&mut self, signal: &str) -> Result<()> {
        let guard = self.guard.take().with_context(|| format!("{} does not run", self.service))?;
        let ended = guard.end(signal, WITHIN);
        ended.with_context(|| format!("{} said:\n{}", self.service, self.log()))
    }

    /// SIGSTOP to all its processes: connections stay open, and nobody answers.
    pub fn pause(&self) -> Result<()> {
        guard::freeze(self.pid()?, WITHIN)
    }

    /// SIGCONT, after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        guard::signal("CONT", &guard::family(self.pid()?))
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.clean_up();
        } else if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left: {error}", self.folder.display());
        }
    }
}

/// Runs a program to its end; what it printed, or what it complained about.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{:?} ended with {}: {}", command.get_program(), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first folder that has all of these programs.
fn folder_with(folders: impl IntoIterator<Item = PathBuf>, programs: &[&str]) -> Option<PathBuf> {
    folders.into_iter().find(|folder| programs.iter().all(|program| folder.join(program).is_file()))
}

fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An ordinary user's path has no folders of servers.
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(|folder| Path::new(folder).to_path_buf()))
        .collect()
}

#[cfg(test)]
mod tests;

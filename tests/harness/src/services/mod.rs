//! PostgreSQL, MariaDB, MySQL and NATS for tests: real servers, on loopback, each in a temporary folder of its own. A
//! server that runs on the machine already is never touched.
//!
//! Everything here blocks, so that one server can serve all tests of a process, whose runtimes come
//! and go. A guard starts each server. When the process ends that started it, for whatever reason, the guard ends the
//! server by its process id and removes its folder.

mod chats;
mod disk;
mod guard;
mod mysql;
mod nats;
mod pooler;
mod postgres;
mod shared;
mod statements;
mod templates;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use self::chats::{ADDRESS_SECRET, ChatServices, SIGNING_SECRET};
pub use self::disk::SmallDisk;
use self::guard::ServiceGuard;
pub use self::nats::{MessageCluster, MessageServer};
pub use self::pooler::Pooler;
pub use self::shared::{RunServers, shared_server};
use self::statements::StatementRunner;
use crate::{free_port, tls};

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
pub enum SqlService {
    Postgres,
    MariaDb,
    MySql,
}

impl SqlService {
    pub const ALL: [Self; 3] = [Self::Postgres, Self::MariaDb, Self::MySql];

    /// Returns the beginning of its addresses, which is also its name in the configuration.
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

impl fmt::Display for SqlService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
            Self::MySql => "MySQL",
        })
    }
}

/// A server of a test's own, which may be stopped, killed, paused, and started again on its data; or one that tests share.
pub struct DatabaseServer {
    service: SqlService,
    port: u16,
    statements: StatementRunner,
    /// `None`: somebody else's, whom other tests need.
    own: Option<OwnServer>,
}

struct OwnServer {
    folder: PathBuf,
    args: Vec<String>,
    guard: Option<ServiceGuard>,
}

impl DatabaseServer {
    /// `None` where it is not installed. `args` come last on the server's command line, so that
    /// they can undo what is set here for speed.
    pub fn start(service: SqlService, args: &[&str]) -> Result<Option<Self>> {
        if !service.is_installed() {
            return Ok(None);
        }
        Self::start_in(service, args, |_| Ok(Vec::new())).map(Some)
    }

    /// The run's server of this kind, for a test that needs only databases of its own. Where a run has none, one is
    /// started. `None` where it is not installed.
    pub fn shared(service: SqlService) -> Result<Option<Self>> {
        match shared::port(service)? {
            Some(port) => {
                Ok(Some(Self { service, port, statements: StatementRunner::of(service), own: None }))
            }
            None => Self::start(service, &[]),
        }
    }

    /// One that all tests of a run connect to.
    fn start_for_all(service: SqlService) -> Result<Option<Self>> {
        match service {
            SqlService::Postgres => Self::start(service, &["-c", "max_connections=400"]),
            SqlService::MariaDb | SqlService::MySql => Self::start(service, &["--max-connections=400"]),
        }
    }

    /// One that can be spoken with over TLS, and the file of the authority that vouches for it.
    pub fn start_with_tls(service: SqlService) -> Result<Option<(Self, PathBuf)>> {
        if !service.is_installed() || !tls::is_installed() {
            return Ok(None);
        }
        let mut authority = PathBuf::new();
        let server = Self::start_in(service, &[], |folder| {
            let made = tls::make(folder)?;
            let settings = [("cert", &made.certificate), ("key", &made.key)];
            authority = made.authority;
            Ok(match service {
                SqlService::Postgres => {
                    let set = |(what, path): (&str, &PathBuf)| {
                        ["-c".to_owned(), format!("ssl_{what}_file={}", path.display())]
                    };
                    let on = ["-c".to_owned(), "ssl=on".to_owned()];
                    on.into_iter().chain(settings.into_iter().flat_map(set)).collect()
                }
                SqlService::MariaDb | SqlService::MySql => {
                    settings.map(|(what, path)| format!("--ssl-{what}={}", path.display())).to_vec()
                }
            })
        })?;
        Ok(Some((server, authority)))
    }

    fn start_in(
        service: SqlService,
        args: &[&str],
        more: impl FnOnce(&Path) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let mut server = Self::without_data(service)?;
        let own = server.own_mut()?;
        own.args = more(&own.folder)?.into_iter().chain(args.iter().map(ToString::to_string)).collect();
        guard::give_away(&own.folder)?;
        templates::copy_into(service, &own.folder)?;
        server.start_at_free_port()?;
        Ok(server)
    }

    /// Data in which nobody has a database yet, made from nothing, and complete: its server has ended.
    fn initialize(service: SqlService) -> Result<Self> {
        let mut server = Self::without_data(service)?;
        let own = server.own_mut()?;
        match service {
            SqlService::Postgres => postgres::install(&own.folder)?,
            service => {
                // Its first start makes the user and files that later starts find.
                own.args = mysql::install(service, &own.folder)?;
                server.start_at_free_port()?;
                server.stop()?;
            }
        }
        Ok(server)
    }

    fn without_data(service: SqlService) -> Result<Self> {
        let name = format!("kubewitness-{}-", service.to_string().to_lowercase());
        let folder = tempfile::Builder::new().prefix(&name).tempdir().context("a temporary folder")?;
        guard::give_away(folder.path())?;
        // From here on the guard removes it, also when this process is killed.
        let own = OwnServer { folder: folder.keep(), args: Vec::new(), guard: None };
        Ok(Self { service, port: 0, statements: StatementRunner::of(service), own: Some(own) })
    }

    fn start_at_free_port(&mut self) -> Result<()> {
        for left in (0..PORTS).rev() {
            self.port = free_port()?;
            match self.start_again() {
                Ok(()) => break,
                Err(error) if left == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn own(&self) -> Result<&OwnServer> {
        self.own.as_ref().with_context(|| format!("{} is shared with other tests", self.service))
    }

    fn own_mut(&mut self) -> Result<&mut OwnServer> {
        self.own.as_mut().with_context(|| format!("{} is shared with other tests", self.service))
    }

    pub fn service(&self) -> SqlService {
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

    /// A new, empty database; gives its address, which ends with its [name](database_of).
    pub fn create_database(&self) -> Result<String> {
        let name = shared::database_name();
        self.run(None, &format!("CREATE DATABASE {name}"))?;
        Ok(self.url(&name))
    }

    /// Runs statements and gives their rows as lines, columns with tabs between.
    pub fn run(&self, database: Option<&str>, statements: &str) -> Result<String> {
        self.statements.run(self.port, database, statements)
    }

    /// Those of MySQL and MariaDB that go on, without this process's own that wait.
    pub fn sessions(&self) -> Result<Vec<mysql::MysqlSession>> {
        self.statements.close_idle();
        self.run(None, mysql::SESSIONS)?.lines().map(mysql::session).collect()
    }

    /// Ends the sessions in a database. On PostgreSQL they are gone afterwards, and elsewhere soon.
    pub fn end_sessions(&self, database: &str) -> Result<()> {
        if self.service == SqlService::Postgres {
            let end = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity \
                       WHERE pid <> pg_backend_pid()";
            return self.run(None, &format!("{end} AND datname = '{database}'")).map(drop);
        }
        for session in self.sessions()?.iter().filter(|session| session.database == database) {
            self.end_session(&session.id)?;
        }
        Ok(())
    }

    /// Ends a session of MySQL or MariaDB. One that has ended by itself meanwhile is no error.
    pub fn end_session(&self, id: &str) -> Result<()> {
        let ended = self.run(None, &format!("KILL {id}")).map(drop);
        ended.or_else(|error| if mysql::names_no_session(&error) { Ok(()) } else { Err(error) })
    }

    /// For the next start.
    pub fn set_args(&mut self, args: Vec<String>) -> Result<()> {
        self.own_mut()?.args = args;
        Ok(())
    }

    /// Returns the folder of its data, which goes with it.
    pub fn folder(&self) -> Result<&Path> {
        Ok(&self.own()?.folder)
    }

    /// Makes the server's user the owner.
    pub fn give(&self, folder: &Path) -> Result<()> {
        guard::give_away(folder)
    }

    pub fn pid(&self) -> Result<u32> {
        let guard = self.own()?.guard.as_ref();
        Ok(guard.with_context(|| format!("{} does not run", self.service))?.pid)
    }

    pub fn log(&self) -> String {
        let log = self.own().and_then(|own| Ok(std::fs::read_to_string(own.log_file())?));
        log.unwrap_or_else(|error| format!("({error:#})"))
    }

    /// Starts it on the data that is there, at the same address, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        let (service, port) = (self.service, self.port);
        let own = self.own_mut()?;
        if own.guard.is_some() {
            bail!("{service} runs already");
        }
        let mut command = match service {
            SqlService::Postgres => postgres::server(&own.folder, port)?,
            service => mysql::server(service, &own.folder, port)?,
        };
        command.extend(own.args.iter().cloned());
        let guard = own.guard.insert(ServiceGuard::start(&command, &own.folder, &own.log_file())?);
        let (pid, deadline) = (guard.pid, Instant::now() + WITHIN);
        loop {
            let Err(error) = self.answers() else { return Ok(()) };
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

    fn answers(&self) -> Result<()> {
        if self.service == SqlService::MySql {
            mysql::log_in(self.port)?;
        }
        self.run(None, "SELECT 1").map(drop)
    }

    /// An orderly end, as its operator would ask for: clients are disconnected, nothing waits for
    /// them.
    pub fn stop(&mut self) -> Result<()> {
        match self.service {
            SqlService::Postgres => self.end("INT"),
            SqlService::MariaDb | SqlService::MySql => self.end("TERM"),
        }
    }

    /// As fast as it can end by itself, with recovery at the next start. MySQL and MariaDB
    /// know no such end: they are killed.
    pub fn stop_at_once(&mut self) -> Result<()> {
        match self.service {
            SqlService::Postgres => self.end("QUIT"),
            SqlService::MariaDb | SqlService::MySql => self.kill(),
        }
    }

    /// SIGKILL to all its processes.
    pub fn kill(&mut self) -> Result<()> {
        self.end("KILL")
    }

    fn end(&mut self, signal: &str) -> Result<()> {
        let guard = self.own_mut()?.guard.take();
        let guard = guard.with_context(|| format!("{} does not run", self.service))?;
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

impl OwnServer {
    fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.clean_up();
        } else if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left: {error}", self.folder.display());
        }
    }
}

/// The name of the database that an address ends with.
pub fn database_of(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
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

//! NATS servers with JetStream, for tests that carry states from one controller to another: one, or a cluster of three.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::guard::{self, ServiceGuard};
use super::{PASSWORD, PAUSE, PORTS, USER, WITHIN, folder_with, search_path};
use crate::free_port;

const PROGRAM: &str = "nats-server";

/// A server of a test's own: it may be stopped, killed, paused, and started again on its data.
pub struct MessageServer {
    folder: PathBuf,
    port: u16,
    guard: Option<ServiceGuard>,
    /// Without them it only passes messages on.
    pub has_streams: bool,
    routes: Option<ClusterRoutes>,
}

/// How a server finds the others of its cluster.
#[derive(Clone)]
struct ClusterRoutes {
    own: String,
    all: String,
}

impl MessageServer {
    /// Where it is not installed, `test` is counted as skipped.
    pub fn start(test: &str) -> Result<Option<Self>> {
        if folder_with(search_path(), &[PROGRAM]).is_none() {
            crate::skip(test, "nats-server is not installed");
            return Ok(None);
        }
        let mut server = Self::new()?;
        for left in (0..PORTS).rev() {
            server.port = free_port()?;
            match server.start_again() {
                Ok(()) => break,
                Err(error) if left == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Some(server))
    }

    fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("kubewitness-nats-").tempdir().context("a folder")?;
        guard::give_away(folder.path())?;
        // From here on the guard removes it, also when this process is killed.
        Ok(Self { folder: folder.keep(), port: 0, guard: None, has_streams: true, routes: None })
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// With user and password; through whoever listens at an address.
    pub fn url(&self, through: SocketAddr) -> String {
        format!("nats://{USER}:{PASSWORD}@{through}")
    }

    /// Starts it on the data that is there, at the same address, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        if self.guard.is_some() {
            bail!("it runs already");
        }
        let program = folder_with(search_path(), &[PROGRAM]).context("it is not installed")?.join(PROGRAM);
        let words = ["-a", "127.0.0.1", "--user", USER, "--pass", PASSWORD];
        let mut command = vec![program.to_string_lossy().into_owned()];
        command.extend(words.map(str::to_owned));
        command.extend(["-p".to_owned(), self.port.to_string()]);
        if self.has_streams {
            let data = self.folder.join("data").to_string_lossy().into_owned();
            command.extend(["-js".to_owned(), "-sd".to_owned(), data]);
        }
        // The greeting tells it: another server that took the port first must not be taken for this one.
        let name = self.server_name();
        command.extend(["--name".to_owned(), name.clone()]);
        if let Some(ClusterRoutes { own, all }) = &self.routes {
            let words = ["--cluster_name", USER, "--cluster", own, "--routes", all];
            command.extend(words.map(str::to_owned));
        }
        let guard =
            self.guard.insert(ServiceGuard::start(&command, &self.folder, &self.folder.join("server.log"))?);
        let (pid, deadline) = (guard.pid, Instant::now() + WITHIN);
        while let Err(error) = greeting(self.address(), &name) {
            if !guard::is_alive(pid) || Instant::now() > deadline {
                self.kill()?;
                return Err(error.context(format!("it does not answer; it said:\n{}", self.log())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The name of its folder, which no other server has.
    fn server_name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("server.log"));
        log.unwrap_or_else(|error| format!("({error})"))
    }

    pub fn stop(&mut self) -> Result<()> {
        self.end("TERM")
    }

    pub fn kill(&mut self) -> Result<()> {
        self.end("KILL")
    }

    fn end(&mut self, signal: &str) -> Result<()> {
        let guard = self.guard.take().context("it does not run")?;
        guard.end(signal, WITHIN).with_context(|| format!("it said:\n{}", self.log()))
    }

    /// Copies what it has on disk now, to be [put back](Self::go_back): it forgets what came after.
    pub fn copy(&self) -> Result<PathBuf> {
        let to = self.folder.join("copy");
        copy(&self.folder.join("data"), &to)?;
        Ok(to)
    }

    /// While it does not run.
    pub fn go_back(&self, copied: &std::path::Path) -> Result<()> {
        let data = self.folder.join("data");
        std::fs::remove_dir_all(&data).context("its data")?;
        copy(copied, &data)
    }
}

/// Three servers that know each other. Of three copies two are enough, so one server may be down.
pub struct MessageCluster {
    servers: Vec<MessageServer>,
}

impl MessageCluster {
    pub const SERVERS: usize = 3;

    /// Where it is not installed, `test` is counted as skipped.
    pub fn start(test: &str) -> Result<Option<Self>> {
        if folder_with(search_path(), &[PROGRAM]).is_none() {
            crate::skip(test, "nats-server is not installed");
            return Ok(None);
        }
        for _ in 1..PORTS {
            if let Ok(cluster) = Self::start_on_free_ports() {
                return Ok(Some(cluster));
            }
        }
        Self::start_on_free_ports().map(Some)
    }

    fn start_on_free_ports() -> Result<Self> {
        let routes: Vec<_> = (0..Self::SERVERS)
            .map(|_| Ok(format!("nats://127.0.0.1:{}", free_port()?)))
            .collect::<Result<_>>()?;
        let mut servers = Vec::new();
        for own in &routes {
            let mut server = MessageServer::new()?;
            server.port = free_port()?;
            server.routes = Some(ClusterRoutes { own: own.clone(), all: routes.join(",") });
            server.start_again()?;
            servers.push(server);
        }
        Ok(Self { servers })
    }

    /// All addresses, with user and password.
    pub fn url(&self) -> String {
        let urls: Vec<_> = self.servers.iter().map(|server| server.url(server.address())).collect();
        urls.join(",")
    }

    pub fn kill(&mut self, index: usize) -> Result<()> {
        self.servers[index].kill()
    }

    pub fn start_again(&mut self, index: usize) -> Result<()> {
        self.servers[index].start_again()
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    let mut cp = std::process::Command::new("cp");
    super::output(cp.arg("-a").arg(from).arg(to)).map(drop)
}

/// Every server says who it is to whoever connects.
fn greeting(address: SocketAddr, name: &str) -> Result<()> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).context("connecting")?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if !line.starts_with("INFO ") || !line.contains(&format!("\"server_name\":\"{name}\"")) {
        bail!("it said `{line}`");
    }
    Ok(())
}

impl Drop for MessageServer {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.clean_up();
        } else if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left: {error}", self.folder.display());
        }
    }
}

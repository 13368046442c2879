//! A server of S3 for tests: `s3s` reads and signs as the reference says, and `s3s-fs` keeps objects as files. It can be
//! away, keep its answers to itself, and store other bytes than it was sent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use kubewitness_harness::Scratch;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub const BUCKET: &str = "trails";
pub const ACCESS: &str = "test-access";
pub const SECRET: &str = "test-secret-4711";

pub struct FakeBucket {
    address: SocketAddr,
    kept: Arc<KeptObject>,
    server: Option<JoinHandle<()>>,
}

struct KeptObject {
    service: S3Service,
    root: PathBuf,
    /// A file that was stored is not acknowledged.
    holds: AtomicBool,
    alters: AtomicBool,
    /// Paths of what was put.
    puts: Mutex<Vec<String>>,
}

impl Drop for FakeBucket {
    fn drop(&mut self) {
        self.leave();
    }
}

impl FakeBucket {
    pub async fn start(scratch: &Scratch) -> Result<Self> {
        let root = scratch.folder("bucket")?;
        std::fs::create_dir(root.join(BUCKET)).context("the bucket")?;
        let files = s3s_fs::FileSystem::new(&root).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(ACCESS, SECRET));
        let kept = KeptObject {
            service: service.build(),
            root,
            holds: AtomicBool::new(false),
            alters: AtomicBool::new(false),
            puts: Mutex::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.context("binding")?;
        let address = listener.local_addr()?;
        let mut bucket = Self { address, kept: Arc::new(kept), server: None };
        bucket.serve(listener);
        Ok(bucket)
    }

    #[allow(clippy::disallowed_methods)]
    fn serve(&mut self, listener: TcpListener) {
        let kept = self.kept.clone();
        self.server = Some(tokio::spawn(async move {
            // Connections end with the server.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connection(stream, kept.clone()));
            }
        }));
    }

    /// Ends every connection and takes no more.
    pub fn leave(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }

    /// At the same address.
    pub async fn come_back(&mut self) -> Result<()> {
        self.serve(TcpListener::bind(self.address).await.context("binding again")?);
        Ok(())
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn hold(&self, holds: bool) {
        self.kept.holds.store(holds, Ordering::Release);
    }

    pub fn alter(&self, alters: bool) {
        self.kept.alters.store(alters, Ordering::Release);
    }

    /// How often a file of this name was put.
    pub fn puts(&self, name: &str) -> usize {
        let puts = self.kept.puts.lock().unwrap_or_else(PoisonError::into_inner);
        puts.iter().filter(|path| path.ends_with(name)).count()
    }

    pub fn all_puts(&self) -> Vec<String> {
        self.kept.puts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The files under a prefix, in the order of their names, as somebody who fetches them has them.
    pub fn files(&self, prefix: &str) -> Result<Vec<PathBuf>> {
        let folder = self.kept.root.join(BUCKET).join(prefix);
        let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.retain(|file| file.extension().is_some_and(|ending| ending == "jsonl"));
        files.sort();
        Ok(files)
    }
}

impl KeptObject {
    /// Turns the bytes of a file around, and forgets the digests that the server had of what was sent.
    fn alter(&self, path: &str) -> Result<()> {
        let file = self.root.join(path.trim_start_matches('/'));
        let mut bytes = std::fs::read(&file)?;
        bytes.reverse();
        std::fs::write(&file, bytes)?;
        for entry in std::fs::read_dir(&self.root)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(".internal.json") {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

async fn connection(stream: TcpStream, kept: Arc<KeptObject>) {
    let answer = service_fn(move |request| answered(kept.clone(), request));
    // A client that goes away in the middle is part of the tests.
    Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await.ok();
}

async fn answered(
    kept: Arc<KeptObject>,
    request: Request<Incoming>,
) -> Result<hyper::Response<s3s::Body>, s3s::HttpError> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = hyper::service::Service::call(&kept.service, request).await?;
    if method == Method::PUT && response.status().is_success() {
        if kept.alters.load(Ordering::Acquire) {
            kept.alter(&path).expect("the files of the bucket");
        }
        kept.puts.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        if kept.holds.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }
    Ok(response)
}

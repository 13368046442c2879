//! An API server that has one answer for each question, the watch as fast as it is read.
//!
//! Its history is an arithmetic one: object `i` of `jobs` has the versions `i + 1`,
//! `jobs + i + 1`, `2 * jobs + i + 1` and so on, up to `jobs + updates`.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kubewitness_bench::job;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

const RESOURCES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"batch/v1","resources":[{"name":"jobs","singularName":"job","namespaced":true,"kind":"Job","verbs":["get","list","watch"]}]}"#;
const VERSION: &str = r#"{"major":"1","minor":"36","gitVersion":"v1.36.0"}"#;
const NOT_STREAMED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"sendInitialEvents is forbidden for watch","reason":"Invalid","code":422}"#;
const EXPIRED: &str = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"too old resource version\",\"reason\":\"Expired\",\"code\":410}}\n";

/// Frames that are rendered as one piece.
const BLOCK: usize = 100;

pub struct Canned {
    address: SocketAddr,
    watched: watch::Receiver<Option<Instant>>,
    read_back: watch::Receiver<Option<Instant>>,
    shared: Arc<Shared>,
}

/// What was asked for.
#[derive(Default)]
pub struct Asked {
    /// Pages of more than one object.
    pub pages: AtomicU64,
    /// Single objects of a past version.
    pub exact: AtomicU64,
}

struct Shared {
    jobs: usize,
    updates: usize,
    /// A watch from below this is told that it is too late.
    forgotten: usize,
    /// The stream, rendered before anybody is measured.
    blocks: Vec<Vec<u8>>,
    /// One permit for each frame that may be sent; `None`: as fast as they are read.
    pace: Option<Semaphore>,
    asked: Asked,
    watched: watch::Sender<Option<Instant>>,
    read_back: watch::Sender<Option<Instant>>,
}

impl Canned {
    pub async fn start(jobs: usize, updates: usize) -> Result<Self> {
        Self::with(jobs, updates, 0, None).await
    }

    pub async fn forgetful(jobs: usize, updates: usize, forgotten: usize) -> Result<Self> {
        Self::with(jobs, updates, forgotten, None).await
    }

    /// Sends an update when it is told to.
    pub async fn paced(jobs: usize, updates: usize) -> Result<Self> {
        Self::with(jobs, updates, 0, Some(Semaphore::new(0))).await
    }

    pub fn send(&self, updates: usize) {
        if let Some(pace) = &self.shared.pace {
            pace.add_permits(updates);
        }
    }

    #[allow(clippy::disallowed_methods)]
    async fn with(jobs: usize, updates: usize, forgotten: usize, pace: Option<Semaphore>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (watching, watched) = watch::channel(None);
        let (reading, read_back) = watch::channel(None);
        let blocks = if forgotten > 0 || pace.is_some() { Vec::new() } else { render(jobs, updates) };
        let shared = Arc::new(Shared {
            jobs,
            updates,
            forgotten,
            blocks,
            pace,
            asked: Asked::default(),
            watched: watching,
            read_back: reading,
        });
        let server = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let server = Arc::clone(&server);
                // A client that hangs up ends its connection and nothing else.
                tokio::spawn(async move { drop(server.serve(socket).await) });
            }
        });
        Ok(Self { address, watched, read_back, shared })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> &Asked {
        &self.shared.asked
    }

    pub fn kubeconfig(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {{server: \"{}\"}}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {{}}\n",
            self.url()
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// The next watch is the first one.
    pub fn forget_watches(&self) {
        self.shared.watched.send_replace(None);
    }

    /// When the stream was first asked for.
    pub async fn first_watch(&self, patience: Duration) -> Result<Instant> {
        first(self.watched.clone(), patience).await
    }

    /// When the first past version was asked for.
    pub async fn first_exact(&self, patience: Duration) -> Result<Instant> {
        first(self.read_back.clone(), patience).await
    }
}

async fn first(mut happened: watch::Receiver<Option<Instant>>, patience: Duration) -> Result<Instant> {
    let found =
        tokio::time::timeout(patience, happened.wait_for(Option::is_some)).await.context("timed out")??;
    Ok(found.unwrap_or_else(Instant::now))
}

fn note(happened: &watch::Sender<Option<Instant>>) {
    happened.send_if_modified(|first| first.replace(first.unwrap_or_else(Instant::now)).is_none());
}

fn frame(jobs: usize, index: usize) -> String {
    let line = format!(
        "{{\"type\":\"MODIFIED\",\"object\":{}}}\n",
        job(index % jobs, index / jobs, index as u64 + 1)
    );
    chunk(&line)
}

fn chunk(line: &str) -> String {
    format!("{:x}\r\n{line}\r\n", line.len())
}

fn render(jobs: usize, updates: usize) -> Vec<Vec<u8>> {
    let block = |first: usize| {
        (first..jobs + updates.min(first - jobs + BLOCK)).fold(Vec::new(), |mut block, index| {
            block.extend_from_slice(frame(jobs, index).as_bytes());
            block
        })
    };
    (jobs..jobs + updates).step_by(BLOCK).map(block).collect()
}

fn parameter<'a>(target: &'a str, name: &str) -> Option<&'a str> {
    let query = target.split_once('?')?.1;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn number(target: &str, name: &str) -> Option<usize> {
    parameter(target, name)?.parse().ok()
}

impl Shared {
    async fn serve(&self, socket: TcpStream) -> Result<()> {
        socket.set_nodelay(true)?;
        let (reader, writer) = socket.into_split();
        let (mut reader, mut writer) = (BufReader::new(reader), BufWriter::with_capacity(64 * 1024, writer));
        let (mut request, mut header) = (String::new(), String::new());
        loop {
            request.clear();
            if reader.read_line(&mut request).await? == 0 {
                return Ok(());
            }
            header.clear();
            while reader.read_line(&mut header).await? > 2 {
                header.clear();
            }
            let target = request.split(' ').nth(1).unwrap_or_default();
            let watches = matches!(parameter(target, "watch"), Some("true" | "1"));
            let (status, body) = match target {
                t if t.contains("sendInitialEvents") => {
                    ("422 Unprocessable Entity", NOT_STREAMED.to_string())
                }
                t if watches => return self.stream(&mut writer, t).await,
                t if t.contains("/jobs") => ("200 OK", self.list(t)),
                t if t.starts_with("/apis/batch/v1") => ("200 OK", RESOURCES.to_string()),
                _ => ("200 OK", VERSION.to_string()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            writer.write_all(head.as_bytes()).await?;
            writer.write_all(body.as_bytes()).await?;
            writer.flush().await?;
        }
    }

    /// Pages by position: `continue` is the index of the next item.
    fn list(&self, target: &str) -> String {
        let newest = self.jobs + self.updates;
        if let Some(name) = parameter(target, "fieldSelector") {
            return self.exact(name, number(target, "resourceVersion").unwrap_or(newest));
        }
        let limit = number(target, "limit").unwrap_or(self.jobs);
        if limit > 1 {
            self.asked.pages.fetch_add(1, Ordering::Relaxed);
        }
        let start = number(target, "continue").unwrap_or(0);
        let end = self.jobs.min(start + limit);
        // The list is as of the end where the watch's beginning is forgotten, else as of its beginning.
        let version = if self.forgotten > 0 || self.updates == 0 { newest } else { self.jobs };
        let items: Vec<_> = (start..end).filter_map(|index| self.object(index, version)).collect();
        let next = if end < self.jobs { format!(r#","continue":"{end}""#) } else { String::new() };
        page(version, &next, &items.join(","))
    }

    /// `metadata.name=train-00007`, encoded or not, as it was at a version.
    fn exact(&self, selector: &str, version: usize) -> String {
        note(&self.read_back);
        self.asked.exact.fetch_add(1, Ordering::Relaxed);
        let index = selector.rsplit('-').next().and_then(|digits| digits.parse().ok());
        let item = index.and_then(|index| self.object(index, version)).unwrap_or_default();
        page(version, "", &item)
    }

    /// What an object was at a version, if it was there.
    fn object(&self, index: usize, version: usize) -> Option<String> {
        let step = version.checked_sub(index + 1)? / self.jobs;
        Some(job(index, step, (step * self.jobs + index + 1) as u64))
    }

    /// All updates after the version asked for, then silence with a bookmark now and then.
    async fn stream<W: tokio::io::AsyncWrite + Unpin>(&self, writer: &mut W, target: &str) -> Result<()> {
        writer
            .write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
            )
            .await?;
        let (jobs, updates) = (self.jobs, self.updates);
        let mut index = number(target, "resourceVersion").unwrap_or(jobs).max(jobs);
        if index < self.forgotten {
            writer.write_all(chunk(EXPIRED).as_bytes()).await?;
            writer.write_all(b"0\r\n\r\n").await?;
            return Ok(writer.flush().await?);
        }
        note(&self.watched);
        while index < jobs + updates {
            match self.blocks.get((index - jobs) / BLOCK).filter(|_| (index - jobs).is_multiple_of(BLOCK)) {
                Some(block) => {
                    writer.write_all(block).await?;
                    index += BLOCK;
                }
                None => {
                    if let Some(pace) = &self.pace {
                        writer.flush().await?;
                        pace.acquire().await?.forget();
                    }
                    writer.write_all(frame(jobs, index).as_bytes()).await?;
                    index += 1;
                }
            }
        }
        loop {
            let bookmark = format!(
                "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Job\",\"apiVersion\":\"batch/v1\",\"metadata\":{{\"resourceVersion\":\"{}\"}}}}}}\n",
                jobs + updates
            );
            writer.write_all(chunk(&bookmark).as_bytes()).await?;
            writer.flush().await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

fn page(version: usize, next: &str, items: &str) -> String {
    format!(
        r#"{{"kind":"JobList","apiVersion":"batch/v1","metadata":{{"resourceVersion":"{version}"{next}}},"items":[{items}]}}"#
    )
}

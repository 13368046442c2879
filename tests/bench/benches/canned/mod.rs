//! An API server that has one answer for each question, the watch as fast as it is read.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kubewitness_bench::job;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const RESOURCES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"batch/v1","resources":[{"name":"jobs","singularName":"job","namespaced":true,"kind":"Job","verbs":["get","list","watch"]}]}"#;
const VERSION: &str = r#"{"major":"1","minor":"36","gitVersion":"v1.36.0"}"#;

pub struct Canned {
    address: SocketAddr,
    watched: watch::Receiver<Option<Instant>>,
}

impl Canned {
    #[allow(clippy::disallowed_methods)]
    pub async fn start(jobs: usize, updates: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, watched) = watch::channel(None);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    // A client that hangs up ends its connection and nothing else.
                    if let Err(error) = serve(socket, jobs, updates, &sender).await {
                        eprintln!("canned server: {error:#}");
                    }
                });
            }
        });
        Ok(Self { address, watched })
    }

    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {{server: \"http://{}\"}}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {{}}\n",
            self.address
        )
    }

    /// When the stream was first asked for.
    pub async fn first_watch(&self, patience: Duration) -> Result<Instant> {
        let mut watched = self.watched.clone();
        let found = tokio::time::timeout(patience, watched.wait_for(Option::is_some))
            .await
            .context("timed out")??;
        Ok(found.unwrap_or_else(Instant::now))
    }
}

async fn serve(
    socket: TcpStream,
    jobs: usize,
    updates: usize,
    watched: &watch::Sender<Option<Instant>>,
) -> Result<()> {
    socket.set_nodelay(true)?;
    let (reader, writer) = socket.into_split();
    let (mut reader, mut writer) = (BufReader::new(reader), BufWriter::with_capacity(256 * 1024, writer));
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request).await? == 0 {
            return Ok(());
        }
        let mut header = String::new();
        while reader.read_line(&mut header).await? > 2 {
            header.clear();
        }
        let target = request.split(' ').nth(1).unwrap_or_default().to_string();
        if target.contains("watch=") {
            watched.send_if_modified(|first| first.replace(first.unwrap_or_else(Instant::now)).is_none());
            return stream(&mut writer, &target, jobs, updates).await;
        }
        let body = match target.as_str() {
            t if t.contains("/jobs") => list(t, jobs),
            t if t.starts_with("/apis/batch/v1") => RESOURCES.to_string(),
            _ => VERSION.to_string(),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        writer.write_all(head.as_bytes()).await?;
        writer.write_all(body.as_bytes()).await?;
        writer.flush().await?;
    }
}

fn parameter(target: &str, name: &str) -> Option<usize> {
    let query = target.split_once('?')?.1;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// Pages by position: `continue` is the index of the next item.
fn list(target: &str, jobs: usize) -> String {
    let start = parameter(target, "continue").unwrap_or(0);
    let end = jobs.min(start + parameter(target, "limit").unwrap_or(jobs));
    let items: Vec<_> = (start..end).map(|index| job(index, 0, index as u64 + 1)).collect();
    let next = if end < jobs { format!(r#","continue":"{end}""#) } else { String::new() };
    format!(
        r#"{{"kind":"JobList","apiVersion":"batch/v1","metadata":{{"resourceVersion":"{jobs}"{next}}},"items":[{}]}}"#,
        items.join(",")
    )
}

/// All updates after the version asked for, then silence with a bookmark now and then.
async fn stream<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut W,
    target: &str,
    jobs: usize,
    updates: usize,
) -> Result<()> {
    writer
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .await?;
    let after = parameter(target, "resourceVersion").unwrap_or(jobs);
    for index in after.max(jobs)..jobs + updates {
        let object = job(index % jobs, index / jobs, index as u64 + 1);
        chunk(writer, &format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n")).await?;
    }
    loop {
        let version = jobs + updates;
        let bookmark = format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Job\",\"apiVersion\":\"batch/v1\",\"metadata\":{{\"resourceVersion\":\"{version}\"}}}}}}\n"
        );
        chunk(writer, &bookmark).await?;
        writer.flush().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn chunk<W: tokio::io::AsyncWrite + Unpin>(writer: &mut W, data: &str) -> Result<()> {
    writer.write_all(format!("{:x}\r\n", data.len()).as_bytes()).await?;
    writer.write_all(data.as_bytes()).await?;
    Ok(writer.write_all(b"\r\n").await?)
}

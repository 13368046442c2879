//! An API server with so many Jobs and no news of them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::jobs::real_job;

const RESOURCES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"batch/v1","resources":[{"name":"jobs","singularName":"job","namespaced":true,"kind":"Job","verbs":["get","list","watch"]}]}"#;
const VERSION: &str = r#"{"major":"1","minor":"36","gitVersion":"v1.36.0"}"#;
/// The version of the whole; the Jobs have those below it.
const NEWEST: u64 = 10_000_000;

#[allow(clippy::disallowed_methods)]
pub async fn start(jobs: usize) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                match serve(socket, jobs).await {
                    Err(error) if !is_hang_up(&error) => eprintln!("canned server: {error:#}"),
                    _ => {}
                }
            });
        }
    });
    Ok(address)
}

/// How each process that was measured ends its watch: it is killed.
fn is_hang_up(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

pub fn kubeconfig(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {{server: \"http://{address}\"}}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {{}}\n"
    )
}

async fn serve(mut socket: TcpStream, jobs: usize) -> Result<()> {
    socket.set_nodelay(true)?;
    let (reader, mut writer) = socket.split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request).await? == 0 {
            return Ok(());
        }
        let mut header = String::new();
        while reader.read_line(&mut header).await? > 2 {
            header.clear();
        }
        let target = request.split(' ').nth(1).unwrap_or_default();
        if target.contains("watch=") {
            return silence(&mut writer, target).await;
        }
        let body = match target {
            target if target.contains("/jobs") => list(target, jobs),
            target if target.starts_with("/apis/batch/v1") => RESOURCES.to_string(),
            _ => VERSION.to_string(),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        writer.write_all(head.as_bytes()).await?;
        writer.write_all(body.as_bytes()).await?;
    }
}

/// Pages by position: `continue` is the index of the next item.
fn list(target: &str, jobs: usize) -> String {
    let parameter = |name: &str| -> Option<usize> {
        let query = target.split_once('?')?.1;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let start = parameter("continue").unwrap_or(0);
    let end = jobs.min(start + parameter("limit").unwrap_or(jobs));
    let items: Vec<_> = (start..end).map(|index| real_job(index, 1_000_000 + index as u64 * 7)).collect();
    let next = if end < jobs { format!(r#","continue":"{end}""#) } else { String::new() };
    format!(
        r#"{{"kind":"JobList","apiVersion":"batch/v1","metadata":{{"resourceVersion":"{NEWEST}"{next}}},"items":[{}]}}"#,
        items.join(",")
    )
}

/// A watch with a bookmark now and then. A streaming list is refused: pages are the harder case,
/// since a whole page is in memory at once.
async fn silence<W: tokio::io::AsyncWrite + Unpin>(writer: &mut W, target: &str) -> Result<()> {
    if target.contains("sendInitialEvents") {
        let refusal = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","message":"sendInitialEvents is forbidden","code":422}"#;
        let length = refusal.len();
        let head = format!(
            "HTTP/1.1 422 Unprocessable Entity\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        writer.write_all(head.as_bytes()).await?;
        return Ok(writer.write_all(refusal.as_bytes()).await?);
    }
    writer
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .await?;
    loop {
        let bookmark = format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Job\",\"apiVersion\":\"batch/v1\",\"metadata\":{{\"resourceVersion\":\"{NEWEST}\"}}}}}}\n"
        );
        writer.write_all(format!("{:x}\r\n{bookmark}\r\n", bookmark.len()).as_bytes()).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

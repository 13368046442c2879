//! Answers the small API server's HTTP requests.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CannedReply, HistoryEntry, StreamSignal, WatchWorld};

impl WatchWorld {
    pub(super) async fn serve(&self, mut socket: TcpStream) {
        let mut held = Vec::new();
        loop {
            let end = loop {
                if let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                    break end;
                }
                let mut part = [0; 4096];
                match socket.read(&mut part).await {
                    Ok(read) if read > 0 => held.extend_from_slice(&part[..read]),
                    _ => return,
                }
            };
            let head = String::from_utf8_lossy(&held[..end]).to_string();
            held.drain(..end + 4);
            let target = head.split(' ').nth(1).unwrap().to_string();
            let spoiled = self.spoiled(&target);
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let query = parse(query);
            let reply = match spoiled {
                Some(reply) => reply,
                None if query.contains_key("watch") => match self.watchable(&query) {
                    Ok(()) => return self.stream(socket, &query).await,
                    Err(reply) => reply,
                },
                None => self.answer(path, &query),
            };
            let reply = if head.contains("as=PartialObjectMetadataList") { self.bare(reply) } else { reply };
            let text = format!(
                "HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                reply.status,
                reply.body.len(),
                reply.headers,
                reply.body
            );
            if socket.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// Sends the metadata of a list's objects alone.
    fn bare(&self, reply: CannedReply) -> CannedReply {
        let mut list: Value = serde_json::from_str(&reply.body).unwrap_or_default();
        let Some(items) = list["items"].as_array_mut() else { return reply };
        for item in items {
            *item = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"]});
        }
        self.with(|state| state.bare_lists += 1);
        CannedReply { body: list.to_string(), ..reply }
    }

    /// A test's answer may change the world, so it is not called under the world's lock.
    fn spoiled(&self, target: &str) -> Option<CannedReply> {
        let _one_at_a_time = self.spoiling.lock().unwrap();
        let mut spoilers = self.with(|state| {
            state.requests.push(target.to_string());
            std::mem::take(&mut state.spoilers)
        });
        let spoiled = spoilers.iter_mut().find_map(|spoiler| spoiler(target));
        self.with(|state| {
            spoilers.append(&mut state.spoilers);
            state.spoilers = spoilers;
        });
        spoiled
    }

    fn watchable(&self, query: &HashMap<String, String>) -> Result<(), CannedReply> {
        self.with(|state| if state.served { Ok(()) } else { Err(CannedReply::status(404, "NotFound")) })?;
        if query.contains_key("sendInitialEvents") {
            let streams = self.with(|state| state.streams);
            return if streams { Ok(()) } else { Err(CannedReply::status(422, "Invalid")) };
        }
        query["resourceVersion"]
            .parse::<u64>()
            .map(|_| ())
            .map_err(|_| CannedReply::status(500, "InternalError"))
    }

    async fn stream(&self, mut socket: TcpStream, query: &HashMap<String, String>) {
        let initial = query.contains_key("sendInitialEvents");
        let from: u64 = query.get("resourceVersion").map_or(0, |from| from.parse().unwrap());
        let (mut signals, backlog) = self.with(|state| {
            if initial {
                // In no order of version.
                let mut lines: Vec<String> = state
                    .live
                    .values()
                    .rev()
                    .map(|object| HistoryEntry { version: 0, kind: "ADDED", object: object.clone() }.line())
                    .collect();
                if state.repeats_streams {
                    lines.extend(lines.clone());
                }
                if !state.ignores_streams {
                    lines.push(bookmark(state.version, true));
                }
                return (Some(self.signals.subscribe()), lines);
            }
            if from < state.forgotten {
                let expired = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410,
                    "reason": "Expired", "message": "too old resource version"}});
                return (None, vec![format!("{expired}\n")]);
            }
            let backlog =
                state.log.iter().filter(|entry| entry.version > from).map(HistoryEntry::line).collect();
            (Some(self.signals.subscribe()), backlog)
        });
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        if socket.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        for line in backlog {
            if chunk(&mut socket, &line).await.is_err() {
                return;
            }
        }
        let Some(signals) = &mut signals else {
            return drop(socket.write_all(b"0\r\n\r\n").await);
        };
        let mut gone = [0; 1];
        loop {
            let signal = tokio::select! {
                signal = signals.recv() => signal,
                // The client has closed the connection.
                _ = socket.read(&mut gone) => return,
            };
            match signal {
                Ok(StreamSignal::Raw(text)) => {
                    if chunk(&mut socket, &text).await.is_err() {
                        return;
                    }
                }
                Ok(StreamSignal::Close) => return drop(socket.write_all(b"0\r\n\r\n").await),
                Ok(StreamSignal::Cut) | Err(_) => return,
            }
        }
    }

    fn answer(&self, path: &str, query: &HashMap<String, String>) -> CannedReply {
        let served = self.with(|state| state.served);
        if path == "/apis/batch/v1" {
            let jobs = json!([{"name": "jobs", "kind": "Job", "namespaced": true}]);
            return json_reply(json!({"resources": if served { jobs } else { json!([]) }}));
        }
        if !served {
            return CannedReply::status(404, "NotFound");
        }
        if let Some((_, name)) = path.split_once("/jobs/") {
            let held = self.with(|state| state.live.get(&("ml".to_string(), name.to_string())).cloned());
            return held.map_or_else(|| CannedReply::status(404, "NotFound"), json_reply);
        }
        self.list(query)
    }

    fn list(&self, query: &HashMap<String, String>) -> CannedReply {
        let exact = query.get("resourceVersion").map(|version| version.parse::<u64>().unwrap());
        let named = query
            .get("fieldSelector")
            .map(|selector| selector.trim_start_matches("metadata.name=").to_string());
        let labels = query.get("labelSelector").and_then(|selector| selector.split_once('='));
        let limit: usize = query.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
        let (skip, pinned) = match query.get("continue").and_then(|token| token.split_once('-')) {
            // A page that is not pinned goes on with the present objects.
            Some((skip, pinned)) => (skip.parse().unwrap(), pinned.parse::<u64>().ok()),
            None => (0, None),
        };
        self.with(|state| {
            let at = exact.or(pinned).unwrap_or(state.version);
            if at < state.compacted {
                return CannedReply::status(410, "Expired");
            }
            let mut objects: BTreeMap<String, Value> = BTreeMap::new();
            for entry in state.log.iter().filter(|entry| entry.version <= at) {
                let name = entry.object["metadata"]["name"].as_str().unwrap().to_string();
                if entry.kind == "DELETED" {
                    objects.remove(&name);
                } else {
                    objects.insert(name, entry.object.clone());
                }
            }
            objects.retain(|name, _| named.as_ref().is_none_or(|named| named == name));
            objects.retain(|_, object| {
                labels.is_none_or(|(key, value)| object["metadata"]["labels"][key] == value)
            });
            let total = objects.len();
            let items: Vec<_> = objects.into_values().skip(skip).take(limit).collect();
            let end = skip + items.len();
            let mut metadata = json!({"resourceVersion": at.to_string()});
            if end < total {
                metadata["continue"] = json!(format!("{end}-{at}"));
                if named.is_none() && labels.is_none() && !state.counts_nothing {
                    metadata["remainingItemCount"] = json!(total - end);
                }
            }
            json_reply(
                json!({"kind": "JobList", "apiVersion": "batch/v1", "metadata": metadata, "items": items}),
            )
        })
    }
}

fn json_reply(body: Value) -> CannedReply {
    CannedReply { status: 200, headers: String::new(), body: body.to_string() }
}

pub fn bookmark(version: u64, ends_list: bool) -> String {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if ends_list {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let object = json!({"kind": "Job", "apiVersion": "batch/v1", "metadata": metadata});
    format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
}

async fn chunk(socket: &mut TcpStream, text: &str) -> std::io::Result<()> {
    // A larger line goes out in many chunks.
    for part in text.as_bytes().chunks(50_000) {
        socket.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
        socket.write_all(part).await?;
        socket.write_all(b"\r\n").await?;
    }
    Ok(())
}

fn parse(query: &str) -> HashMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_string(), value.replace("%3D", "=").replace("%2F", "/"))).collect()
}

//! The live stream of states. A broken stream resumes after its last position, so no state is missing and
//! none comes twice, even if the controller restarts.
//!
//! A client crate for server-sent events was rejected: here a line has a bound, and each new connection may
//! go to another pod, which `ApiClient` finds.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_core::{Seq, State};
use reqwest::Response;

use crate::commands::api::client::{ApiClient, is_final};
use crate::commands::print::note;

/// A controller that restarts, or that an update replaces, is back within this time. After that, the stream
/// gives up.
pub(super) const RETRIES: u32 = 150;
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(2);
/// An event of the stream is one state without its document. A longer one comes from something else.
const LONGEST_EVENT: usize = 4 << 20;

/// An event of a stream.
pub(in crate::commands::api) enum StreamEvent {
    /// A state, and its JSON.
    State(Box<State>, String),
    /// Causes of outcomes were found after the states with which the objects ended.
    Causes,
    /// The journal was replaced by one without the state at the requested position. The stream continues from
    /// this newest position.
    Replaced(Seq),
}

pub(in crate::commands::api) struct LiveStates<'a> {
    client: &'a ApiClient,
    open: Option<EventStream>,
    /// The last event id from the controller. It identifies the position and the state there.
    last: Option<String>,
}

impl<'a> LiveStates<'a> {
    /// The states after this position, with or without a mark; without a position, future states.
    pub async fn open(client: &'a ApiClient, after: Option<&str>) -> Result<Self> {
        let last = after.map(str::to_owned);
        Ok(Self { client, open: Some(EventStream::open(client, after).await?), last })
    }

    /// The position of the last event, with the mark of the state there.
    pub fn position(&self) -> Option<&str> {
        self.last.as_deref()
    }

    pub async fn next(&mut self) -> Result<StreamEvent> {
        loop {
            let Some(open) = &mut self.open else {
                self.open = Some(self.reopen_stream().await?);
                continue;
            };
            match open.next().await {
                Ok(Some(event)) => {
                    if let Some(heard) = self.note_event(event)? {
                        return Ok(heard);
                    }
                }
                Ok(None) => self.open = None,
                Err(error) => {
                    note!("kubewitness: the stream broke off, it is opened again where it was: {error:#}");
                    self.open = None;
                }
            }
        }
    }

    fn note_event(&mut self, event: SentEvent) -> Result<Option<StreamEvent>> {
        let heard = match event.kind.as_str() {
            "state" => {
                let state: Box<State> =
                    serde_json::from_str(&event.data).context("reading a state of the stream")?;
                Some(StreamEvent::State(state, event.data))
            }
            // The start of the stream. Without it, states that arrive while the first connection is broken
            // would be lost.
            "position" => None,
            "reset" => {
                let newest = event.data.trim().parse().context("reading a position of the stream")?;
                Some(StreamEvent::Replaced(newest))
            }
            // It is not a position of the stream.
            "causes" => return Ok(Some(StreamEvent::Causes)),
            _ => return Ok(None),
        };
        self.last = Some(event.id);
        Ok(heard)
    }

    async fn reopen_stream(&self) -> Result<EventStream> {
        let mut tries = 0;
        loop {
            tokio::time::sleep(RETRY_AFTER).await;
            let opened = match self.client.find_again().await {
                Ok(()) => EventStream::open(self.client, self.last.as_deref()).await,
                Err(error) => Err(error),
            };
            match opened {
                Ok(stream) => return Ok(stream),
                Err(error) if tries >= RETRIES || is_final(&error) => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }
}

/// Parses server-sent events as they arrive.
struct EventStream {
    answer: Response,
    lines: StreamLines,
}

impl EventStream {
    async fn open(client: &ApiClient, after: Option<&str>) -> Result<Self> {
        let after: Vec<_> = after.map(|position| ("after", position)).into_iter().collect();
        Ok(Self { answer: client.open_stream("api/v1/events", &after).await?, lines: StreamLines::default() })
    }

    /// `None` once the controller has ended the stream.
    async fn next(&mut self) -> Result<Option<SentEvent>> {
        loop {
            if let Some(event) = self.lines.next()? {
                return Ok(Some(event));
            }
            match self.answer.chunk().await.context("reading the stream")? {
                Some(chunk) => self.lines.push(&chunk)?,
                None => return Ok(None),
            }
        }
    }
}

#[derive(Debug, Default, PartialEq)]
struct SentEvent {
    kind: String,
    id: String,
    data: String,
}

#[derive(Default)]
struct StreamLines {
    bytes: Vec<u8>,
    open: SentEvent,
}

impl StreamLines {
    fn push(&mut self, chunk: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(chunk);
        if self.bytes.len() > LONGEST_EVENT && !chunk.contains(&b'\n') {
            bail!("a line of the stream is longer than {LONGEST_EVENT} bytes");
        }
        Ok(())
    }

    /// The next complete event.
    fn next(&mut self) -> Result<Option<SentEvent>> {
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                let event = std::mem::take(&mut self.open);
                if !event.kind.is_empty() {
                    return Ok(Some(event));
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => self.open.kind = value.into(),
                "id" => self.open.id = value.into(),
                "data" => self.open.data.push_str(value),
                // A comment keeps the connection alive.
                _ => {}
            }
            if self.open.data.len() > LONGEST_EVENT {
                bail!("an event of the stream is longer than {LONGEST_EVENT} bytes");
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_the_stream_is_cut() {
        let text = ": hello\n\nevent: state\nid: 7-0a\ndata: {\"a\":1}\n\nevent:reset\r\ndata:9\r\n\r\nevent: state\ndata: x\n";
        for size in [1, 3, 7, text.len()] {
            let (mut lines, mut events) = (StreamLines::default(), Vec::new());
            for chunk in text.as_bytes().chunks(size) {
                lines.push(chunk).unwrap();
                events.extend(std::iter::from_fn(|| lines.next().unwrap()));
            }
            let fields: Vec<_> = events
                .iter()
                .map(|event| [&event.kind, &event.id, &event.data].map(String::as_str))
                .collect();
            assert_eq!(fields, [["state", "7-0a", "{\"a\":1}"], ["reset", "", "9"]], "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut lines = StreamLines::default();
        lines.push(&vec![b'x'; LONGEST_EVENT]).unwrap();
        assert!(lines.push(b"x").is_err());
    }

    #[test]
    fn an_event_of_lines_without_an_end_is_refused() {
        let (mut lines, line) = (StreamLines::default(), format!("data: {}\n", "x".repeat(1 << 20)));
        for _ in 0..4 {
            lines.push(line.as_bytes()).unwrap();
            assert_eq!(lines.next().unwrap(), None);
        }
        lines.push(line.as_bytes()).unwrap();
        assert!(lines.next().is_err());
    }
}

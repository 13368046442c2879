//! `get -w`: prints the objects that exist now, then each change, until Ctrl-C or until nobody reads them.
//!
//! The stream opens before the list is asked for, so no change falls between them. A change that the list has
//! already shown is recognized by its position. The stream does not evaluate selectors and indexes: where one is
//! given, each changed object is looked up again.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_core::views::{ObjectQuery, ObjectView, StatusView};
use kubewitness_core::{Change, Seq, State, calendar};
use reqwest::Response;
use serde::Serialize;

use super::client::Client;
use super::get::{Asked, concerns, document, name, parameters, tell_blind};
use crate::cli::GetOutput;
use crate::commands::print::{self, ReaderLeft, Table, clean};
use crate::commands::{End, Ended};

/// Rows that decide how wide the columns of the next ones are; a watch may last for days.
const LAID_OUT_BY: usize = 200;
/// A controller that restarts is back within this time; then it is given up.
const RETRIES: u32 = 30;
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// A line of the stream is one state without its document. What is longer is none of ours.
const LONGEST_LINE: usize = 4 << 20;

/// One change for programs: the object as a list shows it, and what happened to it.
#[derive(Serialize)]
struct Event<'a> {
    change: Change,
    #[serde(flatten)]
    view: &'a ObjectView,
}

pub(super) async fn follow(client: &Client, asked: &Asked) -> Ended {
    let ended = tokio::select! {
        ended = go_on(client, asked) => ended,
        () = print::reader_left() => Ok(End::Fine),
    };
    match ended {
        Err(error) if error.is::<ReaderLeft>() => Ok(End::Fine),
        ended => ended,
    }
}

async fn go_on(client: &Client, asked: &Asked) -> Ended {
    // Where a controller that restarts goes on from, if nothing changes before.
    let status: StatusView = client.get("api/v1/status", &()).await?;
    let mut last = status.journal.newest_seq;
    let mut stream = Some(Stream::open(client, None).await?);
    let mut shown = Shown::new(client, asked);
    shown.first().await?;
    tell_blind(client, &asked.query).await;
    loop {
        let Some(open) = &mut stream else {
            stream = Some(again(client, last).await?);
            continue;
        };
        match open.next().await {
            Ok(Some(state)) => {
                last = state.seq;
                shown.changed(&state).await?;
            }
            Ok(None) => stream = None,
            Err(error) => {
                eprintln!("kubewitness: the stream broke off, going on from where it was: {error:#}");
                stream = None;
            }
        }
    }
}

async fn again(client: &Client, last: Seq) -> Result<Stream> {
    let mut tries = 0;
    loop {
        tokio::time::sleep(RETRY_AFTER).await;
        match Stream::open(client, Some(last)).await {
            Ok(stream) => return Ok(stream),
            Err(error) if tries >= RETRIES => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

// ---- what was shown ----------------------------------------------------------------------

struct Shown<'a> {
    client: &'a Client,
    asked: &'a Asked,
    table: Table,
    /// Of each object on the screen, its uid and the position of what was shown of it.
    rows: HashMap<String, Seq>,
}

impl<'a> Shown<'a> {
    fn new(client: &'a Client, asked: &'a Asked) -> Self {
        Self { client, asked, table: asked.table(), rows: HashMap::new() }
    }

    async fn first(&mut self) -> Result<()> {
        let mut objects: Vec<ObjectView> =
            self.client.get("api/v1/objects", &parameters(&self.asked.query)).await?;
        objects.sort_by_key(|view| view.seq);
        if matches!(self.asked.output, GetOutput::Table | GetOutput::Wide) {
            for view in &objects {
                self.asked.row(&mut self.table, view, Change::Present);
                self.rows.insert(view.object.uid.clone(), view.seq);
            }
            return print::line_of_many(&self.table.render());
        }
        for view in &objects {
            self.show(view, Change::Present).await?;
        }
        Ok(())
    }

    async fn changed(&mut self, state: &State) -> Result<()> {
        let (query, uid) = (&self.asked.query, state.object.uid.as_str());
        let known = self.rows.get(uid).copied();
        if known.is_some_and(|seq| seq >= state.seq) || !concerns(query, &state.source, &state.object) {
            return Ok(());
        }
        let over = matches!(state.change, Change::Gone | Change::Left);
        let phase = query.phase.as_deref();
        let matches = match over {
            // Its end is news to whoever saw it; of others nobody can look labels up any more.
            true => known.is_some() || !is_looked_up(query) && phase.is_none(),
            false if is_looked_up(query) => self.is_found(state).await?,
            false => phase.is_none_or(|phase| state.status.phase.eq_ignore_ascii_case(phase)),
        };
        // What no longer matches is shown once as what it has become.
        if !matches && known.is_none() {
            return Ok(());
        }
        self.show(&view(state), state.change).await?;
        if over || !matches {
            self.rows.remove(uid);
        }
        Ok(())
    }

    async fn is_found(&self, state: &State) -> Result<bool> {
        let asked = ObjectQuery {
            source: Some(state.source.to_string()),
            namespace: Some(state.object.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(state.object.name.clone()),
            ..self.asked.query.clone()
        };
        let found: Vec<ObjectView> = self.client.get("api/v1/objects", &parameters(&asked)).await?;
        Ok(found.iter().any(|view| view.object.uid == state.object.uid))
    }

    async fn show(&mut self, view: &ObjectView, change: Change) -> Result<()> {
        self.rows.insert(view.object.uid.clone(), view.seq);
        let text = match self.asked.output {
            GetOutput::Table | GetOutput::Wide => {
                let shown = self.table.len();
                self.asked.row(&mut self.table, view, change);
                let text = self.table.render_from(shown);
                self.table.keep_newest(LAID_OUT_BY);
                text
            }
            GetOutput::Name => format!("{}\n", clean(&name(&view.object))),
            GetOutput::Json | GetOutput::Yaml if self.asked.is_one() && change == Change::Present => {
                let document = document(self.client, view.seq, self.asked.output).await?;
                if self.asked.output == GetOutput::Yaml { format!("---\n{document}") } else { document }
            }
            GetOutput::Json => format!("{}\n", serde_json::to_string(&Event { change, view })?),
            GetOutput::Yaml => format!("---\n{}", print::yaml(&Event { change, view })?),
        };
        print::line_of_many(&text)
    }
}

/// Whether only a look-up tells if an object matches.
fn is_looked_up(query: &ObjectQuery) -> bool {
    query.label_selector.is_some() || query.index.is_some()
}

fn view(state: &State) -> ObjectView {
    ObjectView {
        source: state.source.to_string(),
        object: (*state.object).clone(),
        owner: state.owner.as_ref().map(|owner| (**owner).clone()),
        resource_version: state.resource_version.to_string(),
        status: (*state.status).clone(),
        seq: state.seq,
        observed_at: calendar::rfc3339(state.observed_ms),
        ..ObjectView::default()
    }
}

// ---- the stream --------------------------------------------------------------------------

/// Server-sent events, of which only the states count.
struct Stream {
    answer: Response,
    lines: Lines,
}

impl Stream {
    async fn open(client: &Client, after: Option<Seq>) -> Result<Self> {
        let after: Vec<_> = after.map(|seq| ("after", seq.to_string())).into_iter().collect();
        Ok(Self { answer: client.stream("api/v1/events", &after).await?, lines: Lines::default() })
    }

    /// `None` when the controller has ended the stream.
    async fn next(&mut self) -> Result<Option<State>> {
        loop {
            while let Some(event) = self.lines.next() {
                if event.kind == "state" {
                    let state = serde_json::from_str(&event.data).context("reading a state of the stream")?;
                    return Ok(Some(state));
                }
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
    data: String,
}

#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    open: SentEvent,
}

impl Lines {
    fn push(&mut self, chunk: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(chunk);
        if self.bytes.len() > LONGEST_LINE && !chunk.contains(&b'\n') {
            bail!("a line of the stream is longer than {LONGEST_LINE} bytes");
        }
        Ok(())
    }

    /// The next event that is whole.
    fn next(&mut self) -> Option<SentEvent> {
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                let event = std::mem::take(&mut self.open);
                if !event.kind.is_empty() {
                    return Some(event);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => self.open.kind = value.into(),
                "data" => self.open.data.push_str(value),
                // A comment keeps the connection alive; ids are in the states themselves.
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_the_stream_is_cut() {
        let text = ": hello\n\nevent: state\nid: 7\ndata: {\"a\":1}\n\nevent:reset\r\ndata:9\r\n\r\nevent: state\ndata: x\n";
        for size in [1, 3, 7, text.len()] {
            let (mut lines, mut events) = (Lines::default(), Vec::new());
            for chunk in text.as_bytes().chunks(size) {
                lines.push(chunk).unwrap();
                events.extend(std::iter::from_fn(|| lines.next()));
            }
            let told: Vec<_> =
                events.iter().map(|event| (event.kind.as_str(), event.data.as_str())).collect();
            assert_eq!(told, [("state", "{\"a\":1}"), ("reset", "9")], "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; LONGEST_LINE]).unwrap();
        assert!(lines.push(b"x").is_err());
    }
}

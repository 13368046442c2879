//! A journal as lines of JSON, and back.
//!
//! | line | what |
//! |---|---|
//! | first | `{"format": "kubewitness.dev/journal/v1", "documents": …, "selected": …}` |
//! | each state, in order | `{"sum": …, "state": {…}, "document": "…"}` |
//! | last | `{"sum": …, "end": {"states": …, "sources": [{"source", "epoch", "checkpoint"}]}}` |
//!
//! `sum` is the CRC-32 of everything behind its comma, as it stands there, so that a changed byte is
//! found at its line. The document is a text, byte for byte what was witnessed; one that is no text
//! comes as `document_hex`. A gap's document tells its bounds and is always there. Checkpoints are
//! told where nothing was left out by a selection: only then does a watch go on from them. Fields
//! may be added; a reader passes over those that it does not know.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use bytes::Bytes;
use kubewitness_core::document::checksum;
use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::{Append, JournalError, Witness, Witnessed};
use kubewitness_core::{Change, Seq, State, Version};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::journal::Journal;
use crate::read::{Names, documents};
use crate::store::Connection;

pub const FORMAT: &str = "kubewitness.dev/journal/v1";

/// States of one reading, and of one append.
const PAGE: i64 = 256;

/// The longest line: the largest document, each byte of it escaped, and what stands around it.
const LINE: u64 = 6 * kubewitness_core::limits::FRAME_BYTES as u64 + (1 << 20);

/// Which states. Everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportQuery {
    pub source: Option<String>,
    pub namespace: Option<String>,
    /// As people write it.
    pub kind: Option<String>,
    pub name: Option<String>,
    pub uid: Option<String>,
    /// Observed at this moment or later; before this one.
    pub since_ms: Option<u64>,
    pub until_ms: Option<u64>,
    /// Positions behind the one and up to the other.
    pub after: Option<Seq>,
    pub through: Option<Seq>,
    /// Whether the documents are wanted too.
    #[serde(default)]
    pub documents: bool,
}

impl ExportQuery {
    fn is_everything(&self) -> bool {
        Self { documents: self.documents, ..Self::default() } == *self
    }

    fn fits(&self, state: &State) -> bool {
        fn is<'a>(wanted: &Option<String>, found: impl Into<&'a str>) -> bool {
            wanted.as_deref().is_none_or(|wanted| wanted == found.into())
        }
        let object = &state.object;
        is(&self.source, &*state.source)
            && is(&self.namespace, object.namespace.as_str())
            && self.kind.as_deref().is_none_or(|kind| is_kind(&object.group, &object.kind, kind))
            && is(&self.name, object.name.as_str())
            && is(&self.uid, object.uid.as_str())
            && self.since_ms.is_none_or(|since| state.observed_ms >= since)
            && self.until_ms.is_none_or(|until| state.observed_ms < until)
    }
}

/// What was written or taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    pub states: u64,
}

#[derive(Debug, Error)]
pub enum ExportError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("writing: {0}")]
    Write(#[from] std::io::Error),
}

/// A line that cannot be taken in, and what to do.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("line {line}: {reason}; nothing behind it was taken in: {hint}")]
    Line { line: u64, reason: String, hint: &'static str },
    #[error("reading line {line}: {error}")]
    Read { line: u64, error: std::io::Error },
    #[error("line {line}: {error}")]
    Journal { line: u64, error: JournalError },
    #[error("there are {0} states in this journal already: import into an empty data folder or database")]
    NotEmpty(u64),
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    documents: bool,
    selected: bool,
}

#[derive(Deserialize)]
struct Line {
    state: State,
    document: Option<String>,
    document_hex: Option<String>,
}

#[derive(Deserialize)]
struct Last {
    end: End,
}

enum Parsed {
    State(Box<State>, Bytes),
    End(End),
}

#[derive(Serialize, Deserialize)]
struct End {
    states: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sources: Vec<Resumed>,
}

/// From where a source's watch would go on.
#[derive(Serialize, Deserialize)]
struct Resumed {
    source: String,
    epoch: u32,
    checkpoint: String,
}

fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("strings and numbers always serialize")
}

// ---- out ---------------------------------------------------------------------------------

/// One snapshot, a page at a time.
pub(crate) async fn export(
    connection: &mut dyn Connection,
    query: &ExportQuery,
    out: &mut (dyn Write + Send),
) -> Result<Exported, ExportError> {
    connection.begin().await?;
    let rows = connection.rows();
    let header =
        Header { format: FORMAT.into(), documents: query.documents, selected: !query.is_everything() };
    writeln!(out, "{}", text(&header))?;
    let names = Names::default();
    let mut states = 0;
    let mut after = query.after.unwrap_or_default().min(i64::MAX as Seq) as i64;
    loop {
        let envelopes = rows.after(after, PAGE).await?;
        let Some(last) = envelopes.last() else { break };
        after = last.seq as i64;
        for state in names.states(rows, &envelopes).await? {
            if query.through.is_some_and(|through| state.seq > through) {
                after = i64::MAX;
                break;
            }
            if query.fits(&state) {
                let has_document = query.documents || state.change == Change::Gap;
                let document = match has_document {
                    true => documents::document(rows, &names, state.seq).await?,
                    false => None,
                };
                writeln!(out, "{}", line(&state, document.as_deref()))?;
                states += 1;
            }
        }
    }
    let mut sources = Vec::new();
    if query.is_everything() {
        // By source and epoch: the last of a source is what it is at.
        let streams: BTreeMap<_, _> =
            rows.streams().await?.into_iter().map(|stream| (stream.source.clone(), stream)).collect();
        for stream in streams.into_values() {
            stream.check()?;
            let (source, epoch) = (stream.source, stream.epoch);
            sources.extend(stream.checkpoint.map(|checkpoint| Resumed { source, epoch, checkpoint }));
        }
    }
    writeln!(out, "{}", sealed(&format!("\"end\":{}}}", text(&End { states, sources }))))?;
    out.flush()?;
    connection.end().await?;
    Ok(Exported { states })
}

fn line(state: &State, document: Option<&[u8]>) -> String {
    let document = document.map(|bytes| match std::str::from_utf8(bytes) {
        Ok(document) => format!(",\"document\":{}", text(&document)),
        Err(_) => format!(",\"document_hex\":\"{}\"", hex::encode(bytes)),
    });
    sealed(&format!("\"state\":{}{}}}", text(state), document.unwrap_or_default()))
}

fn sealed(rest: &str) -> String {
    format!("{{\"sum\":{},{rest}", checksum(rest.as_bytes()))
}

// ---- in ----------------------------------------------------------------------------------

const AGAIN: &str =
    "export again, or take an unchanged copy of the file, and begin with an empty data folder or database";
const DOCUMENTS: &str = "export with --documents, and begin again";
const OTHER: &str = "name a file that `kubewitness journal export` wrote";

/// Reads lines, counts them, and says which one is wrong.
struct Lines<'a> {
    input: &'a mut (dyn BufRead + Send),
    number: u64,
    buffer: Vec<u8>,
}

impl Lines<'_> {
    fn wrong(&self, reason: impl Into<String>, hint: &'static str) -> ImportError {
        ImportError::Line { line: self.number, reason: reason.into(), hint }
    }

    /// `None` at the end.
    fn next(&mut self) -> Result<Option<&str>, ImportError> {
        use std::io::Read as _;
        self.number += 1;
        self.buffer.clear();
        let mut limited = (&mut *self.input).take(LINE);
        let read = limited.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|error| ImportError::Read { line: self.number, error })?;
        if read == 0 {
            return Ok(None);
        }
        if self.buffer.pop_if(|byte| *byte == b'\n').is_none() {
            return Err(self.wrong("it does not end", AGAIN));
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => Ok(Some(line)),
            Err(_) => {
                Err(ImportError::Line { line: self.number, reason: "it is no text".into(), hint: AGAIN })
            }
        }
    }
}

fn parse(line: &str) -> Result<Parsed, String> {
    let split = line.strip_prefix("{\"sum\":").and_then(|rest| rest.split_once(','));
    let (sum, rest) = split.ok_or("it is neither a state nor the end")?;
    if sum.parse() != Ok(checksum(rest.as_bytes())) {
        return Err("it is not what was exported".into());
    }
    let rest = format!("{{{rest}");
    let failed = |error| format!("it does not decode: {error}");
    if rest.starts_with("{\"end\":") {
        return serde_json::from_str(&rest).map(|Last { end }| Parsed::End(end)).map_err(failed);
    }
    let parsed: Line = serde_json::from_str(&rest).map_err(failed)?;
    let document = match (parsed.document, parsed.document_hex) {
        (Some(document), _) => document.into_bytes(),
        (None, Some(hex)) => hex::decode(&hex).map_err(|_| "its document does not decode")?,
        (None, None) => return Err("it has no document".into()),
    };
    Ok(Parsed::State(Box::new(parsed.state), document.into()))
}

/// What is collected for one append: states of one source and epoch that follow each other.
#[derive(Default)]
struct Batch {
    append: Append,
    first_line: u64,
}

impl Batch {
    fn takes(&self, state: &State) -> bool {
        let Append { source, epoch, states, .. } = &self.append;
        states.is_empty()
            || (*source == state.source && *epoch == state.epoch && states.len() < PAGE as usize)
    }

    fn push(&mut self, state: State, document: Bytes, line: u64) {
        if self.append.states.is_empty() {
            self.append = Append { source: state.source.clone(), epoch: state.epoch, ..Append::default() };
            self.first_line = line;
        }
        self.append.states.push(Witnessed::elsewhere(state, document));
    }

    async fn append(&mut self, journal: &Journal) -> Result<u64, ImportError> {
        let batch = std::mem::take(self);
        if batch.append.states.is_empty() && batch.append.checkpoint.is_none() {
            return Ok(0);
        }
        let failed = |error| ImportError::Journal { line: batch.first_line, error };
        let appended = journal.append(batch.append).await.map_err(failed)?;
        if let Some(place) = appended.seqs.iter().position(Option::is_none) {
            return Err(ImportError::Line {
                line: batch.first_line + place as u64,
                reason: "its id was there before".into(),
                hint: AGAIN,
            });
        }
        Ok(appended.seqs.len() as u64)
    }
}

impl Journal {
    /// Takes in what [`export`](crate::export) wrote, into an empty journal: the same ids, versions
    /// and documents in the same order, at positions of their own.
    pub async fn import(&self, input: &mut (dyn BufRead + Send)) -> Result<Exported, ImportError> {
        let there = self.stats().await.map_err(|error| ImportError::Journal { line: 0, error })?.states;
        if there > 0 {
            return Err(ImportError::NotEmpty(there));
        }
        let mut lines = Lines { input, number: 0, buffer: Vec::new() };
        let header = lines.next()?.and_then(|line| serde_json::from_str::<Header>(line).ok());
        match header {
            None => return Err(lines.wrong("it is not the beginning of an export", OTHER)),
            Some(header) if header.format != FORMAT => {
                let reason = format!("its format is {}, and this program reads {FORMAT}", header.format);
                return Err(lines.wrong(reason, "use the program that wrote it"));
            }
            Some(header) if !header.documents => {
                return Err(lines.wrong("it is without documents", DOCUMENTS));
            }
            Some(_) => {}
        }
        let (mut states, mut batch) = (0, Batch::default());
        loop {
            let number = lines.number + 1;
            let Some(line) = lines.next()? else {
                return Err(lines.wrong("the file ends here, and the export did not", AGAIN));
            };
            let parsed = parse(line);
            match parsed.map_err(|reason| lines.wrong(reason, AGAIN))? {
                Parsed::End(end) => {
                    states += batch.append(self).await?;
                    return self.finish(&mut lines, end, states).await;
                }
                Parsed::State(state, document) => {
                    if !batch.takes(&state) {
                        states += batch.append(self).await?;
                    }
                    batch.push(*state, document, number);
                }
            }
        }
    }

    async fn finish(&self, lines: &mut Lines<'_>, end: End, states: u64) -> Result<Exported, ImportError> {
        if end.states != states {
            let reason = format!("it says that there are {} states, and {states} came", end.states);
            return Err(lines.wrong(reason, AGAIN));
        }
        for Resumed { source, epoch, checkpoint } in end.sources {
            let checkpoint = Some(Version::new(&checkpoint));
            let append = Append { source: source.into(), epoch, checkpoint, ..Append::default() };
            let failed = |error| ImportError::Journal { line: lines.number, error };
            self.append(append).await.map_err(failed)?;
        }
        if lines.next()?.is_some() {
            return Err(lines.wrong("something follows the end", AGAIN));
        }
        Ok(Exported { states })
    }
}

//! Exports a journal as lines of JSON; [`format`](super::format) describes them. It reads one snapshot, and
//! may run beside the process that writes the journal.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::document::{checksum, checksum_behind};
use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::JournalError;
use kubewitness_core::{Change, Seq, State};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::format::{CopyCounts, ExportEnd, ExportHeader, FORMAT, ResumePoint};
use crate::progress::OpeningProgress;
use crate::read::{SharedNames, documents};
use crate::report::OpenError;
use crate::store::place::JournalLocation;
use crate::store::{OpenedJournal, StoreConnection, StoreReader};

/// States of one read.
const PAGE: i64 = 256;

/// The conditions for states. A state must meet all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportQuery {
    pub source: Option<String>,
    pub namespace: Option<String>,
    /// As people type it.
    pub kind: Option<String>,
    pub name: Option<String>,
    pub uid: Option<String>,
    /// Observed at this time or later, and before the other one.
    pub since_ms: Option<u64>,
    pub until_ms: Option<u64>,
    /// Positions after `after`, up to and including `through`.
    pub after: Option<Seq>,
    pub through: Option<Seq>,
    /// Whether to include the documents.
    #[serde(default)]
    pub documents: bool,
}

impl ExportQuery {
    fn is_everything(&self) -> bool {
        Self { documents: self.documents, ..Self::default() } == *self
    }

    fn matches_state(&self, state: &State) -> bool {
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

#[derive(Debug, Error)]
pub enum ExportError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("writing")]
    Write(#[from] std::io::Error),
    /// An import of this file would look complete.
    #[error(
        "{source_name} has {written} states in epoch {epoch}, and the journal counted {counted}: states are missing, so \
         this export is not whole; `kubewitness journal verify` says which"
    )]
    Short { source_name: String, epoch: u32, written: u64, counted: u64 },
}

fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("strings and numbers always serialize")
}

/// Exports one snapshot of a journal as lines of JSON. It may run beside the process that writes.
pub async fn export_journal(
    place: &JournalLocation,
    query: &ExportQuery,
    out: &mut (dyn Write + Send),
) -> Result<CopyCounts, ExportError> {
    export_with(place, query, out, &OpeningProgress::default()).await
}

/// Exports a snapshot, and reports the progress.
pub async fn export_with(
    place: &JournalLocation,
    query: &ExportQuery,
    out: &mut (dyn Write + Send),
    progress: &OpeningProgress,
) -> Result<CopyCounts, ExportError> {
    let OpenedJournal { mut connection, unfinished, .. } = place.open_to_read().await?;
    // The last line would claim that the export is complete.
    if unfinished {
        return Err(OpenError::Unfinished { place: place.to_string() }.into());
    }
    write(&mut *connection, query, out, progress).await
}

/// Passes the states of a query to `take`, oldest first and from one snapshot, until none is left or `take`
/// has enough. It may run beside the process that writes.
pub async fn read_states(
    place: &JournalLocation,
    query: &ExportQuery,
    progress: &OpeningProgress,
    mut take: impl FnMut(&Arc<State>, Option<Bytes>) -> ControlFlow<()> + Send,
) -> Result<(), ExportError> {
    let mut connection = place.open_to_read().await?.connection;
    connection.begin_snapshot().await?;
    walk_states(connection.store_reader(), query, progress, &mut |state, document| Ok(take(state, document)))
        .await?;
    Ok(connection.end_snapshot().await?)
}

/// Writes one snapshot, a page at a time.
async fn write(
    connection: &mut dyn StoreConnection,
    query: &ExportQuery,
    out: &mut (dyn Write + Send),
    progress: &OpeningProgress,
) -> Result<CopyCounts, ExportError> {
    connection.begin_snapshot().await?;
    let rows = connection.store_reader();
    let selected = !query.is_everything();
    let header = ExportHeader { format: FORMAT.into(), documents: query.documents, selected, chained: true };
    let mut lines = ExportLines { out, before: 0 };
    lines.write(&text(&header))?;
    let mut states = 0;
    let mut take = |state: &Arc<State>, document: Option<Bytes>| {
        lines.write_sealed(&encode_state_line(state, document.as_deref()))?;
        states += 1;
        Ok(ControlFlow::Continue(()))
    };
    let found = walk_states(rows, query, progress, &mut take).await?;
    let mut sources = Vec::new();
    if query.is_everything() {
        expect_all(rows, &found).await?;
        // Ordered by source and epoch, so the last entry of a source is its present one.
        let streams: BTreeMap<_, _> =
            rows.source_streams().await?.into_iter().map(|stream| (stream.source.clone(), stream)).collect();
        for stream in streams.into_values() {
            stream.check()?;
            let (source, epoch) = (stream.source, stream.epoch);
            sources.extend(stream.checkpoint.map(|checkpoint| ResumePoint { source, epoch, checkpoint }));
        }
    }
    lines.write_sealed(&format!("\"end\":{}}}", text(&ExportEnd { states, sources })))?;
    lines.out.flush()?;
    connection.end_snapshot().await?;
    Ok(CopyCounts { states })
}

type TakeStates<'t> =
    dyn FnMut(&Arc<State>, Option<Bytes>) -> Result<ControlFlow<()>, ExportError> + Send + 't;

/// Reads a page at a time. It counts the states of each stream, whether they match or not.
async fn walk_states(
    rows: &mut dyn StoreReader,
    query: &ExportQuery,
    progress: &OpeningProgress,
    take: &mut TakeStates<'_>,
) -> Result<HashMap<i64, u64>, ExportError> {
    progress.begin_counting(rows).await?;
    let names = SharedNames::default();
    let mut read = 0;
    let mut found: HashMap<i64, u64> = HashMap::new();
    let mut after = query.after.unwrap_or_default().min(i64::MAX as Seq) as i64;
    loop {
        let envelopes = rows.states_after(after, PAGE).await?;
        let Some(last) = envelopes.last() else { return Ok(found) };
        after = last.seq as i64;
        read += envelopes.len() as u64;
        progress.set_done(read);
        for (envelope, state) in envelopes.iter().zip(names.states_of(rows, &envelopes).await?) {
            *found.entry(names.stream_of(envelope.object)).or_default() += 1;
            if query.through.is_some_and(|through| state.seq > through) {
                return Ok(found);
            }
            if !query.matches_state(&state) {
                continue;
            }
            let has_document = query.documents || state.change == Change::Gap;
            let document = match has_document {
                true => documents::document_at(rows, &names, state.seq).await?,
                false => None,
            };
            if take(&state, document)?.is_break() {
                return Ok(found);
            }
        }
    }
}

/// Compares the number of states with the journal's own counters. An import counts from zero, so it would not
/// notice that a state is missing here.
async fn expect_all(rows: &mut dyn StoreReader, found: &HashMap<i64, u64>) -> Result<(), ExportError> {
    let taken = rows.retention_reader().taken_of_streams().await?;
    for stream in rows.source_streams().await? {
        let written = found.get(&stream.id).copied().unwrap_or_default();
        let counted = stream.states.saturating_sub(taken.get(&stream.id).copied().unwrap_or_default());
        if written != counted {
            let (source_name, epoch) = (stream.source, stream.epoch);
            return Err(ExportError::Short { source_name, epoch, written, counted });
        }
    }
    Ok(())
}

fn encode_state_line(state: &State, document: Option<&[u8]>) -> String {
    let document = document.map(|bytes| match std::str::from_utf8(bytes) {
        Ok(document) => format!(",\"document\":{}", text(&document)),
        Err(_) => format!(",\"document_hex\":\"{}\"", hex::encode(bytes)),
    });
    format!("\"state\":{}{}}}", text(state), document.unwrap_or_default())
}

/// Writes lines, and computes the checksum of everything written.
struct ExportLines<'a> {
    out: &'a mut (dyn Write + Send),
    before: u32,
}

impl ExportLines<'_> {
    fn write_sealed(&mut self, content: &str) -> std::io::Result<()> {
        let rest = format!("\"after\":{},{content}", self.before);
        self.write(&format!("{{\"sum\":{},{rest}", checksum(rest.as_bytes())))
    }

    fn write(&mut self, line: &str) -> std::io::Result<()> {
        self.before = checksum_behind(checksum_behind(self.before, line.as_bytes()), b"\n");
        writeln!(self.out, "{line}")
    }
}

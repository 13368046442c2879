//! Imports the lines of an export into an empty journal: the same ids, versions and documents in the same
//! order, at new positions. It writes through the journal's interface, as a source does, and knows no SQL. So
//! every check of an ordinary append applies to it.
//!
//! From the first line until the last one, the journal is marked [`UNFINISHED`]: `run` and `export` refuse
//! it, and `verify` reports it. An import that failed or was killed leaves the states up to some line. When
//! it is continued, each of these states is compared with its line.
//!
//! [`UNFINISHED`]: crate::store::format::UNFINISHED

mod fault;
mod lines;
mod stories;

use std::collections::{HashSet, VecDeque};
use std::io::BufRead;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::document::checksum;
use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
use kubewitness_core::{Seq, State, Version};

pub use self::fault::ImportError;
use self::fault::{AGAIN, DOCUMENTS, OTHER, SAME};
use self::lines::{ImportLines, ParsedLine};
use self::stories::ImportStreams;
use crate::copy::format::{CopyCounts, ExportEnd, ExportHeader, FORMAT, ResumePoint};
use crate::journal::Journal;

/// States of one append, and of one read of existing states.
const PAGE: usize = 256;
/// Bytes of documents in one append. A single document may be larger, and is then appended alone.
const BATCH_BYTES: usize = 8 << 20;

/// The most sources with checkpoints at the end of an export. Each is an append of its own; nobody watches as
/// many.
const SOURCES: usize = 10_000;

/// The states collected for one append: consecutive states of one source and epoch.
#[derive(Default)]
struct ImportBatch {
    append: AppendBatch,
    first_line: u64,
    bytes: usize,
    /// Set if only the store knows whether the last state is new. Then no further state enters this batch.
    is_closed: bool,
}

impl ImportBatch {
    fn has_room_for(&self, state: &State, document: &[u8]) -> bool {
        let AppendBatch { source, epoch, states, .. } = &self.append;
        let has_room = states.len() < PAGE && self.bytes + document.len() <= BATCH_BYTES;
        let fits = *source == state.source && *epoch == state.epoch && has_room;
        states.is_empty() || (fits && !self.is_closed)
    }

    fn push(&mut self, state: State, document: Bytes, line: u64) {
        if self.append.states.is_empty() {
            self.append =
                AppendBatch { source: state.source.clone(), epoch: state.epoch, ..AppendBatch::default() };
            self.first_line = line;
        }
        self.bytes += document.len();
        self.append.states.push(WitnessedState::from_other_journal(state, document));
    }
}

/// The states from an earlier run of the import. They are read page by page and compared with the lines.
struct ImportedBefore {
    page: VecDeque<(Arc<State>, u32)>,
    after: Seq,
    states: u64,
}

struct JournalImport<'a> {
    journal: &'a Journal,
    lines: ImportLines<'a>,
    stories: ImportStreams,
    imported_before: ImportedBefore,
    batch: ImportBatch,
}

impl Journal {
    /// Imports the output of [`export`](crate::export). If the journal was opened to continue an import,
    /// lines are compared with the existing states as long as these last.
    pub async fn import_lines(&self, input: &mut (dyn BufRead + Send)) -> Result<CopyCounts, ImportError> {
        let failed = |error| ImportError::Journal { line: 0, error };
        let states = self.journal_stats().await.map_err(failed)?.states;
        let is_marked = self.is_unfinished();
        if states > 0 && !is_marked {
            return Err(ImportError::NotEmpty(states));
        }
        let mut lines = ImportLines::of(input);
        let header = read_header(&mut lines)?;
        lines.chained = header.chained;
        // Before any other line is read: from here on the journal is incomplete, whatever happens.
        if !is_marked {
            self.mark_unfinished(true).await.map_err(|error| ImportError::Journal { line: 1, error })?;
        }
        let stories = ImportStreams::new(header.selected);
        let imported_before = ImportedBefore { page: VecDeque::new(), after: 0, states };
        JournalImport { journal: self, lines, stories, imported_before, batch: ImportBatch::default() }
            .run()
            .await
    }
}

fn read_header(lines: &mut ImportLines<'_>) -> Result<ExportHeader, ImportError> {
    let header = lines.next()?.and_then(|line| serde_json::from_str::<ExportHeader>(line).ok());
    match header {
        None => Err(lines.error_at_line("it is not the beginning of an export", OTHER)),
        Some(header) if header.format != FORMAT => {
            let reason = format!("its format is {}, and this program reads {FORMAT}", header.format);
            Err(lines.error_at_line(reason, "use the program that wrote it"))
        }
        Some(header) if !header.documents => {
            Err(lines.error_at_line("the export has no documents", DOCUMENTS))
        }
        Some(header) => Ok(header),
    }
}

impl JournalImport<'_> {
    async fn run(mut self) -> Result<CopyCounts, ImportError> {
        loop {
            match self.lines.next_parsed_line()? {
                ParsedLine::State(state, document) => self.import_state(*state, document).await?,
                ParsedLine::End(end) => return self.finish_import(end).await,
            }
        }
    }

    async fn import_state(&mut self, state: State, document: Bytes) -> Result<(), ImportError> {
        let fits = self.stories.next(&state, &document);
        let needs_lookup = fits.map_err(|contradiction| {
            let reason = format!("its state contradicts the lines before: {}", contradiction.text);
            self.lines.error_at_line(reason, AGAIN)
        })?;
        if self.was_imported(&state, &document).await? {
            return Ok(());
        }
        if !self.batch.has_room_for(&state, &document) {
            self.append_batch().await?;
        }
        self.batch.push(state, document, self.lines.line_number());
        self.batch.is_closed = needs_lookup;
        Ok(())
    }

    /// Whether the state was imported before. Then the two must be equal.
    async fn was_imported(&mut self, state: &State, document: &[u8]) -> Result<bool, ImportError> {
        let ImportedBefore { page, after, states } = &mut self.imported_before;
        if self.stories.count_states() > *states {
            return Ok(false);
        }
        if page.is_empty() {
            let failed = |error| ImportError::Journal { line: self.lines.line_number(), error };
            *page = self.journal.states_with_sums(*after, PAGE).await.map_err(failed)?.into();
        }
        let Some((imported, sum)) = page.pop_front() else {
            let reason =
                format!("the journal lacks states after position {after} that the import had stored");
            return Err(self.lines.error_at_line(reason, SAME));
        };
        *after = imported.seq;
        // Positions differ between journals. If the oldest states are missing, the newer version that made a
        // state late may be among them.
        let is_same = State {
            seq: state.seq,
            late: state.late,
            quotes_none_under: state.quotes_none_under,
            ..(*imported).clone()
        } == *state;
        match is_same && sum == checksum(document) {
            true => Ok(true),
            false => {
                let reason = format!("its state is not the one that the journal has at position {after}");
                Err(self.lines.error_at_line(reason, SAME))
            }
        }
    }

    async fn append_batch(&mut self) -> Result<(), ImportError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.append.states.is_empty() {
            return Ok(());
        }
        let failed = |error| ImportError::Journal { line: batch.first_line, error };
        let appended = self.journal.append_batch(batch.append).await.map_err(failed)?;
        match appended.seqs.iter().position(Option::is_none) {
            None => Ok(()),
            Some(place) => Err(ImportError::Line {
                line: batch.first_line + place as u64,
                reason: "the journal has a state with its id already".into(),
                hint: AGAIN,
            }),
        }
    }

    /// Checks that the end of the export agrees with the lines before it.
    fn check_end(&self, end: &ExportEnd) -> Result<(), ImportError> {
        let states = self.stories.count_states();
        if end.states != states {
            let reason = format!("it counts {} states, and {states} came", end.states);
            return Err(self.lines.error_at_line(reason, AGAIN));
        }
        if self.imported_before.states > states {
            let reason = format!("the journal has {} states already", self.imported_before.states);
            return Err(self.lines.error_at_line(reason, SAME));
        }
        if end.sources.len() > SOURCES {
            let reason = format!("it names more than {SOURCES} sources");
            return Err(self.lines.error_at_line(reason, AGAIN));
        }
        let mut named = HashSet::new();
        for ResumePoint { source, epoch, checkpoint } in &end.sources {
            if !named.insert(source) {
                return Err(self.lines.error_at_line(format!("it names the source {source} twice"), AGAIN));
            }
            self.stories
                .check_checkpoint(source, *epoch, checkpoint)
                .map_err(|contradiction| self.lines.error_at_line(contradiction.text, AGAIN))?;
        }
        Ok(())
    }

    async fn finish_import(mut self, end: ExportEnd) -> Result<CopyCounts, ImportError> {
        self.check_end(&end)?;
        let number = self.lines.line_number();
        if self.lines.next()?.is_some() {
            return Err(self.lines.error_at_line("the file goes on after the end of the export", AGAIN));
        }
        self.append_batch().await?;
        let failed = |error| ImportError::Journal { line: number, error };
        for ResumePoint { source, epoch, checkpoint } in end.sources {
            let checkpoint = Some(Version::new(&checkpoint));
            let append = AppendBatch { source: source.into(), epoch, checkpoint, ..AppendBatch::default() };
            self.journal.append_batch(append).await.map_err(failed)?;
        }
        self.journal.mark_unfinished(false).await.map_err(failed)?;
        Ok(CopyCounts { states: self.stories.count_states() })
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::{Change, ObjectRef, StateId};

    use super::*;

    fn state(seq: Seq) -> State {
        let (object, version) = (ObjectRef { kind: "Job".into(), ..ObjectRef::default() }, Version::new("7"));
        State {
            id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
            seq,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            object: object.into(),
            owner: None,
            resource_version: version,
            status: Arc::default(),
            previous: None,
            observed_ms: 0,
            late: false,
            quotes_none_under: None,
        }
    }

    /// The bytes of each append that lines with such documents make.
    fn appends(documents: &[usize]) -> Vec<usize> {
        let (mut batch, mut appends) = (ImportBatch::default(), Vec::new());
        for (line, bytes) in (1..).zip(documents) {
            let (state, document) = (state(line), Bytes::from(vec![b' '; *bytes]));
            if !batch.has_room_for(&state, &document) {
                appends.push(std::mem::take(&mut batch).bytes);
            }
            batch.push(state, document, line);
        }
        appends.push(batch.bytes);
        appends
    }

    #[test]
    fn an_append_of_an_import_has_a_bound_in_bytes_and_a_larger_document_is_appended_alone() {
        const MIB: usize = 1 << 20;
        assert_eq!(appends(&[MIB; 20]), [8 * MIB, 8 * MIB, 4 * MIB]);
        assert_eq!(appends(&[1, 60 * MIB, 1, 1]), [1, 60 * MIB, 2]);
        assert_eq!(appends(&[1; PAGE + 1]), [PAGE, 1], "and one in number");
    }
}

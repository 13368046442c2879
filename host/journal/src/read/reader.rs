//! One connection that reads, and every query that callers may send to it.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::ports::{
    AuditDifferences, CurrentObject, DeadLetter, FormerEnd, FormerVersion, JournalError, OtherNamespaces,
    PresentPage, StateDocuments, WarmStart,
};
use kubewitness_core::views::{
    EpochView, GapQuery, JournalView, LetterQuery, PoisonQuery, PoisonView, TimelineQuery,
};
use kubewitness_core::{Gap, ObjectRef, Seq, State, reports};
use tokio::sync::mpsc;

use super::ended_objects::{EndedPage, EndedQuery};
use super::moment::{self, AtPage, AtQuery, TimePosition};
use super::read_ahead::RestoredDocuments;
use super::shared_rows::{self, SharedNames};
use super::story::ObjectStory;
use super::{documents, ended_objects, read_ahead, story, watch_start};
use crate::report::{PoisonRecord, ReplayRecord, SourceCounters};
use crate::store::rows::{ObjectChoice, SourceEpoch, StoreResult, bounded_i64, discrepancies, uid};
use crate::store::{OpenStore, RetentionReader, StoreConnection, StoreReader};

/// How many positions one query for other namespaces covers: some 10 ms of a reader.
const OUTSIDE: u64 = 32 * 1024;

/// The number of letters per query, after a query whose letters had lost their states.
const LETTERS: usize = 256;

/// How many reports of one object are read. Retention reduces an object's reports to [`reports::SHOWN`].
const REPORTS_READ: i64 = 4 * reports::SHOWN as i64;

/// Checks that the reader sees the newest position. Retention never removes the newest state. A reader that
/// does not see it reads from a lagging copy, so its missing states must not be skipped.
fn check_sees_newest(seen: Option<Seq>, newest: Seq) -> StoreResult<()> {
    if seen.unwrap_or_default() >= newest {
        return Ok(());
    }
    Err(JournalError::Unavailable(format!(
        "a reader doesn't see position {newest}, which is committed: the journal's address has to lead to the \
         primary, and not through a proxy that sends reads to a replica"
    )))
}

pub(crate) struct JournalReader<'a> {
    connection: Box<dyn StoreConnection>,
    names: &'a SharedNames,
}

impl<'a> JournalReader<'a> {
    pub async fn new(store: &dyn OpenStore, names: &'a SharedNames) -> StoreResult<Self> {
        Ok(Self { connection: store.open_connection().await?, names })
    }

    fn store_reader(&mut self) -> &mut dyn StoreReader {
        self.connection.store_reader()
    }

    /// Access for retention.
    pub fn retention_reader(&mut self) -> &mut dyn RetentionReader {
        self.store_reader().retention_reader()
    }

    pub async fn document_of(&mut self, seq: Seq) -> StoreResult<Option<Bytes>> {
        documents::document_at(self.connection.store_reader(), self.names, seq).await
    }

    /// `newest` was committed before this call.
    pub async fn states_after(
        mut self,
        after: Seq,
        limit: usize,
        newest: Seq,
    ) -> StoreResult<Vec<Arc<State>>> {
        let states = shared_rows::states_after(&mut *self.connection, self.names, after, limit).await?;
        if states.len() < limit {
            check_sees_newest(states.last().map(|state| state.seq), newest)?;
        }
        Ok(states)
    }

    /// Each with the checksum of its document.
    pub async fn states_with_sums(mut self, after: Seq, limit: usize) -> StoreResult<Vec<(Arc<State>, u32)>> {
        let (after, limit) = (after.min(i64::MAX as u64) as i64, limit.min(i64::MAX as usize) as i64);
        let envelopes = self.connection.block_after(after, limit).await?;
        let states = self.names.states_of(self.connection.store_reader(), &envelopes).await?;
        Ok(states.into_iter().zip(envelopes.iter().map(|envelope| envelope.checksum)).collect())
    }

    /// Begins a snapshot that contains everything committed so far.
    async fn begin_at(&mut self, newest: Seq) -> StoreResult<()> {
        self.connection.begin_snapshot().await?;
        // If retention removed the newest state in the meantime, a newer one exists, and the same holds for
        // it.
        let seen = self.store_reader().states_after(newest as i64 - 1, 1).await?;
        check_sees_newest(seen.first().map(|envelope| envelope.seq), newest)
    }

    /// Skips states without reading them; an answer may end early.
    pub async fn states_outside(
        mut self,
        (after, through): (Seq, Seq),
        limit: usize,
        namespaces: &[String],
        newest: Seq,
    ) -> StoreResult<OtherNamespaces> {
        self.begin_at(newest).await?;
        let end = through.min(after.saturating_add(OUTSIDE)).min(i64::MAX as u64);
        let most = limit.min(i64::MAX as usize) as i64;
        let seqs = self.store_reader().positions_outside(after as i64, end as i64, most, namespaces).await?;
        let seqs: Vec<Seq> = seqs.into_iter().map(|seq| seq as u64).collect();
        let looked = seqs.last().copied().filter(|_| seqs.len() >= limit).unwrap_or(end);
        let states = shared_rows::states_at(self.connection.store_reader(), self.names, &seqs).await?;
        self.connection.end_snapshot().await?;
        Ok(OtherNamespaces { states, looked })
    }

    pub async fn states_at(mut self, seqs: &[Seq], newest: Seq) -> StoreResult<Vec<Arc<State>>> {
        self.begin_at(newest).await?;
        let states = shared_rows::states_at(self.connection.store_reader(), self.names, seqs).await?;
        self.connection.end_snapshot().await?;
        Ok(states)
    }

    /// The document of a journaled state.
    pub async fn document_at(mut self, seq: Seq, newest: Seq) -> StoreResult<Option<Bytes>> {
        let found = documents::document_at(self.connection.store_reader(), self.names, seq).await?;
        if found.is_some() {
            return Ok(found);
        }
        // The state was removed since, or is not visible yet.
        self.begin_at(newest).await?;
        let found = documents::document_at(self.connection.store_reader(), self.names, seq).await?;
        self.connection.end_snapshot().await?;
        Ok(found)
    }

    pub async fn document_before(mut self, seq: Seq, newest: Seq) -> StoreResult<Option<Bytes>> {
        let found = documents::document_before(self.connection.store_reader(), self.names, seq).await?;
        if found.is_some() {
            return Ok(found);
        }
        self.begin_at(newest).await?;
        let found = documents::document_before(self.connection.store_reader(), self.names, seq).await?;
        self.connection.end_snapshot().await?;
        Ok(found)
    }

    /// It begins no snapshot: what it does not see is asked for alone.
    pub async fn documents_ahead(
        mut self,
        seqs: &[Seq],
        has_before: bool,
        known: Arc<RestoredDocuments>,
    ) -> StoreResult<Vec<StateDocuments>> {
        read_ahead::read_documents(&mut *self.connection, self.names, seqs, has_before, known).await
    }

    pub async fn newest_of(mut self, object: &ObjectRef) -> StoreResult<Vec<Seq>> {
        self.connection.begin_snapshot().await?;
        let found = story::newest_of(self.connection.store_reader(), object).await?;
        self.connection.end_snapshot().await?;
        Ok(found)
    }

    pub async fn end_of_former(mut self, source: &str, epoch: u32, uid: &str) -> StoreResult<FormerEnd> {
        story::end_of_former(self.connection.store_reader(), source, epoch, uid).await
    }

    /// Finds nothing for a text that is not a number of this format.
    pub async fn newest_version_within(
        mut self,
        source: &str,
        epoch: u32,
        within: &RangeInclusive<u64>,
    ) -> StoreResult<Option<FormerVersion>> {
        let streams = self.store_reader().source_streams().await?;
        let mine = streams.iter().find(|stream| stream.source == source && stream.epoch == epoch);
        let Some(stream) = mine else { return Ok(None) };
        let [from, upto] =
            [within.start(), within.end()].map(|number| i64::try_from(*number).unwrap_or(i64::MAX));
        let Some(seq) = self.store_reader().newest_within(stream.id, from.max(1), upto).await? else {
            return Ok(None);
        };
        let seq = seq as u64;
        let states = shared_rows::states_at(self.connection.store_reader(), self.names, &[seq]).await?;
        let Some(state) = states.first() else { return Ok(None) };
        let document = documents::document_at(self.connection.store_reader(), self.names, seq).await?;
        let before = documents::document_before(self.connection.store_reader(), self.names, seq).await?;
        let (object, version) = (ObjectRef::clone(&state.object), state.resource_version.clone());
        Ok(document.map(|document| FormerVersion { object, version, document, before }))
    }

    /// When the newest version up to this one was observed.
    pub async fn seen_at(mut self, source: &str, epoch: u32, version: &str) -> StoreResult<Option<u64>> {
        let streams = self.store_reader().source_streams().await?;
        let mine = streams.iter().find(|stream| stream.source == source && stream.epoch == epoch);
        let (Some(stream), Ok(upto)) = (mine, version.parse::<i64>()) else { return Ok(None) };
        let Some(seq) = self.store_reader().newest_within(stream.id, 1, upto).await? else { return Ok(None) };
        let found = self.store_reader().observation_times(seq, 1).await?;
        Ok(found.first().map(|(_, observed_ms)| *observed_ms as u64))
    }

    /// The newest epoch of the source.
    pub async fn newest_stream(mut self, source: &str) -> StoreResult<Option<SourceEpoch>> {
        let streams = self.store_reader().source_streams().await?;
        Ok(streams.into_iter().rfind(|stream| stream.source == source))
    }

    pub async fn load_warm_start(
        mut self,
        source: &str,
        parts: mpsc::Sender<Vec<CurrentObject>>,
    ) -> StoreResult<WarmStart> {
        watch_start::send_current_objects(&mut *self.connection, self.names, source, parts).await
    }

    /// Ordered by the objects' own numbers, so a part continues where the previous one ended, whatever was
    /// written in between.
    pub async fn present_objects(
        mut self,
        source: &str,
        from: u64,
        limit: usize,
        newest: Seq,
    ) -> StoreResult<PresentPage> {
        self.begin_at(newest).await?;
        let most = limit.min(i64::MAX as usize) as i64;
        let rows =
            self.store_reader().present_objects(source, from.min(i64::MAX as u64) as i64, most).await?;
        let next = rows.last().filter(|_| rows.len() == limit).map(|(object, _)| *object as u64);
        let envelopes: Vec<_> = rows.into_iter().map(|(_, envelope)| envelope).collect();
        let states = self.names.states_of(self.connection.store_reader(), &envelopes).await?;
        self.connection.end_snapshot().await?;
        Ok(PresentPage { states, next })
    }

    pub async fn object_timeline(mut self, query: &TimelineQuery) -> StoreResult<ObjectStory> {
        story::object_timeline(self.connection.store_reader(), self.names, query).await
    }

    pub async fn ended_objects(mut self, query: &EndedQuery<'_>) -> StoreResult<EndedPage> {
        self.connection.begin_snapshot().await?;
        let page = ended_objects::ended_page(self.connection.store_reader(), self.names, query).await?;
        self.connection.end_snapshot().await?;
        Ok(page)
    }

    pub async fn position_of_time(mut self, at_ms: u64) -> StoreResult<TimePosition> {
        moment::position_of_time(self.store_reader(), at_ms).await
    }

    pub async fn objects_at(mut self, query: &AtQuery<'_>) -> StoreResult<AtPage> {
        self.connection.begin_snapshot().await?;
        let page = moment::objects_at(self.connection.store_reader(), self.names, query).await?;
        self.connection.end_snapshot().await?;
        Ok(page)
    }

    pub async fn object_histories(
        mut self,
        heads: &[Seq],
        most: usize,
    ) -> StoreResult<HashMap<Seq, Vec<Arc<State>>>> {
        moment::object_histories(self.connection.store_reader(), self.names, heads, most).await
    }

    pub async fn letters_at(mut self, plugin: &str, seqs: &[Seq]) -> StoreResult<Vec<(Seq, i64)>> {
        self.store_reader().letters_at(plugin, seqs).await
    }

    pub async fn journal_stats(mut self, bytes: u64) -> StoreResult<JournalView> {
        self.store_reader().journal_stats(bytes).await
    }

    pub async fn all_gaps(mut self) -> StoreResult<Vec<Gap>> {
        self.store_reader().all_gaps().await
    }

    pub async fn source_counters(mut self) -> StoreResult<Vec<SourceCounters>> {
        self.store_reader().source_counters().await
    }

    pub async fn poison_records(
        mut self,
        source: Option<&str>,
        limit: usize,
    ) -> StoreResult<Vec<PoisonRecord>> {
        self.store_reader().poison_records(source, limit).await
    }

    pub async fn gaps_of(mut self, query: &GapQuery) -> StoreResult<Vec<(u64, Gap)>> {
        self.store_reader().gaps_of(query).await
    }

    pub async fn poison_of(mut self, query: &PoisonQuery) -> StoreResult<Vec<PoisonView>> {
        self.store_reader().poison_of(query).await
    }

    pub async fn poison_raw(mut self, number: u64) -> StoreResult<Option<Vec<u8>>> {
        self.store_reader().poison_raw(number).await
    }

    pub async fn audit_differences(mut self, source: &str) -> StoreResult<AuditDifferences> {
        discrepancies::read(self.store_reader().audit_findings(source).await?)
    }

    pub async fn source_epochs(mut self) -> StoreResult<Vec<(String, EpochView)>> {
        self.store_reader().source_epochs().await
    }

    pub async fn count(
        mut self,
        sources: &[Arc<str>],
        after: Seq,
        through: Seq,
        newest: Seq,
    ) -> StoreResult<u64> {
        self.begin_at(newest).await?;
        let count = self.store_reader().count(sources, after, through).await?;
        self.connection.end_snapshot().await?;
        Ok(count)
    }

    pub async fn letters_with_states(
        mut self,
        query: &LetterQuery,
    ) -> StoreResult<Vec<(DeadLetter, Arc<State>)>> {
        let (mut query, mut found) = (query.clone(), Vec::new());
        let limit = query.limit.unwrap_or(usize::MAX);
        loop {
            let letters = self.store_reader().dead_letters(&query).await?;
            let Some(last) = letters.last() else { return Ok(found) };
            query.cursor = Some(LetterCursor::from(last));
            let is_last = query.limit.is_none_or(|limit| letters.len() < limit);
            let seqs: Vec<_> = letters.iter().map(|letter| letter.seq).collect();
            let states = shared_rows::states_at(self.connection.store_reader(), self.names, &seqs).await?;
            let pair = |letter: DeadLetter| {
                let index = states.binary_search_by_key(&letter.seq, |state| state.seq).ok()?;
                Some((letter, states[index].clone()))
            };
            found.extend(letters.into_iter().filter_map(pair));
            // Retention removes the states of dropped letters, so a part of them may be shorter than
            // requested.
            found.truncate(limit);
            if is_last || found.len() == limit {
                return Ok(found);
            }
            query.limit = query.limit.map(|limit| limit.max(LETTERS));
        }
    }

    pub async fn pauses_in_force(mut self) -> StoreResult<Vec<ReplayRecord>> {
        self.store_reader().pauses_in_force().await
    }

    /// The plugins that write reports about objects.
    pub async fn reporting_plugins(&mut self) -> StoreResult<Vec<String>> {
        let mut reporters = Vec::new();
        for (plugin, _) in self.retention_reader().progress_of_all().await? {
            if !self
                .store_reader()
                .report_rows(&plugin, (reports::PREFIX, reports::BEYOND), 1)
                .await?
                .is_empty()
            {
                reporters.push(plugin);
            }
        }
        Ok(reporters)
    }

    pub async fn report_bytes(&mut self, plugin: &str) -> StoreResult<i64> {
        self.store_reader().report_bytes(plugin).await
    }

    /// The reports of a plugin about an object: keys and values.
    pub async fn reports_of(&mut self, plugin: &str, uid: &str) -> StoreResult<Vec<(String, Vec<u8>)>> {
        let (from, below) = reports::keys_of(uid);
        self.store_reader().report_rows(plugin, (&from, &below), REPORTS_READ).await
    }

    /// At most so many keys of a plugin's reports after this one, in order.
    pub async fn report_keys(
        &mut self,
        plugin: &str,
        behind: &str,
        limit: usize,
    ) -> StoreResult<Vec<String>> {
        let from = if behind.is_empty() { reports::PREFIX.to_owned() } else { format!("{behind}\0") };
        let found = self.store_reader().report_rows(plugin, (&from, reports::BEYOND), limit as i64).await?;
        Ok(found.into_iter().map(|(key, _)| key).collect())
    }

    /// Whether the journal has anything about an object.
    pub async fn knows_object(&mut self, uid: &str) -> StoreResult<bool> {
        let found = self.store_reader().find_objects(ObjectChoice::Uid(uid::key(uid))).await?;
        Ok(found.iter().any(|(_, named)| named.object.uid == uid))
    }

    pub async fn replay_records(
        mut self,
        plugin: Option<&str>,
        before: u64,
        limit: usize,
    ) -> StoreResult<Vec<ReplayRecord>> {
        self.store_reader().replay_records(plugin, bounded_i64(before), bounded_i64(limit as u64)).await
    }
}

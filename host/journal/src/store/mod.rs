//! The traits of a store. [`StoreWriter`] is the one connection that writes, under group commit; any number
//! of [`StoreConnection`]s read.
//!
//! SQLite and a database server differ in how they write, lock and recover. What a row means must not differ.
//! So a store keeps rows and knows SQL, but not their meaning: `append` decides it before they are written,
//! `read` and `verify` after. Every store passes the same conformance suite.

pub(crate) mod format;
pub(crate) mod memory;
pub(crate) mod place;
pub(crate) mod rows;
mod server;
mod sqlite;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::ports::{DeadLetter, KvWrite, PluginProgress, ProgressSave};
use kubewitness_core::views::{EpochView, GapQuery, JournalView, LetterQuery, PoisonQuery, PoisonView};
use kubewitness_core::{Gap, Seq, Version};

use crate::report::{JournalReplica, PoisonRecord, ReplayRecord, SourceCounters};
use crate::store::memory::{FoundObject, ObjectIdentity, StoreMemory};
use crate::store::rows::checksum::{SumCell, SummedTable};
use crate::store::rows::removal::{
    LinkRow, RemovalPlan, RemovedCounts, SegmentTally, SharedRows, StateReferences, UnusedRows,
};
use crate::store::rows::{
    ChainStep, CurrentRow, DocumentRow, EndRow, KeptSnapshot, KnownKeys, LetterMarking, LiveRow,
    MarkedLetter, NamedObject, ObjectChoice, ObjectEnds, PlacedObject, RowBatch, SourceEpoch, StateEnvelope,
    StateKey, StoreResult, StoredDocument, StoredRow,
};
pub use server::{ReplicaSharing, ServerAddressError};

/// The state of a store when a transaction begins. Nobody else writes during the transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransactionStart {
    /// Another process has written since this one last read the journal, so its memory is outdated.
    pub is_stale: bool,
    /// Whether this process may write what plugins save.
    pub dispatches: bool,
    /// The newest state, if others may write as well.
    pub newest: Option<Seq>,
}

impl TransactionStart {
    /// The start of a transaction in a store that nobody else writes to.
    pub const ALONE: Self = Self { is_stale: false, dispatches: true, newest: None };
}

/// The pending writes of plugins, by name. Notes come before saves, because a save may remove notes.
#[derive(Debug, Default)]
pub(crate) struct PluginWrites<'w> {
    pub notes: Vec<(&'w str, &'w [KvWrite])>,
    pub saves: Vec<(&'w str, &'w ProgressSave)>,
    pub replays: Vec<LetterMarking>,
    /// A power failure may lose it. A store may make it durable all the same.
    pub is_lax: bool,
}

impl PluginWrites<'_> {
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty() && self.saves.is_empty() && self.replays.is_empty()
    }

    /// The writes of `kv` by plugin, in their order.
    pub fn kv_writes(&self) -> impl Iterator<Item = (&str, &KvWrite)> {
        let saved = self.saves.iter().map(|(plugin, save)| (*plugin, save.kv.as_slice()));
        let all = self.notes.iter().copied().chain(saved);
        all.flat_map(|(plugin, writes)| writes.iter().map(move |write| (plugin, write)))
    }
}

/// The one connection of this process that writes.
#[async_trait]
pub(crate) trait StoreWriter: Send {
    /// Called after a failed or abandoned transaction. Once this returns, it is decided whether that
    /// transaction was committed, and everything read from now on is true.
    async fn reconnect(&mut self) -> StoreResult<()>;

    /// Begins a transaction, which ends with [`commit_rows`](Self::commit_rows), [`remove`](Self::remove),
    /// [`sweep_unused_rows`](Self::sweep_unused_rows) or [`end`](Self::end), or with a [`reconnect`](Self::reconnect) after any
    /// error.
    async fn begin_transaction(&mut self) -> StoreResult<TransactionStart>;

    /// Makes this process the leader, or ends its leadership. Only the leader writes what plugins save. Once
    /// this returns, the former leader can write none of it any more.
    async fn set_leadership(&mut self, leads: bool) -> StoreResult<()>;

    /// Loads the memory of the writer before its first batch.
    async fn load_memory(&mut self) -> StoreResult<StoreMemory>;

    /// Records that the replicas now elect their leader by another Lease.
    async fn elect_by(&mut self, lease: &str) -> StoreResult<()>;

    /// Marks the journal as one with an unfinished import, or removes the mark.
    async fn mark_import(&mut self, unfinished: bool) -> StoreResult<()>;

    /// Removes everything that a plugin saved: its progress, dead letters and keys, and the count of what
    /// retention took from it. The records of replays, drops and pauses stay. Atomic, and durable once this
    /// returns.
    async fn forget_plugin(&mut self, plugin: &str) -> StoreResult<()>;

    /// The rows of these objects, with the ends of their chains.
    async fn find_chain_ends(
        &mut self,
        memory: &StoreMemory,
        strangers: Vec<ObjectIdentity>,
    ) -> StoreResult<Vec<FoundObject>>;

    /// The positions of those keys that already exist.
    async fn find_known_keys(&mut self, questions: Vec<(i64, StateKey)>) -> StoreResult<KnownKeys>;

    /// Atomic, and durable once this returns.
    async fn commit_rows(&mut self, rows: Option<RowBatch>, left: &PluginWrites<'_>) -> StoreResult<()>;

    /// Reads existing rows on the connection that writes.
    fn store_reader(&mut self) -> &mut dyn StoreReader;

    /// Applies a decision of retention, entirely or not at all. Durable once this returns.
    async fn remove(&mut self, removal: &RemovalPlan) -> StoreResult<()>;

    /// Removes rows that nothing refers to; owners only if that still holds. Atomic.
    async fn sweep_unused_rows(&mut self, sweep: &UnusedRows) -> StoreResult<()>;

    /// Ends a transaction that wrote nothing, after a check that the store is still the same one. A
    /// transaction that writes makes this check as well.
    async fn end_transaction(&mut self) -> StoreResult<()>;

    /// Called between two transactions, for the store's own maintenance.
    async fn maintain_store(&mut self);

    async fn close(self: Box<Self>) -> StoreResult<()>;

    /// Releases a store that is in doubt, without changing anything in it.
    fn abandon_store(self: Box<Self>);

    /// Limits the store to so many more pages, like a disk that fills up; `None` removes the limit.
    #[cfg(test)]
    async fn limit_pages(&mut self, more: Option<i64>) -> StoreResult<()>;
}

/// An open store, from the view of its readers.
#[async_trait]
pub(crate) trait OpenStore: Send + Sync {
    async fn open_connection(&self) -> StoreResult<Box<dyn StoreConnection>>;

    /// Measures the store on disk, in bytes.
    async fn size_on_disk(&self) -> StoreResult<u64>;

    /// Agrees on the meaning of a name for all processes that share the store: the first one decides.
    async fn agree_on_name(&self, _name: &str, text: &str) -> StoreResult<String> {
        Ok(text.to_owned())
    }

    /// Changes the meaning, unless it is no longer `before`.
    async fn change_agreed_text(&self, _name: &str, _before: &str, _text: &str) -> StoreResult<bool> {
        Ok(true)
    }

    /// The processes that share it; empty if it is not shared.
    async fn list_replicas(&self) -> StoreResult<Vec<JournalReplica>> {
        Ok(Vec::new())
    }

    /// Announces, to the processes that share the store, since when this process has watched a source without
    /// a break.
    fn announce_watch(&self, _source: &str, _since: Option<(u32, Version)>) {}

    /// Another process that shares the store and has watched the source without a break since before a
    /// version.
    async fn watched_elsewhere(
        &self,
        _source: &str,
        _epoch: u32,
        _before: &Version,
    ) -> StoreResult<Option<String>> {
        Ok(None)
    }

    /// Ends the readers, and releases the store for other processes.
    async fn close(&self) -> StoreResult<()>;
}

/// The queries of retention about a source's history.
#[async_trait]
pub(crate) trait RetentionReader: Send {
    /// Numbers, epochs and checkpoints of a source's streams, the newest epoch last.
    async fn streams_of(&mut self, source: &str) -> StoreResult<Vec<(i64, u32, Option<String>)>>;
    /// The sums of these streams' tallies, in order.
    async fn tallies_of(&mut self, streams: &[i64]) -> StoreResult<Vec<SegmentTally>>;
    /// The progress of all plugins, including removed ones.
    async fn progress_of_all(&mut self) -> StoreResult<Vec<(String, PluginProgress)>>;
    /// Dead letters of any plugin, and states that plugins are owed, between two positions, both included.
    async fn letters_between(&mut self, from: Seq, through: Seq) -> StoreResult<Vec<MarkedLetter>>;
    /// States of these streams between two positions, both included, in order.
    async fn links_between(&mut self, streams: &[i64], from: Seq, through: Seq) -> StoreResult<Vec<LinkRow>>;
    /// The states of an ended object, from its end back to this position, at most so many; in order.
    async fn links_to(&mut self, object: i64, from: Seq, limit: usize) -> StoreResult<Vec<LinkRow>>;
    /// At most so many states of the same uid after a position, the newest first, each with the position
    /// before it.
    async fn chain_after(
        &mut self,
        streams: &[i64],
        object: i64,
        seq: Seq,
        limit: usize,
    ) -> StoreResult<Vec<(Seq, Seq)>>;
    /// Finds the positions to which a state between two others points back: (position, state).
    async fn states_pointing_to(
        &mut self,
        seqs: &[Seq],
        after: Seq,
        through: Seq,
    ) -> StoreResult<Vec<(Seq, Seq)>>;
    /// A state as stored, and its stream.
    async fn stored_at(&mut self, seq: Seq) -> StoreResult<Option<(StateEnvelope, Vec<u8>, i64)>>;
    /// How many of these states exist.
    async fn count_existing(&mut self, seqs: &[Seq]) -> StoreResult<usize>;
    /// Counts the objects whose ends have not changed: ended at this state, and with no unknown state of a
    /// later epoch.
    async fn still_ended(&mut self, streams: &[i64], ends: &[(i64, Seq, bool)]) -> StoreResult<usize>;
    /// How many states retention removed from each stream.
    async fn taken_of_streams(&mut self) -> StoreResult<BTreeMap<i64, u64>>;
    /// Bytes by segment and stream, as retention counts them.
    async fn segment_sizes(&mut self) -> StoreResult<BTreeMap<(u64, i64), u64>>;
    /// Counts for these streams the known objects, those of them that exist, and the bytes of anchors.
    async fn objects_of(&mut self, streams: &[i64]) -> StoreResult<(u64, u64, u64)>;
    /// The greatest number of an object.
    async fn newest_object(&mut self) -> StoreResult<i64>;
    /// Free bytes of the store that will be reused.
    async fn free_bytes(&mut self) -> StoreResult<u64>;
    /// The references of the states after a position, for at most so many states.
    async fn references_after(&mut self, after: Seq, limit: usize) -> StoreResult<StateReferences>;
    /// At most so many numbers of such rows after one, in order. It never returns the greatest number,
    /// because the next one is counted from it.
    async fn shared_row_numbers(
        &mut self,
        which: SharedRows,
        after: i64,
        limit: usize,
    ) -> StoreResult<Vec<i64>>;
    /// At most so many owners and objects whose object row is gone.
    async fn orphaned_owners(&mut self, limit: usize) -> StoreResult<Vec<(i64, i64)>>;
    /// Poison messages of these streams that were observed before a time, at most so many.
    async fn old_poison(&mut self, streams: &[i64], before_ms: u64, limit: usize) -> StoreResult<Vec<i64>>;
    /// Gaps of these streams that belong to no state, with numbers after `after`, in order, at most `limit`;
    /// never the one with the greatest number. Returns numbers and bodies.
    async fn records_after(
        &mut self,
        streams: &[i64],
        after: i64,
        limit: usize,
    ) -> StoreResult<Vec<(i64, String)>>;
    /// Records of operators' acts from before a time, in order, at most `limit`; never the one with the
    /// greatest number, nor a plugin's newest pause or resume, which says whether the plugin is paused.
    async fn old_records(&mut self, before_ms: u64, limit: usize) -> StoreResult<Vec<i64>>;
    /// Those of these records that exist.
    async fn existing_records(&mut self, numbers: &[i64]) -> StoreResult<Vec<i64>>;
    async fn removed_counts(&mut self) -> StoreResult<RemovedCounts>;
}

/// A connection that reads. One that is released within a snapshot is not reused.
#[async_trait]
pub(crate) trait StoreConnection: Send {
    fn store_reader(&mut self) -> &mut dyn StoreReader;

    /// [`StoreReader::states_after`] in the fastest way that the store has for a block of states.
    async fn block_after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        self.store_reader().states_after(after, limit).await
    }

    /// Whether each question is a round trip over a network.
    fn is_on_a_server(&self) -> bool {
        false
    }

    /// The states at these positions with their stored documents, in any order; unknown positions are left out. It ends
    /// early once the documents have so many bytes.
    async fn rows_at(&mut self, seqs: &[i64], most_bytes: usize) -> StoreResult<Vec<DocumentRow>> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for seq in seqs {
            let found = self.store_reader().document_chain(*seq, 1).await?;
            bytes += found.iter().map(|(_, stored)| stored.len()).sum::<usize>();
            rows.extend(found);
            if bytes > most_bytes {
                break;
            }
        }
        Ok(rows)
    }

    /// Begins a snapshot for everything until [`end`](Self::end).
    async fn begin_snapshot(&mut self) -> StoreResult<()>;
    async fn end_snapshot(&mut self) -> StoreResult<()>;
}

/// A journal that is only read.
pub(crate) struct OpenedJournal {
    pub connection: Box<dyn StoreConnection>,
    pub bytes: u64,
    /// The bytes that were written and are not in the file yet.
    pub wal_bytes: u64,
    /// Whether it holds an unfinished import.
    pub unfinished: bool,
}

/// An Event belongs to the object that it is about, but is not a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnedKind {
    Events,
    Others,
}

/// The statements of a connection that reads. Rows are compared with their checksums here, because only the
/// store knows their stored form.
#[async_trait]
pub(crate) trait StoreReader: Send {
    // ---- states, and what they share ----

    /// In order.
    async fn states_after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>>;
    /// Positions in `(after, through]` of objects in none of these namespaces, in order, at most so many.
    async fn positions_outside(
        &mut self,
        after: i64,
        through: i64,
        limit: i64,
        namespaces: &[String],
    ) -> StoreResult<Vec<i64>>;
    /// The position of the newest version of a stream between two numbers, both included.
    async fn newest_within(&mut self, stream: i64, from: i64, upto: i64) -> StoreResult<Option<i64>>;
    /// The position of an object's end, if it was witnessed.
    async fn end_of(&mut self, object: i64) -> StoreResult<Option<i64>>;
    /// In order; unknown positions are left out.
    async fn states_at(&mut self, seqs: &[i64]) -> StoreResult<Vec<StateEnvelope>>;
    /// The state at a position and those that its document is a delta on, the newest first.
    async fn document_chain(&mut self, seq: i64, most: u32) -> StoreResult<Vec<(StateEnvelope, Vec<u8>)>>;
    async fn find_objects(&mut self, which: ObjectChoice<'_>) -> StoreResult<Vec<(i64, NamedObject)>>;
    /// Number, body, sum.
    async fn status_rows(&mut self, numbers: &[i64]) -> StoreResult<Vec<(i64, String, i64)>>;
    /// Ordered by source and epoch.
    async fn source_streams(&mut self) -> StoreResult<Vec<SourceEpoch>>;
    /// Checksum and packed document.
    async fn anchor_row(&mut self, number: i64) -> StoreResult<Option<(i64, Vec<u8>)>>;

    // ---- what exists now ----

    /// At most so many live objects of a source after a number, in order of number.
    async fn current_objects(&mut self, source: &str, after: i64, limit: i64)
    -> StoreResult<Vec<CurrentRow>>;
    /// Reads the states at these positions, in any order; unknown positions are left out.
    async fn stored_documents(&mut self, seqs: &[Seq]) -> StoreResult<Vec<StoredDocument>>;
    /// Reads at most so many objects of a source after a number, without their documents.
    async fn present_objects(
        &mut self,
        source: &str,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<(i64, StateEnvelope)>>;

    // ---- one object's story ----

    /// Objects that one of these owned, with numbers below one, the newest first.
    async fn owned_objects(
        &mut self,
        owners: &[i64],
        which: OwnedKind,
        below: i64,
        limit: i64,
    ) -> StoreResult<Vec<i64>>;
    /// The newest positions of these objects before one, found along the chains, from that position or from
    /// their ends. A server refuses a chain longer than `walked`.
    async fn story_positions(
        &mut self,
        objects: &[i64],
        before: i64,
        limit: i64,
        walked: i64,
    ) -> StoreResult<Vec<i64>>;

    // ---- what existed at a moment ----

    /// States from a position on, in order, each with its observation time.
    async fn observation_times(&mut self, from: i64, limit: i64) -> StoreResult<Vec<(i64, i64)>>;
    /// Objects that have ended and do not exist again, by their ends.
    async fn ended_objects(&mut self, ends: ObjectEnds) -> StoreResult<Vec<PlacedObject>>;
    /// At most so many live objects of these streams after a number, in order of number.
    async fn living_objects(
        &mut self,
        streams: &[i64],
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<PlacedObject>>;
    /// Walks back along the chains from these positions, in any order. Each walk ends at the first state at
    /// or before a position that is not late, or after so many steps.
    async fn walk_chains(&mut self, heads: &[Seq], through: Seq, steps: i64) -> StoreResult<Vec<ChainStep>>;
    /// Those of these positions that are dead letters of a plugin, each with its mark.
    async fn letters_at(&mut self, plugin: &str, seqs: &[Seq]) -> StoreResult<Vec<(Seq, i64)>>;
    /// Positions that are owed to a plugin, from one on, in order, at most so many.
    async fn owed_positions(&mut self, plugin: &str, from: i64, limit: i64) -> StoreResult<Vec<i64>>;

    // ---- figures and findings ----

    async fn journal_stats(&mut self, bytes: u64) -> StoreResult<JournalView>;
    async fn source_counters(&mut self) -> StoreResult<Vec<SourceCounters>>;
    /// In the order of their records.
    async fn all_gaps(&mut self) -> StoreResult<Vec<Gap>>;
    /// Newest first, each with its number.
    async fn gaps_of(&mut self, query: &GapQuery) -> StoreResult<Vec<(u64, Gap)>>;
    async fn poison_records(&mut self, source: Option<&str>, limit: usize) -> StoreResult<Vec<PoisonRecord>>;
    async fn poison_of(&mut self, query: &PoisonQuery) -> StoreResult<Vec<PoisonView>>;
    async fn poison_raw(&mut self, number: u64) -> StoreResult<Option<Vec<u8>>>;
    /// Stream, number and body of the findings of a source's audits, newest first.
    async fn audit_findings(&mut self, source: &str) -> StoreResult<Vec<(i64, i64, String)>>;
    async fn source_epochs(&mut self) -> StoreResult<Vec<(String, EpochView)>>;

    // ---- what plugins saved ----

    async fn count(&mut self, sources: &[Arc<str>], after: Seq, through: Seq) -> StoreResult<u64>;
    async fn plugin_progress(&mut self, plugin: &str) -> StoreResult<Option<PluginProgress>>;
    /// Ordered by plugin and position; letters of all plugins if none is named.
    async fn dead_letters(&mut self, query: &LetterQuery) -> StoreResult<Vec<DeadLetter>>;
    /// All keys except its reports of objects.
    async fn plugin_kv(&mut self, plugin: &str) -> StoreResult<Vec<(String, Vec<u8>)>>;
    /// Its reports about objects: at most so many keys in order, from the first key up to the second, which
    /// is excluded.
    async fn report_rows(
        &mut self,
        plugin: &str,
        keys: (&str, &str),
        limit: i64,
    ) -> StoreResult<Vec<(String, Vec<u8>)>>;
    /// The total size of its reports.
    async fn report_bytes(&mut self, plugin: &str) -> StoreResult<i64>;
    async fn replay_records(
        &mut self,
        plugin: Option<&str>,
        before: i64,
        limit: i64,
    ) -> StoreResult<Vec<ReplayRecord>>;
    /// The plugins that are paused, each with the record of its pause.
    async fn pauses_in_force(&mut self) -> StoreResult<Vec<ReplayRecord>>;

    /// Access for retention.
    fn retention_reader(&mut self) -> &mut dyn RetentionReader;

    // ---- for the proof ----

    /// The findings of the store's own check.
    async fn structure_findings(&mut self) -> StoreResult<Vec<String>>;
    /// In order.
    async fn stored_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StoredRow>>;
    /// Current objects by number.
    async fn live_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<LiveRow>>;
    /// Ordered by the number of the object.
    async fn snapshot_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<KeptSnapshot>>;
    /// Objects of a source by number, with the ends of the chains of those that have ended.
    async fn end_rows(&mut self, after: i64, limit: i64) -> StoreResult<Vec<EndRow>>;
    /// All objects by number, owners too, with their lookup keys: that of the uid, and that of the name.
    async fn object_keys(&mut self, after: i64, limit: i64) -> StoreResult<Vec<(i64, i64, i64)>>;
    /// At most so many rows of a table with their checksums, in key order: after a number if the key is one,
    /// otherwise after so many rows.
    async fn sealed_rows(
        &mut self,
        table: &SummedTable,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<Vec<SumCell>>>;
    /// Some of the owner links that are not as written, or whose owner does not exist.
    async fn wrong_owner_links(&mut self) -> StoreResult<Vec<(i64, i64)>>;
    /// Some of the objects that are not found by their owner.
    async fn missing_owner_links(&mut self) -> StoreResult<Vec<i64>>;
    /// Segment, stream, states.
    async fn segment_tallies(&mut self) -> StoreResult<Vec<(i64, i64, i64)>>;
    /// Name and progress in their stored form.
    async fn plugin_rows(&mut self) -> StoreResult<Vec<(String, String)>>;
    /// The letters of a plugin, and how many of them are not being replayed.
    async fn letter_counts(&mut self, plugin: &str) -> StoreResult<(i64, i64)>;
    /// Some of a plugin's letters whose states are missing.
    async fn orphaned_letters(&mut self, plugin: &str) -> StoreResult<Vec<i64>>;
}

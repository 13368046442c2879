//! The traits of a store. [`Writes`] is the one connection that writes, under group commit; any number
//! of [`Connection`]s read. A store keeps rows and knows SQL. It does not know what rows mean: `append`
//! decides that before they are written, `read` and `verify` after.

pub(crate) mod format;
pub(crate) mod memory;
pub(crate) mod place;
pub(crate) mod rows;
mod server;
mod sqlite;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::ports::{DeadLetter, KvWrite, Progress, Save};
use kubewitness_core::views::{EpochView, GapQuery, JournalView, LetterQuery, PoisonQuery, PoisonView};
use kubewitness_core::{Gap, Seq, Version};

use crate::report::{PoisonRecord, ReplayRecord, Replica, SourceCounters};
use crate::store::memory::{Found, Identity, Memory};
use crate::store::rows::checksum::{Cell, Table};
use crate::store::rows::removal::{LinkRow, References, Removal, SharedRows, Sweep, Taken, Tally};
use crate::store::rows::{
    Answer, CurrentRow, EndRow, Ends, Envelope, KeptSnapshot, Key, Known, LiveRow, Named, Placed, Replay,
    Rows, Step, StoredDocument, StoredRow, Stream, Which,
};
pub use server::Sharing;

/// How a store stands as a transaction begins, beside which nobody else writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Another process has written since this one last learned what is there: what it remembers isn't
    /// so any more.
    pub is_stale: bool,
    /// This process may write what plugins left.
    pub dispatches: bool,
    /// The newest state, where others may write as well.
    pub newest: Option<Seq>,
}

impl Turn {
    /// Of a store that nobody else writes to.
    pub const ALONE: Self = Self { is_stale: false, dispatches: true, newest: None };
}

/// What plugins left, by their names. Notes come before saves, which may remove them.
#[derive(Debug, Default)]
pub(crate) struct Left<'w> {
    pub notes: Vec<(&'w str, &'w [KvWrite])>,
    pub saves: Vec<(&'w str, &'w Save)>,
    pub replays: Vec<Replay>,
    /// A loss of power may take it. A store may keep it all the same.
    pub is_lax: bool,
}

impl Left<'_> {
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty() && self.saves.is_empty() && self.replays.is_empty()
    }

    /// The writes of `kv` by plugin, in their order.
    pub fn kv(&self) -> impl Iterator<Item = (&str, &KvWrite)> {
        let saved = self.saves.iter().map(|(plugin, save)| (*plugin, save.kv.as_slice()));
        let all = self.notes.iter().copied().chain(saved);
        all.flat_map(|(plugin, writes)| writes.iter().map(move |write| (plugin, write)))
    }
}

/// The one connection of this process that writes.
#[async_trait]
pub(crate) trait Writes: Send {
    /// After a failed or abandoned transaction. Once this returns, it is decided whether that one
    /// was committed: what is read from now on is true.
    async fn reconnect(&mut self) -> Answer<()>;

    /// Begins a transaction, which ends with [`commit`](Self::commit), [`remove`](Self::remove),
    /// [`sweep`](Self::sweep) or [`end`](Self::end), or with a [`reconnect`](Self::reconnect) after any
    /// error.
    async fn begin(&mut self) -> Answer<Turn>;

    /// Makes this process the leader, or ends that: only the leader writes what plugins save. The leader
    /// before writes nothing of it once this returns.
    async fn lead(&mut self, leads: bool) -> Answer<()>;

    /// What the writer has to know before its first batch.
    async fn memory(&mut self) -> Answer<Memory>;

    /// Notes that the replicas elect their leader by another Lease now.
    async fn elect_by(&mut self, lease: &str) -> Answer<()>;

    /// Marks the journal as one with an import that has not come to its end, or as a whole one.
    async fn mark(&mut self, unfinished: bool) -> Answer<()>;

    /// Takes away what a plugin saved: its progress, dead letters and keys, and how much retention took from it. The
    /// record of who replayed, dropped and paused stays. Everything or nothing; durable once this returns.
    async fn forget(&mut self, plugin: &str) -> Answer<()>;

    /// The rows of these objects, with the ends of their chains.
    async fn tails(&mut self, memory: &Memory, strangers: Vec<Identity>) -> Answer<Vec<Found>>;

    /// The positions of those keys that the journal has.
    async fn keys(&mut self, questions: Vec<(i64, Key)>) -> Answer<Known>;

    /// Everything or nothing; durable once this returns.
    async fn commit(&mut self, rows: Option<Rows>, left: &Left<'_>) -> Answer<()>;

    /// What is there, read where it is written.
    fn rows(&mut self) -> &mut dyn Fetch;

    /// What retention decided. Everything or nothing; durable once this returns.
    async fn remove(&mut self, removal: &Removal) -> Answer<()>;

    /// Rows that nothing refers to; owners only if that is still so. Everything or nothing.
    async fn sweep(&mut self, sweep: &Sweep) -> Answer<()>;

    /// Ends a transaction that wrote nothing, after a check that the store is still the same one. A
    /// transaction that writes makes this check as well.
    async fn end(&mut self) -> Answer<()>;

    /// Between two transactions: what the store needs to stay in shape.
    async fn tend(&mut self);

    async fn close(self: Box<Self>) -> Answer<()>;

    /// Lets go of a store that is in doubt, and changes nothing of it any more.
    fn abandon(self: Box<Self>);

    /// Lets the store grow to so many pages more, as a disk that fills up; `None` lets it grow.
    #[cfg(test)]
    async fn limit_pages(&mut self, more: Option<i64>) -> Answer<()>;
}

/// An open store, as its readers see it.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    async fn connection(&self) -> Answer<Box<dyn Connection>>;

    /// What it takes on disk.
    async fn bytes(&self) -> Answer<u64>;

    /// What the processes that share it mean by a name: the first that says so decides.
    async fn agree(&self, _name: &str, text: &str) -> Answer<String> {
        Ok(text.to_owned())
    }

    /// Changes what they mean, unless it is no longer `before`.
    async fn agree_anew(&self, _name: &str, _before: &str, _text: &str) -> Answer<bool> {
        Ok(true)
    }

    /// The processes that share it; none where one alone has it.
    async fn replicas(&self) -> Answer<Vec<Replica>> {
        Ok(Vec::new())
    }

    /// Since when this process's watch of a source goes on, for the others that share it.
    fn watches(&self, _source: &str, _since: Option<(u32, Version)>) {}

    /// Another process that shares it and whose watch of the source began before a version and goes on.
    async fn watched_elsewhere(
        &self,
        _source: &str,
        _epoch: u32,
        _before: &Version,
    ) -> Answer<Option<String>> {
        Ok(None)
    }

    /// Ends the readers, and lets another process open it.
    async fn close(&self) -> Answer<()>;
}

/// What retention asks about a source's history.
#[async_trait]
pub(crate) trait Past: Send {
    /// Numbers, epochs and checkpoints of a source's streams, the newest epoch last.
    async fn streams_of(&mut self, source: &str) -> Answer<Vec<(i64, u32, Option<String>)>>;
    /// Of these streams together, in order.
    async fn tallies_of(&mut self, streams: &[i64]) -> Answer<Vec<Tally>>;
    /// Of all plugins that ever were.
    async fn progress_of_all(&mut self) -> Answer<Vec<(String, Progress)>>;
    /// Positions of dead letters of any plugin between two positions, both included; and whether all
    /// letters of a position were dropped.
    async fn letters_between(&mut self, from: Seq, through: Seq) -> Answer<Vec<(Seq, bool)>>;
    /// States of these streams between two positions, both included, in order.
    async fn links(&mut self, streams: &[i64], from: Seq, through: Seq) -> Answer<Vec<LinkRow>>;
    /// The states of an object that has ended, from its end back to this position, at most so many;
    /// in order.
    async fn links_to(&mut self, object: i64, from: Seq, limit: usize) -> Answer<Vec<LinkRow>>;
    /// The states of the same uid behind a position, the newest first, at most so many: each with
    /// the position before it.
    async fn behind(
        &mut self,
        streams: &[i64],
        object: i64,
        seq: Seq,
        limit: usize,
    ) -> Answer<Vec<(Seq, Seq)>>;
    /// Of these positions, those that a state between two others points back to: (position, state).
    async fn pointing(&mut self, seqs: &[Seq], after: Seq, through: Seq) -> Answer<Vec<(Seq, Seq)>>;
    /// A state as it lies there, and its stream.
    async fn stored_at(&mut self, seq: Seq) -> Answer<Option<(Envelope, Vec<u8>, i64)>>;
    /// How many of these states are there.
    async fn there(&mut self, seqs: &[Seq]) -> Answer<usize>;
    /// Of these objects and their ends, how many are as they were: ended, at this state, and with
    /// nothing of a later epoch but what is known of.
    async fn still_ended(&mut self, streams: &[i64], ends: &[(i64, Seq, bool)]) -> Answer<usize>;
    /// How many states retention took of each stream.
    async fn taken_of_streams(&mut self) -> Answer<BTreeMap<i64, u64>>;
    /// Bytes by segment and stream, as retention counts them.
    async fn sizes(&mut self) -> Answer<BTreeMap<(u64, i64), u64>>;
    /// Of these streams: objects that are known, those of them that are there, and the bytes of
    /// anchors.
    async fn objects_of(&mut self, streams: &[i64]) -> Answer<(u64, u64, u64)>;
    /// The greatest number of an object.
    async fn newest_object(&mut self) -> Answer<i64>;
    /// Bytes of the store that wait to be used again.
    async fn free_bytes(&mut self) -> Answer<u64>;
    /// What states behind a position refer to, at most so many of them.
    async fn references(&mut self, after: Seq, limit: usize) -> Answer<References>;
    /// Numbers of such rows behind one, in order, at most so many; never the greatest of all, from
    /// which the next is counted.
    async fn shared(&mut self, which: SharedRows, after: i64, limit: usize) -> Answer<Vec<i64>>;
    /// Owners and objects of which the object is gone, at most so many.
    async fn orphaned(&mut self, limit: usize) -> Answer<Vec<(i64, i64)>>;
    /// Poison of these streams that was observed before a moment, at most so many.
    async fn old_poison(&mut self, streams: &[i64], before_ms: u64, limit: usize) -> Answer<Vec<i64>>;
    /// What retention took of each plugin's states.
    async fn taken(&mut self) -> Answer<BTreeMap<String, Taken>>;
}

/// A connection that reads. One that is let go of within a snapshot is not used again.
#[async_trait]
pub(crate) trait Connection: Send {
    fn rows(&mut self) -> &mut dyn Fetch;

    /// [`Fetch::after`] in the fastest way that the store has for a block of states.
    async fn after(&mut self, after: i64, limit: i64) -> Answer<Vec<Envelope>> {
        self.rows().after(after, limit).await
    }

    /// One snapshot for everything until [`end`](Self::end).
    async fn begin(&mut self) -> Answer<()>;
    async fn end(&mut self) -> Answer<()>;
}

/// A journal that is only read.
pub(crate) struct Opened {
    pub connection: Box<dyn Connection>,
    pub bytes: u64,
    /// Of a file: what was written and is not in it yet.
    pub wal_bytes: u64,
    /// It holds an import that has not come to its end.
    pub unfinished: bool,
}

/// An Event belongs to the object that it is about, but is none of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Events,
    Others,
}

/// The statements of a connection that reads. Rows are compared with their sums here, since only
/// here it is known how they lie there.
#[async_trait]
pub(crate) trait Fetch: Send {
    // ---- states, and what they share ----

    /// In order.
    async fn after(&mut self, after: i64, limit: i64) -> Answer<Vec<Envelope>>;
    /// Positions in `(after, through]` of objects that are in none of these namespaces, in order, at
    /// most so many.
    async fn outside(
        &mut self,
        after: i64,
        through: i64,
        limit: i64,
        namespaces: &[String],
    ) -> Answer<Vec<i64>>;
    /// Where the newest version of a stream within two numbers is, they included.
    async fn newest_within(&mut self, stream: i64, from: i64, upto: i64) -> Answer<Option<i64>>;
    /// Where the end of an object is, if it was witnessed.
    async fn end_of(&mut self, object: i64) -> Answer<Option<i64>>;
    /// In order; unknown positions are left out.
    async fn at(&mut self, seqs: &[i64]) -> Answer<Vec<Envelope>>;
    /// The state at a position and those that its document is a delta on, the newest first.
    async fn chain(&mut self, seq: i64, most: u32) -> Answer<Vec<(Envelope, Vec<u8>)>>;
    async fn objects(&mut self, which: Which<'_>) -> Answer<Vec<(i64, Named)>>;
    /// Number, body, sum.
    async fn statuses(&mut self, numbers: &[i64]) -> Answer<Vec<(i64, String, i64)>>;
    /// By source and epoch.
    async fn streams(&mut self) -> Answer<Vec<Stream>>;
    /// Checksum and packed document.
    async fn anchor(&mut self, number: i64) -> Answer<Option<(i64, Vec<u8>)>>;

    // ---- what is there now ----

    /// Live objects of a source behind a number, by number, at most so many.
    async fn current(&mut self, source: &str, after: i64, limit: i64) -> Answer<Vec<CurrentRow>>;
    /// Of these positions, in any order; unknown ones are left out.
    async fn links(&mut self, seqs: &[Seq]) -> Answer<Vec<StoredDocument>>;
    /// Of a source, behind a number, at most so many; the documents stay where they are.
    async fn present(&mut self, source: &str, after: i64, limit: i64) -> Answer<Vec<(i64, Envelope)>>;

    // ---- one object's story ----

    /// Objects that one of these owned, with numbers below one, the newest first.
    async fn owned(&mut self, owners: &[i64], which: Owned, below: i64, limit: i64) -> Answer<Vec<i64>>;
    /// The newest positions of these objects before one: along the chains, from that one or from their ends. A server
    /// refuses what lies more than so many states behind an end.
    async fn story(&mut self, objects: &[i64], before: i64, limit: i64, walked: i64) -> Answer<Vec<i64>>;

    // ---- what was there at a moment ----

    /// States from a position on, in order: each with when it was observed.
    async fn moments(&mut self, from: i64, limit: i64) -> Answer<Vec<(i64, i64)>>;
    /// Objects that have ended and are not there again, by their ends.
    async fn ended(&mut self, ends: Ends) -> Answer<Vec<Placed>>;
    /// Live objects of these streams behind a number, by number, at most so many.
    async fn living(&mut self, streams: &[i64], after: i64, limit: i64) -> Answer<Vec<Placed>>;
    /// Back along the chains from these positions, in any order: each as far as the first state in its
    /// turn at or before a position, and no more than so many steps.
    async fn walk(&mut self, heads: &[Seq], through: Seq, steps: i64) -> Answer<Vec<Step>>;
    /// Of these positions, those of a plugin's dead letters, each with its mark.
    async fn letters_at(&mut self, plugin: &str, seqs: &[Seq]) -> Answer<Vec<(Seq, i64)>>;

    // ---- figures and findings ----

    async fn stats(&mut self, bytes: u64) -> Answer<JournalView>;
    async fn source_counters(&mut self) -> Answer<Vec<SourceCounters>>;
    /// In the order in which they were recorded.
    async fn gaps(&mut self) -> Answer<Vec<Gap>>;
    /// Newest first, each with its number.
    async fn gaps_of(&mut self, query: &GapQuery) -> Answer<Vec<(u64, Gap)>>;
    async fn poison(&mut self, source: Option<&str>, limit: usize) -> Answer<Vec<PoisonRecord>>;
    async fn poison_of(&mut self, query: &PoisonQuery) -> Answer<Vec<PoisonView>>;
    async fn poison_raw(&mut self, number: u64) -> Answer<Option<Vec<u8>>>;
    /// Stream, number and body of what audits of a source found, newest first.
    async fn discrepancies(&mut self, source: &str) -> Answer<Vec<(i64, i64, String)>>;
    async fn epochs(&mut self) -> Answer<Vec<(String, EpochView)>>;

    // ---- what plugins left ----

    async fn count(&mut self, sources: &[Arc<str>], after: Seq, through: Seq) -> Answer<u64>;
    async fn progress(&mut self, plugin: &str) -> Answer<Option<Progress>>;
    /// By plugin and position; of all plugins where none is named.
    async fn letters(&mut self, query: &LetterQuery) -> Answer<Vec<DeadLetter>>;
    /// All but what it reports of objects.
    async fn kv(&mut self, plugin: &str) -> Answer<Vec<(String, Vec<u8>)>>;
    /// What it reports of objects: keys from the first on and below the second, in order, at most so many.
    async fn reports(
        &mut self,
        plugin: &str,
        keys: (&str, &str),
        limit: i64,
    ) -> Answer<Vec<(String, Vec<u8>)>>;
    /// How many bytes its reports have.
    async fn report_bytes(&mut self, plugin: &str) -> Answer<i64>;
    async fn replays(&mut self, plugin: Option<&str>, before: i64, limit: i64) -> Answer<Vec<ReplayRecord>>;
    /// Of each plugin the newest record of a pause or a resume, where it is a pause.
    async fn pauses(&mut self) -> Answer<Vec<ReplayRecord>>;

    /// For retention.
    fn past(&mut self) -> &mut dyn Past;

    // ---- for the proof ----

    /// What the store's own check finds.
    async fn structure(&mut self) -> Answer<Vec<String>>;
    /// In order.
    async fn stored(&mut self, after: i64, limit: i64) -> Answer<Vec<StoredRow>>;
    /// Current objects by number.
    async fn live(&mut self, after: i64, limit: i64) -> Answer<Vec<LiveRow>>;
    /// By number of the object.
    async fn snapshots(&mut self, after: i64, limit: i64) -> Answer<Vec<KeptSnapshot>>;
    /// Objects of a source by number, with the ends of the chains of those that have ended.
    async fn ends(&mut self, after: i64, limit: i64) -> Answer<Vec<EndRow>>;
    /// All objects by number, owners too, with what they are found by: of the uid, and of the name.
    async fn object_keys(&mut self, after: i64, limit: i64) -> Answer<Vec<(i64, i64, i64)>>;
    /// Rows of a table with their sums, by key: behind a number where they have one, else behind so
    /// many rows. At most so many.
    async fn sealed(&mut self, table: &Table, after: i64, limit: i64) -> Answer<Vec<Vec<Cell>>>;
    /// Owners and objects that are not what was written, or whose owner is not there, some of them.
    async fn misowned(&mut self) -> Answer<Vec<(i64, i64)>>;
    /// Objects that are not found by their owner, some of them.
    async fn unowned(&mut self) -> Answer<Vec<i64>>;
    /// Segment, stream, states.
    async fn tallies(&mut self) -> Answer<Vec<(i64, i64, i64)>>;
    /// Name and progress as it is written.
    async fn plugins(&mut self) -> Answer<Vec<(String, String)>>;
    /// Letters of a plugin, and those of them that are not taken back.
    async fn letter_counts(&mut self, plugin: &str) -> Answer<(i64, i64)>;
    /// Letters of a plugin without their states, some of them.
    async fn orphans(&mut self, plugin: &str) -> Answer<Vec<i64>>;
}

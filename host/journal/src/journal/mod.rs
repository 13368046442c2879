//! The handle of an open journal, which the rest of the program holds: it opens a store and joins appending
//! and reading.
//!
//! Callers must not know which store they use, whether others share it, or how commits are grouped. So they
//! get one cheap handle with the operations of the domain. Writes go through the group commit. Reads take a
//! connection of their own, so that no reader delays the writer. After a write whose result is unknown, the
//! handle refuses further work. It decides nothing about states or rows.

mod ports;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ports::{Backlog, DeadLetter, JournalError, PluginPause, PluginProgress, ProgressSave};
use kubewitness_core::views::{
    EpochView, GapQuery, JournalView, LetterQuery, PoisonQuery, PoisonView, ReportView, TimelineQuery,
};
use kubewitness_core::{Gap, Seq, State, reports};

use crate::append::group::{FactsCheck, GroupCommit, GroupWork};
use crate::append::recent::RecentStates;
use crate::read::{
    AtPage, AtQuery, EndedPage, EndedQuery, JournalReader, ObjectStory, RestoredDocuments, SharedNames,
    TimePosition,
};
use crate::report::{JournalReplica, OpenError, PoisonRecord, ReplayRecord, SourceCounters};
use crate::store::place::JournalLocation;
use crate::store::rows::removal::{RemovalPlan, UnusedRows};
use crate::store::rows::{LetterMarking, OperatorAct};
use crate::store::{OpenStore, ReplicaSharing};

#[derive(Clone)]
pub struct JournalOptions {
    pub clock: Arc<dyn Clock>,
    /// Connections that read, beside the one that writes.
    pub readers: u32,
    /// The most states kept in memory, so that dispatchers at the end don't read the disk; limited by number
    /// and by bytes.
    pub recent: usize,
    pub recent_bytes: usize,
    /// Set if other processes witness the same cluster. Only a server's journal can be shared.
    pub sharing: Option<ReplicaSharing>,
    /// Whether to open a journal with an unfinished import, in order to continue it.
    pub continues_import: bool,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            readers: 4,
            recent: 16 * 1024,
            recent_bytes: 16 << 20,
            sharing: None,
            continues_import: false,
        }
    }
}

/// The journal. Clones share one.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<JournalInner>,
}

struct JournalInner {
    group: GroupCommit,
    store: Box<dyn OpenStore>,
    names: SharedNames,
    recent: Arc<RwLock<RecentStates>>,
    /// Documents that were read ahead.
    documents: Arc<RestoredDocuments>,
    clock: Arc<dyn Clock>,
    place: JournalLocation,
    is_shared: bool,
    /// Whether the import is unfinished.
    is_unfinished: AtomicBool,
}

impl Journal {
    /// Opens the embedded journal, and creates it if it does not exist. Only one process at a time may have
    /// it open.
    pub async fn open(path: &Path, options: JournalOptions) -> Result<Self, OpenError> {
        Self::open_at(&JournalLocation::file(path), options).await
    }

    /// Opens a journal at any location.
    pub async fn open_at(place: &JournalLocation, options: JournalOptions) -> Result<Self, OpenError> {
        let JournalOptions { clock, sharing, readers, continues_import, .. } = options;
        let is_shared = sharing.is_some();
        let (store, mut writer, is_unfinished) =
            place.open(readers, &clock, sharing, continues_import).await?;
        let path = || place.to_string().into();
        let fail = |error| match error {
            JournalError::Fatal(reason) => OpenError::Damaged { path: path(), reason },
            JournalError::Unavailable(reason) if place.is_server() => {
                OpenError::Away { place: place.to_string(), reason }
            }
            error => OpenError::Unavailable { path: path(), reason: error.to_string() },
        };
        let memory = writer.load_memory().await.map_err(fail)?;
        let recent = Arc::new(RwLock::new(RecentStates::new(options.recent, options.recent_bytes)));
        let group = GroupCommit::new(writer, memory, recent.clone());
        let (names, place, documents) = (SharedNames::default(), place.clone(), Arc::default());
        let is_unfinished = is_unfinished.into();
        let inner =
            JournalInner { group, store, names, recent, documents, clock, place, is_shared, is_unfinished };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Finishes the work in progress and releases the store; later calls on any clone are refused. Durability
    /// does not depend on it.
    pub async fn close(&self) -> Result<(), JournalError> {
        let closed = self.inner.group.close().await;
        let let_go = self.inner.store.close().await;
        closed.and(let_go)
    }

    /// Makes this process the leader, or ends its leadership. Only the leader writes what plugins save. Once
    /// this returns, the former leader can write none of it any more. A process that shares the journal with
    /// nobody always leads.
    pub async fn set_leadership(&self, leads: bool) -> Result<(), JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::Lead(leads, answer)).await
    }

    /// Names the Lease of the replicas' election, after it was created again. A replica that joins later must
    /// use the same one.
    pub async fn elect_by(&self, lease: String) -> Result<(), JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::ElectBy(lease, answer)).await
    }

    /// Agrees on the meaning of a name among all processes that share the journal: the first text that one of
    /// them passes is returned to all. A process that has the journal for itself decides alone.
    pub async fn agree_on_name(&self, name: &str, text: &str) -> Result<String, JournalError> {
        match self.inner.is_shared {
            true => self.inner.store.agree_on_name(name, text).await,
            false => Ok(text.to_owned()),
        }
    }

    /// Whether it is on a server instead of in a file.
    pub fn is_on_a_server(&self) -> bool {
        self.inner.place.is_server()
    }

    /// A text that the processes share. It is empty if no process has written one yet, or if the journal is a
    /// file.
    pub async fn shared_text(&self, name: &str) -> Result<String, JournalError> {
        match self.is_on_a_server() {
            true => self.inner.store.agree_on_name(name, "").await,
            false => Ok(String::new()),
        }
    }

    /// Changes a text that the processes share. Returns false if another process has changed it since it was
    /// `before`.
    pub async fn change_shared_text(
        &self,
        name: &str,
        before: &str,
        text: &str,
    ) -> Result<bool, JournalError> {
        match self.is_on_a_server() {
            true => self.inner.store.change_agreed_text(name, before, text).await,
            false => Ok(true),
        }
    }

    /// The processes that share the journal; empty if it is not shared.
    pub async fn list_replicas(&self) -> Result<Vec<JournalReplica>, JournalError> {
        self.inner.store.list_replicas().await
    }

    /// Drops the newest states in memory if the journal still ends at this position: no reader at the end
    /// needs them, and other readers use the disk.
    pub fn drop_recent_states(&self, newest: Seq) {
        self.inner.group.drop_recent_states(newest);
    }

    pub(crate) async fn open_reader(&self) -> Result<JournalReader<'_>, JournalError> {
        JournalReader::new(&*self.inner.store, &self.inner.names).await
    }

    /// Whether it holds an unfinished import.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.inner.is_unfinished.load(Ordering::Relaxed)
    }

    /// Durable once this returns.
    pub(crate) async fn mark_unfinished(&self, unfinished: bool) -> Result<(), JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::Mark(unfinished, answer)).await?;
        self.inner.is_unfinished.store(unfinished, Ordering::Relaxed);
        Ok(())
    }

    /// States after a position, each with the checksum of its document.
    pub(crate) async fn states_with_sums(
        &self,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<(Arc<State>, u32)>, JournalError> {
        self.open_reader().await?.states_with_sums(after, limit).await
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.inner.clock
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.inner.clock.now_ms()
    }

    /// Applies a decision of retention. Returns `false` if its conditions no longer hold.
    pub(crate) async fn remove(
        &self,
        removal: RemovalPlan,
        check_facts: FactsCheck,
    ) -> Result<bool, JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::Remove(Box::new(removal), check_facts, answer)).await
    }

    /// Removes rows that nothing refers to. Returns `false` if too many states came since that was
    /// determined.
    pub(crate) async fn sweep_unused_rows(&self, sweep: UnusedRows) -> Result<bool, JournalError> {
        self.inner.group.submit_work(|answer| GroupWork::Sweep(Box::new(sweep), answer)).await
    }

    /// Counts, for each plugin, the states that retention removed before they were delivered to it.
    pub async fn removed_before_delivery(&self) -> Result<BTreeMap<String, u64>, JournalError> {
        let mut reader = self.open_reader().await?;
        Ok(reader
            .retention_reader()
            .removed_counts()
            .await?
            .states
            .into_iter()
            .map(|(plugin, taken)| (plugin, taken.untold))
            .collect())
    }

    /// The progress of each plugin, including removed plugins, and how many of its finished states retention
    /// removed.
    pub async fn all_progress(&self) -> Result<BTreeMap<String, (PluginProgress, u64)>, JournalError> {
        let mut reader = self.open_reader().await?;
        let taken = reader.retention_reader().removed_counts().await?.states;
        let finished = |plugin: &str| taken.get(plugin).map_or(0, |taken| taken.finished);
        let saved = reader.retention_reader().progress_of_all().await?.into_iter();
        Ok(saved.map(|(plugin, progress)| (plugin.clone(), (progress, finished(&plugin)))).collect())
    }

    /// Records when plugins that saved something here were found to be removed: all except `kept`.
    pub async fn retire_all_but(&self, kept: &BTreeSet<String>) -> Result<(), JournalError> {
        let plugins = self.open_reader().await?.retention_reader().progress_of_all().await?;
        for (name, progress) in plugins {
            if !kept.contains(&name) && progress.retired_ms.is_none() {
                let progress = PluginProgress { retired_ms: Some(self.now_ms()), ..progress };
                self.save(&name, ProgressSave { progress, ..ProgressSave::default() }).await?;
            }
        }
        Ok(())
    }

    /// Removes everything that a plugin saved: its progress, dead letters and keys. A plugin with this name
    /// starts over. It is meant for a plugin that is [taken out](Self::retire_all_but), while no controller
    /// has the journal open.
    pub async fn forget_plugin(&self, plugin: &str) -> Result<(), JournalError> {
        let plugin = plugin.to_owned();
        self.inner.group.submit_work(|answer| GroupWork::Forget(plugin, answer)).await
    }

    /// The states of one object and of the objects that it owns, and the Events about them.
    pub async fn object_timeline(&self, query: &TimelineQuery) -> Result<ObjectStory, JournalError> {
        self.open_reader().await?.object_timeline(query).await
    }

    /// The reports of plugins about these objects, oldest first.
    pub async fn reports_about(&self, uids: &HashSet<String>) -> Result<Vec<ReportView>, JournalError> {
        let mut reader = self.open_reader().await?;
        let mut found = Vec::new();
        // States observed at the same time are ordered, too.
        let mut uids: Vec<_> = uids.iter().collect();
        uids.sort();
        for plugin in reader.reporting_plugins().await? {
            for uid in &uids {
                let kept = reader.reports_of(&plugin, uid).await?;
                found.extend(kept.iter().map(|(_, value)| reports::read(&plugin, uid, value)));
            }
        }
        Ok(reports::newest_reports(found))
    }

    /// The total size of a plugin's reports.
    pub async fn report_bytes(&self, plugin: &str) -> Result<u64, JournalError> {
        let bytes = self.open_reader().await?.report_bytes(plugin).await?;
        Ok(u64::try_from(bytes).unwrap_or_default())
    }

    /// Ended objects, the newest end first.
    pub async fn ended_objects(&self, query: &EndedQuery<'_>) -> Result<EndedPage, JournalError> {
        self.open_reader().await?.ended_objects(query).await
    }

    /// The position of a time.
    pub async fn position_of_time(&self, at_ms: u64) -> Result<TimePosition, JournalError> {
        self.open_reader().await?.position_of_time(at_ms).await
    }

    /// When a source's newest version up to this one was observed.
    pub async fn seen_at(
        &self,
        source: &str,
        epoch: u32,
        version: &str,
    ) -> Result<Option<u64>, JournalError> {
        self.open_reader().await?.seen_at(source, epoch, version).await
    }

    /// The objects that existed at a position.
    pub async fn objects_at(&self, query: &AtQuery<'_>) -> Result<AtPage, JournalError> {
        self.open_reader().await?.objects_at(query).await
    }

    /// The history of the objects of these states, up to each state: at most so many states for each object,
    /// oldest first.
    pub async fn object_histories(
        &self,
        heads: &[Seq],
        most: usize,
    ) -> Result<HashMap<Seq, Vec<Arc<State>>>, JournalError> {
        self.open_reader().await?.object_histories(heads, most).await
    }

    /// The states among these that are dead letters of a plugin, or owed to it; `true` for one that waits: it is owed, or
    /// being replayed.
    pub async fn letters_at(&self, plugin: &str, seqs: &[Seq]) -> Result<HashMap<Seq, bool>, JournalError> {
        let found = self.open_reader().await?.letters_at(plugin, seqs).await?;
        Ok(found.into_iter().map(|(seq, mark)| (seq, OperatorAct::is_waiting(mark))).collect())
    }

    pub async fn journal_stats(&self) -> Result<JournalView, JournalError> {
        let bytes = self.inner.store.size_on_disk().await?;
        let place = &self.inner.place;
        let (store, place) = (place.kind().to_owned(), place.to_string());
        let view = self.open_reader().await?.journal_stats(bytes).await?;
        Ok(JournalView { store, place, ..view })
    }

    /// The gaps of sources and of single objects, in the order of their records.
    pub async fn all_gaps(&self) -> Result<Vec<Gap>, JournalError> {
        self.open_reader().await?.all_gaps().await
    }

    /// The gaps that a query selects, newest first, each with its number.
    pub async fn gaps_of(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, JournalError> {
        self.open_reader().await?.gaps_of(query).await
    }

    /// Without their bytes, newest first.
    pub async fn poison_of(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, JournalError> {
        self.open_reader().await?.poison_of(query).await
    }

    pub async fn poison_raw(&self, number: u64) -> Result<Option<Vec<u8>>, JournalError> {
        self.open_reader().await?.poison_raw(number).await
    }

    /// The histories of each source, oldest first.
    pub async fn source_epochs(&self) -> Result<Vec<(String, EpochView)>, JournalError> {
        self.open_reader().await?.source_epochs().await
    }

    pub async fn source_counters(&self) -> Result<Vec<SourceCounters>, JournalError> {
        self.open_reader().await?.source_counters().await
    }

    /// Dead letters with the states that they are about.
    pub async fn letters_with_states(
        &self,
        query: &LetterQuery,
    ) -> Result<Vec<(DeadLetter, Arc<State>)>, JournalError> {
        self.open_reader().await?.letters_with_states(query).await
    }

    /// Newest first.
    pub async fn poison_records(
        &self,
        source: Option<&str>,
        limit: usize,
    ) -> Result<Vec<PoisonRecord>, JournalError> {
        self.open_reader().await?.poison_records(source, limit).await
    }

    async fn record_operator_act(
        &self,
        act: OperatorAct,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        let replay = LetterMarking {
            act,
            plugin: plugin.to_owned(),
            seqs: seqs.to_vec(),
            who: who.to_owned(),
            why: why.to_owned(),
            at_ms: self.inner.clock.now_ms(),
        };
        self.inner.group.submit_work(|answer| GroupWork::Replay(replay, answer)).await
    }

    /// The pauses that are in force, each by its plugin.
    pub async fn pauses_in_force(&self) -> Result<BTreeMap<String, PluginPause>, JournalError> {
        let records = self.open_reader().await?.pauses_in_force().await?;
        Ok(records.into_iter().map(|record| (record.plugin.clone(), record.into_pause())).collect())
    }

    /// The records of replayed and dropped dead letters and of paused and resumed plugins: the newest before
    /// a number.
    pub async fn replay_records(
        &self,
        plugin: Option<&str>,
        before: u64,
        limit: usize,
    ) -> Result<Vec<ReplayRecord>, JournalError> {
        self.open_reader().await?.replay_records(plugin, before, limit).await
    }
}

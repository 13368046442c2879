//! Removes rows that belong to no single state: poison messages, records of losses, reports of plugins, records
//! of operators' acts, and shared rows that no remaining state refers to. Each loop ends, because removed rows
//! are not found again and nobody adds old ones.

use std::collections::VecDeque;

use kubewitness_core::ports::JournalError;
use kubewitness_core::state::gap_reason;
use kubewitness_core::{Gap, Seq, reports};

use super::SourceRetention;
use super::pass::{LOOK, REST};
use super::removable::SourceFacts;
use super::used_rows::{PAGE, UsedRows};
use crate::retention::decide::BATCH;
use crate::store::rows::removal::{SharedRows, UnusedRows};

/// How often a batch of unused rows is checked again because too many states were appended meanwhile. After
/// that, it is left for the next sweep.
const SEARCH_AGAIN: usize = 3;

/// The most batches of records that a pass removes. Each batch reads the whole table, which only people fill.
const RECORD_BATCHES: usize = 64;

/// The newest reports of one object, collected while its reports are read in order.
#[derive(Default)]
struct ObjectReports {
    uid: String,
    /// Whether the journal has a state of the object.
    is_known: bool,
    newest: VecDeque<String>,
}

impl ObjectReports {
    fn new(uid: &str, is_known: bool) -> Self {
        Self { uid: uid.to_owned(), is_known, newest: VecDeque::new() }
    }

    /// The report to remove when this one is added: the oldest beyond the limit, or the new one itself if the
    /// object is unknown.
    fn pushed_out_by(&mut self, key: String) -> Option<String> {
        if !self.is_known {
            return Some(key);
        }
        self.newest.push_back(key);
        if self.newest.len() > reports::SHOWN { self.newest.pop_front() } else { None }
    }
}

impl SourceRetention {
    /// Removes rows that have a time but no position, from before a time: poison messages, and records of
    /// states that plugins never received.
    pub(super) async fn remove_unplaced(
        &self,
        facts: &SourceFacts,
        before_ms: u64,
    ) -> Result<(), JournalError> {
        self.remove_poison(facts, before_ms).await?;
        let mut after = 0;
        loop {
            let mut reader = self.journal.open_reader().await?;
            let records = reader.retention_reader().records_after(&facts.streams, after, BATCH).await?;
            drop(reader);
            let Some((last, _)) = records.last() else { return Ok(()) };
            after = *last;
            let is_old = |body: &str| {
                let gap = serde_json::from_str::<Gap>(body);
                gap.is_ok_and(|gap| gap.reason == gap_reason::RETENTION && gap.recorded_ms < before_ms)
            };
            let gaps: Vec<i64> =
                records.iter().filter(|(_, body)| is_old(body)).map(|(number, _)| *number).collect();
            if !gaps.is_empty() {
                self.journal.sweep_unused_rows(UnusedRows { gaps, ..UnusedRows::default() }).await?;
                tokio::time::sleep(REST).await;
            }
        }
    }

    async fn remove_poison(&self, facts: &SourceFacts, before_ms: u64) -> Result<(), JournalError> {
        loop {
            let mut reader = self.journal.open_reader().await?;
            let poison = reader.retention_reader().old_poison(&facts.streams, before_ms, BATCH).await?;
            drop(reader);
            if poison.is_empty() {
                return Ok(());
            }
            self.journal.sweep_unused_rows(UnusedRows { poison, ..UnusedRows::default() }).await?;
            tokio::time::sleep(REST).await;
        }
    }

    /// Removes records of operators' acts from before a time. A pass removes a bounded number, and the next
    /// pass goes on.
    pub(super) async fn remove_records(&self, before_ms: u64) -> Result<(), JournalError> {
        for _ in 0..RECORD_BATCHES {
            let mut reader = self.journal.open_reader().await?;
            let records = reader.retention_reader().old_records(before_ms, BATCH).await?;
            drop(reader);
            if records.is_empty() {
                return Ok(());
            }
            self.journal.sweep_unused_rows(UnusedRows { records, ..UnusedRows::default() }).await?;
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }

    /// Removes reports: all reports of an object without states, and the oldest reports of an object that has
    /// too many. Returns how many were examined.
    pub(super) async fn remove_reports(&self) -> Result<usize, JournalError> {
        let mut looked = 0;
        let mut reader = self.journal.open_reader().await?;
        let reporters = reader.reporting_plugins().await?;
        drop(reader);
        for plugin in reporters {
            let (mut behind, mut of_object) = (String::new(), ObjectReports::default());
            loop {
                let mut reader = self.journal.open_reader().await?;
                let keys = reader.report_keys(&plugin, &behind, PAGE).await?;
                let (is_last, mut gone) = (keys.len() < PAGE, Vec::new());
                looked += keys.len();
                for key in keys {
                    behind.clone_from(&key);
                    let Some(uid) = reports::uid_of(&key) else { continue };
                    if uid != of_object.uid {
                        of_object = ObjectReports::new(uid, reader.knows_object(uid).await?);
                    }
                    gone.extend(of_object.pushed_out_by(key).map(|key| (plugin.clone(), key)));
                }
                drop(reader);
                for reports in gone.chunks(BATCH) {
                    let sweep = UnusedRows { reports: reports.to_vec(), ..UnusedRows::default() };
                    self.journal.sweep_unused_rows(sweep).await?;
                    tokio::time::sleep(REST).await;
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(looked)
    }

    /// Removes shared rows that no remaining state refers to: statuses, anchors, owners. It reads all states,
    /// so it runs rarely.
    pub async fn sweep_shared_rows(&mut self) -> Result<(), JournalError> {
        self.taken = 0;
        let mut used = UsedRows::default();
        used.read_to_end(&self.journal, LOOK).await?;
        loop {
            let mut reader = self.journal.open_reader().await?;
            let owned = reader.retention_reader().orphaned_owners(BATCH).await?;
            drop(reader);
            if owned.is_empty() {
                break;
            }
            self.journal.sweep_unused_rows(UnusedRows { owned, ..UnusedRows::default() }).await?;
            tokio::time::sleep(REST).await;
        }
        for which in [SharedRows::Statuses, SharedRows::Anchors, SharedRows::Owners] {
            self.sweep_unused(which, &mut used).await?;
        }
        Ok(())
    }

    async fn sweep_unused(&self, which: SharedRows, used: &mut UsedRows) -> Result<(), JournalError> {
        let mut after = 0;
        loop {
            let mut reader = self.journal.open_reader().await?;
            let numbers = reader.retention_reader().shared_row_numbers(which, after, BATCH).await?;
            drop(reader);
            let Some(last) = numbers.last().copied() else { return Ok(()) };
            for _ in 0..SEARCH_AGAIN {
                let unused = numbers.iter().copied().filter(|number| !used.is_used(which, *number)).collect();
                if self.take_unused(which, unused, used.through).await? {
                    break;
                }
                used.read_to_end(&self.journal, LOOK).await?;
            }
            after = last;
        }
    }

    /// Removes unused rows. Returns `false` if too many states were appended since the search.
    async fn take_unused(
        &self,
        which: SharedRows,
        unused: Vec<i64>,
        through: Seq,
    ) -> Result<bool, JournalError> {
        if unused.is_empty() {
            return Ok(true);
        }
        let mut sweep = UnusedRows { through, ..UnusedRows::default() };
        match which {
            SharedRows::Statuses => sweep.statuses = unused,
            SharedRows::Anchors => sweep.anchors = unused,
            SharedRows::Owners => sweep.owners = unused,
        }
        let is_taken = self.journal.sweep_unused_rows(sweep).await?;
        if is_taken {
            tokio::time::sleep(REST).await;
        }
        Ok(is_taken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
    use kubewitness_core::{Change, ObjectRef, StateId, Version};

    use super::*;
    use crate::journal::{Journal, JournalOptions};

    fn states(numbers: std::ops::Range<u64>) -> Vec<WitnessedState> {
        let object = Arc::new(ObjectRef { kind: "Pod".into(), uid: "u".into(), ..ObjectRef::default() });
        let state = |number: u64| {
            let version = Version::new(&number.to_string());
            WitnessedState {
                id: StateId::of("a", 0, &object, Change::Present, &version, None),
                change: Change::Present,
                object: object.clone(),
                owner: None,
                controller: None,
                resource_version: version,
                status: Arc::default(),
                previous: None,
                observed_ms: 1,
                document: "{}".into(),
                base: None,
                quotes_none_under: None,
            }
        };
        numbers.map(state).collect()
    }

    /// A refusal made the loops over such rows go on for ever.
    #[tokio::test]
    async fn rows_that_no_state_refers_to_are_taken_however_much_has_come_since() {
        let folder = tempfile::tempdir().unwrap();
        let journal =
            Journal::open(&folder.path().join("journal.db"), JournalOptions::default()).await.unwrap();
        for first in (1..16_641).step_by(1_024) {
            let append = AppendBatch {
                source: "a".into(),
                states: states(first..first + 1_024),
                ..AppendBatch::default()
            };
            journal.append_batch(append).await.unwrap();
        }
        let taken = |sweep: UnusedRows| journal.sweep_unused_rows(sweep);
        assert!(!taken(UnusedRows { statuses: vec![7], ..UnusedRows::default() }).await.unwrap());
        assert!(taken(UnusedRows { poison: vec![7], ..UnusedRows::default() }).await.unwrap());
        assert!(taken(UnusedRows { owned: vec![(7, 8)], ..UnusedRows::default() }).await.unwrap());
        // Judged anew up to the end, statuses are taken as well.
        let mut used = UsedRows::default();
        used.read_to_end(&journal, LOOK).await.unwrap();
        assert!(
            taken(UnusedRows { statuses: vec![7], through: used.through, ..UnusedRows::default() })
                .await
                .unwrap()
        );
        assert!(used.is_used(SharedRows::Statuses, 1) && !used.is_used(SharedRows::Statuses, 7));
    }
}

//! The truth of a world, the record of its journal, and the check that the second is true of the first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::ports::{Backlog, DocumentReader, StateWitness};
use kubewitness_core::{Change, Seq, State};
use kubewitness_faults::{JournalRecord, ResourceHistory, ServerTruth, TruthEvent, WrittenEntry, judge};
use kubewitness_journal::{
    ExportQuery, Journal, JournalLocation, JournalOptions, export_journal, verify_at, verify_file,
};
use kubewitness_playground::apiserver::TruthEntry;
use serde_json::Value;
use tokio::time::Instant;

use super::{DEADLINE, FaultWorld, POLL, SOURCE};
use crate::wire::opaque;
use crate::workload::{OURS, TEAM};

impl FaultWorld {
    /// Waits until the source has everything, whatever is still on its way: an object that is
    /// made now comes last.
    pub async fn level(&mut self) -> Result<()> {
        let name = format!("last-{}", self.herd.written.len());
        self.herd.create(&name).await?;
        let last = self.server.version();
        let truth = self.truth();
        let live = truth.histories.last().map(ResourceHistory::live).unwrap_or_default();
        let deadline = Instant::now() + DEADLINE;
        loop {
            let running = self.running.as_ref().context("it doesn't run")?;
            ensure!(!running.task.is_finished(), "the source ended by itself");
            let warm = running.mortal.load_warm_start(SOURCE).await?;
            let held: BTreeMap<_, _> = warm
                .objects
                .iter()
                .map(|object| (object.object.uid.clone(), opaque::plain(object.resource_version.as_str())))
                .collect();
            let view = running.handle.snapshot_view();
            // A checkpoint that has come here says that nothing is looked for any more.
            let checkpoint = warm.checkpoint.and_then(|version| opaque::plain(version.as_str()).parse().ok());
            let settled = checkpoint >= Some(last - 1) && view.walking == 0;
            if held == live && settled && view.objects == live.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let cached = view.objects;
                bail!(
                    "what was witnessed never was what is there: {held:?}, {cached} in the cache, and not {live:?}"
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Level, stopped, and without a lie.
    pub async fn finish(&mut self) -> Result<JournalRecord> {
        self.level().await?;
        self.stop().await?;
        let told = self.journal_record(None).await?;
        self.judge_journal(&self.truth(), &told)?;
        let report = verify_file(&self.path()).await?;
        ensure!(report.ok, "the journal itself: {:?}", report.problems);
        self.comes_back().await.context("its export, taken in elsewhere")?;
        Ok(told)
    }

    /// Whatever a watch tells is taken in elsewhere, and says there what it says here.
    async fn comes_back(&self) -> Result<()> {
        let query = ExportQuery { documents: true, ..ExportQuery::default() };
        let (mut out, mut again) = (Vec::new(), Vec::new());
        export_journal(&JournalLocation::file(&self.path()), &query, &mut out).await?;
        let folder = tempfile::tempdir()?;
        let place = JournalLocation::file(&folder.path().join("journal.db"));
        let journal = Journal::open_at(&place, JournalOptions::default()).await?;
        journal.import_lines(&mut &out[..]).await?;
        journal.close().await?;
        let report = verify_at(&place).await?;
        ensure!(report.ok, "{:?}", report.problems);
        export_journal(&place, &query, &mut again).await?;
        ensure!(again == out, "it says something else");
        Ok(())
    }

    fn judge_journal(&self, truth: &ServerTruth, told: &JournalRecord) -> Result<()> {
        let faults = judge(truth, told);
        if faults.is_empty() {
            return Ok(());
        }
        let lines: Vec<_> = faults.iter().take(20).map(|fault| format!("  {fault}")).collect();
        bail!("{} faults:\n{}", faults.len(), lines.join("\n"))
    }

    /// The checkpoint on disk never runs ahead of what is there.
    pub(super) async fn check_the_checkpoint(&self) -> Result<()> {
        let journal = self.open().await?;
        let warm = journal.load_warm_start(SOURCE).await?;
        journal.close().await?;
        let checkpoint = warm.checkpoint.and_then(|version| opaque::plain(version.as_str()).parse().ok());
        // Without one the first list is not complete, and nothing is promised.
        let told = self.journal_record(Some(checkpoint.unwrap_or(0))).await?;
        let mut truth = self.truth();
        // It may not have found out yet that there is another history.
        truth.histories.truncate(warm.epoch as usize + 1);
        self.judge_journal(&truth, &told).with_context(|| format!("killed at checkpoint {checkpoint:?}"))
    }

    pub fn truth(&self) -> ServerTruth {
        let kind = &self.options.kind;
        let account = self.server.truth(kind.group, kind.resource);
        let mut histories: Vec<ResourceHistory> = Vec::new();
        for (epoch, floors) in account.epochs.iter().zip(&self.floors) {
            let mut entries = match epoch.parent {
                Some((parent, _)) => histories[parent as usize].entries.clone(),
                None => Vec::new(),
            };
            entries.retain(|entry| epoch.parent.is_some_and(|(_, until)| entry.version <= until));
            let own = account.entries.iter().filter(|entry| entry.epoch == epoch.number);
            entries.extend(own.map(|entry| self.entry(entry)));
            let (listed, listed_until) =
                if epoch.parent.is_none() { self.listed } else { (epoch.version, epoch.version) };
            let over = histories.len() + 1 < account.epochs.len();
            histories.push(ResourceHistory { entries, listed, listed_until, floors: floors.clone(), over });
        }
        ServerTruth { histories }
    }

    fn entry(&self, entry: &TruthEntry) -> WrittenEntry {
        let document = self.herd.written.get(&(entry.epoch, entry.uid.clone(), entry.version)).cloned();
        let team = document.as_ref().map(|document| document["metadata"]["labels"][TEAM] == OURS);
        WrittenEntry {
            version: entry.version,
            event: if entry.is_deletion() { TruthEvent::Deleted } else { TruthEvent::Written },
            namespace: entry.namespace.as_str().into(),
            name: entry.name.as_str().into(),
            uid: entry.uid.as_str().into(),
            in_scope: !self.options.scoped || team.unwrap_or(true),
            document,
        }
    }

    /// Reads the journal on disk, while no source runs.
    pub async fn journal_record(&self, up_to: Option<u64>) -> Result<JournalRecord> {
        ensure!(self.running.is_none(), "it runs");
        let journal = self.open().await?;
        let mut states: Vec<Arc<State>> = Vec::new();
        loop {
            let more = journal.read(states.last().map_or(0, |last| last.seq), 1000).await?;
            if more.is_empty() {
                break;
            }
            states.extend(more);
        }
        let documents = documents(&journal, &states).await?;
        let warm = journal.load_warm_start(SOURCE).await?;
        let current = warm.objects.iter();
        let current = current
            .map(|held| (held.object.uid.clone(), opaque::plain(held.resource_version.as_str())))
            .collect();
        let gaps = journal.all_gaps().await?.into_iter().map(opaque::plain_gap).collect();
        let states = states.iter().map(opaque::plain_state).collect();
        let told = JournalRecord {
            states,
            gaps,
            poisoned: self.poisoned.clone(),
            current: up_to.is_none().then_some(current),
            documents,
            up_to,
            late_allowed: self.killed,
            unread_allowed: self.unread_allowed,
            unordered: self.unordered,
        };
        journal.close().await?;
        Ok(told)
    }

    pub async fn poison(&self) -> Result<Vec<Vec<u8>>> {
        let journal = self.open().await?;
        let poison = journal.poison_records(Some(SOURCE), 1000).await?;
        journal.close().await?;
        Ok(poison.into_iter().map(|record| record.raw).collect())
    }
}

/// As JSON; of what has an end only where there is a content at all.
async fn documents(journal: &Journal, states: &[Arc<State>]) -> Result<HashMap<Seq, Option<Value>>> {
    let mut documents = HashMap::new();
    for state in states.iter().filter(|state| matches!(state.change, Change::Present | Change::Left)) {
        let document = journal.document_at(state.seq).await?.unwrap_or_default();
        documents.insert(
            state.seq,
            serde_json::from_str(&opaque::plain(&String::from_utf8_lossy(&document))).ok(),
        );
    }
    Ok(documents)
}

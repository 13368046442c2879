//! Tests of carriers and readers that are killed.

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use kubewitness_core::ports::{
    Backlog, DeadLetter, JournalError, OwedPage, PluginPause, PluginProgress, PresentPage, ProgressSave,
};
use kubewitness_core::{Seq, State};
use kubewitness_harness::until;
use kubewitness_journal::Journal;
use tokio::sync::{Notify, watch};

use crate::copies::{carried, check_has_all, journal_and_copy};
use crate::support::{StreamWorld, WITHIN, all, from, sent, stories};

/// A journal whose controller stops before it saves a new line.
struct HaltedBacklog {
    journal: Journal,
    reached: Notify,
}

#[async_trait]
impl Backlog for HaltedBacklog {
    fn newest_position(&self) -> watch::Receiver<Seq> {
        Backlog::newest_position(&self.journal)
    }

    async fn read(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, JournalError> {
        self.journal.read(after, limit).await
    }

    async fn read_at(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError> {
        self.journal.read_at(seqs).await
    }

    async fn present_objects(
        &self,
        source: &str,
        from: u64,
        limit: usize,
    ) -> Result<PresentPage, JournalError> {
        self.journal.present_objects(source, from, limit).await
    }

    async fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Result<u64, JournalError> {
        self.journal.count(sources, after, through).await
    }

    async fn plugin_progress(&self, plugin: &str) -> Result<Option<PluginProgress>, JournalError> {
        self.journal.plugin_progress(plugin).await
    }

    async fn save(&self, plugin: &str, save: ProgressSave) -> Result<(), JournalError> {
        if save.kv.iter().any(|write| write.key == "line") {
            self.reached.notify_one();
            return std::future::pending().await;
        }
        self.journal.save(plugin, save).await
    }

    async fn dead_letters(&self, plugin: &str) -> Result<Vec<DeadLetter>, JournalError> {
        Backlog::dead_letters(&self.journal, plugin).await
    }

    async fn owed_states(&self, plugin: &str, from: Seq, limit: usize) -> Result<OwedPage, JournalError> {
        self.journal.owed_states(plugin, from, limit).await
    }

    async fn mark_replaying(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.journal.mark_replaying(plugin, seqs, who, why).await
    }

    async fn mark_dropped(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.journal.mark_dropped(plugin, seqs, who, why).await
    }

    async fn plugin_pause(&self, plugin: &str) -> Result<Option<PluginPause>, JournalError> {
        self.journal.plugin_pause(plugin).await
    }

    async fn mark_paused(
        &self,
        plugin: &str,
        pauses: bool,
        who: &str,
        why: &str,
    ) -> Result<(), JournalError> {
        self.journal.mark_paused(plugin, pauses, who, why).await
    }

    async fn plugin_kv(&self, plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
        self.journal.plugin_kv(plugin).await
    }

    async fn await_earlier_writes(&self) -> Result<(), JournalError> {
        Backlog::await_earlier_writes(&self.journal).await
    }
}

#[tokio::test]
async fn a_kill_between_the_claim_of_a_new_line_and_its_save_leaves_the_carrier_its_stream() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::killed_between")? else { return Ok(()) };
    let (journal, copy) = journal_and_copy(&world).await?;
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 20..40, 100).await?;
    all(&other, 40).await?;
    carrier.stop().await?;
    journal.close().await?;

    // The copy lacks what was sent, so it begins a line. The server knows the line, and the journal does not.
    sent(&copy, 0, 50..70, 100).await?;
    let halted = Arc::new(HaltedBacklog { journal: copy.clone(), reached: Notify::new() });
    let carrier = world.carry_of(halted.clone(), &copy, &["jobs"]);
    tokio::time::timeout(WITHIN, halted.reached.notified()).await?;
    carrier.kill().await;

    let carrier = world.carry(&copy, &["jobs"]);
    until(WITHIN, "the copy to be carried", async || {
        let condition = carrier.handle.current_snapshot().condition.unwrap_or_default();
        assert!(!condition.contains("another journal"), "it would take a person who loses data: {condition}");
        Ok((carrier.handle.current_snapshot().carried == 40).then_some(()))
    })
    .await?;
    carried(&carrier, 40).await?;
    all(&other, 60).await?;
    check_has_all(&other, &copy).await?;
    assert!(other.gaps_of(&Default::default()).await?.is_empty(), "the reader has more than the journal");
    carrier.stop().await?;
    reader.stop().await
}

/// Claiming one partition after the other would take longer than the test waits.
#[tokio::test]
async fn a_killed_reader_is_followed_on_all_its_partitions_once_its_claims_lapse() -> Result<()> {
    let Some(mut world) = StreamWorld::new("stream::killed_reader")? else { return Ok(()) };
    world.spec.partitions = 8;
    let (journal, other) = (world.journal("carrier").await?, world.journal("reader").await?);
    let (carrier, reader) = (world.carry(&journal, &["jobs"]), world.read(&other, &from(&[])));
    sent(&journal, 0, 0..32, 100).await?;
    all(&other, 32).await?;
    reader.kill().await;
    sent(&journal, 0, 32..64, 100).await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 64).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    assert!(other.gaps_of(&Default::default()).await?.is_empty(), "nothing was missing");
    carrier.stop().await?;
    reader.stop().await
}

//! Takes back in the journal the commits that a plugin's database has lost. It runs beside the loop, after
//! the plugin's calls have ended, and no version of the plugin starts before it is done. It asks no database:
//! `reconcile` does.

use kubewitness_capability::{OpenCapabilities, SurvivingReceipts};
use kubewitness_core::intents::commits::{CommitNotes, DatabaseLoss, LOSSES};
use kubewitness_core::ports::{Backlog, JournalError, NOTE};
use kubewitness_dispatch::{TakenBack, take_back};
use kubewitness_journal::Journal;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::RunningPlugins;
use super::draining::{DrainingPlugins, drain_plugin};
use crate::controller::shared::PluginPhase;
use crate::tasks::TaskFate;

const TAKEN_BACK: &str = "its database has lost commits: what it lost is being taken back in the journal";

/// A request to take back what a database has lost.
pub struct LostCommits {
    pub survivors: SurvivingReceipts,
    pub capabilities: OpenCapabilities,
    /// Cancels it. The database is asked again at the next start of the plugin.
    pub stop: CancellationToken,
}

impl RunningPlugins {
    /// How often the plugin was granted its database.
    pub fn count_grants(&self, name: &str) -> u64 {
        self.granted.get(name).copied().unwrap_or_default()
    }

    /// Stops the plugin, takes back what its database has lost, and passes the result to `tell`. Until then
    /// the plugin counts as draining. Returns `false` if calls of an earlier version have not ended.
    pub fn begin_take_back(
        &mut self,
        name: &str,
        lost: LostCommits,
        tell: impl FnOnce(Result<(), JournalError>) + Send + 'static,
    ) -> bool {
        if self.is_draining(name) {
            return false;
        }
        let running = self.running.remove(name);
        let candidate = running.as_ref().map(|running| running.candidate.clone());
        let candidate = candidate.or_else(|| self.drained.remove(name));
        self.shared.set_phase(name, PluginPhase::Draining, Some(TAKEN_BACK.into()));
        let (journal, shared, found_ms) = (self.journal.clone(), self.shared.clone(), self.clock.now_ms());
        let plugin = name.to_owned();
        let task = async move {
            if let Some(running) = running {
                drain_plugin(plugin.clone(), running).await;
            }
            let LostCommits { survivors, capabilities, stop } = lost;
            let taking = record_loss(&journal, &plugin, survivors, found_ms);
            let Some(taken) = stop.run_until_cancelled(taking).await else { return Ok(()) };
            tell(taken.map(|losses| {
                capabilities.end_loss(&plugin);
                if let Some(loss) = losses.last() {
                    error!(plugin, "{}", loss.text());
                }
                shared.set_losses(&plugin, losses);
            }));
            Ok(())
        };
        let task = self.tasks.spawn_task(format!("taking back losses of {name}"), TaskFate::Finite, task);
        self.draining.insert(name.to_owned(), DrainingPlugins { candidate, task });
        true
    }
}

/// Takes the lost commits back, and records the loss. Returns all recorded losses.
async fn record_loss(
    journal: &Journal,
    plugin: &str,
    survivors: SurvivingReceipts,
    found_ms: u64,
) -> Result<Vec<DatabaseLoss>, JournalError> {
    let SurvivingReceipts { database, after, beneath, former_floor, commits } = survivors;
    let loss = |taken: &TakenBack| {
        let mut loss = DatabaseLoss {
            database: database.clone(),
            found_ms,
            after,
            through: taken.through,
            again: taken.again,
            ended: taken.ended,
            missing: taken.missing,
            beneath,
            former_floor,
            ..DatabaseLoss::default()
        };
        loss.note_unfinished(taken.unfinished.iter().copied());
        loss
    };
    let notes = commit_notes(&journal.plugin_kv(plugin).await?);
    let record = |taken: &TakenBack| notes.record_loss(&loss(taken), commits);
    let removed = journal.all_progress().await?.remove(plugin).map_or(0, |(_, removed)| removed);
    let taken = take_back(plugin, journal, after, removed, record).await?;
    let earlier = notes.losses.iter().map(|(_, loss)| loss.clone());
    let mut losses: Vec<_> = earlier.chain([loss(&taken)]).collect();
    losses.drain(..losses.len().saturating_sub(LOSSES));
    Ok(losses)
}

/// The losses that the journal has recorded, the newest last.
pub fn recorded_losses(kv: &[(String, Vec<u8>)]) -> Vec<DatabaseLoss> {
    commit_notes(kv).losses.into_iter().map(|(_, loss)| loss).collect()
}

/// The journal's notes about the plugin's commits. Granting refuses notes that can't be read.
fn commit_notes(kv: &[(String, Vec<u8>)]) -> CommitNotes {
    let mut notes = CommitNotes::default();
    for (key, value) in kv.iter().filter(|(key, _)| key.starts_with(NOTE)) {
        notes.read(key, value);
    }
    notes
}

//! Finds out for plugins why objects ended badly: the words from the index of phases, and the states behind them from the
//! journal, with their secrets. Who is granted it, and what is hidden, `capability` decides.

use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::ports::{
    Backlog, ChangeQuestion, JournalError, KeptOutcome, OutcomeChanges, OutcomeFinder, OutcomeStory,
};
use kubewitness_journal::{Journal, PhaseIndex};

use super::causes;

/// A question waits so long for what the index has still to read. A plugin that is told `pending` asks again.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct JournalOutcomes {
    pub index: PhaseIndex,
    pub journal: Journal,
}

#[async_trait]
impl OutcomeFinder for JournalOutcomes {
    async fn outcome_changes(&self, question: ChangeQuestion) -> Result<OutcomeChanges, JournalError> {
        self.index.changed_outcomes(question).await
    }

    async fn kept_outcome(&self, source: &str, uid: &str) -> Result<KeptOutcome, JournalError> {
        let kept = self.index.kept_outcome(source, uid).await?;
        if kept != KeptOutcome::Nothing {
            return Ok(kept);
        }
        // What the index has not read may be the end of this object. Only then a question waits.
        let newest = *self.journal.newest_position().borrow();
        let is_whole = self.index.await_position(newest, PATIENCE).await;
        Ok(match self.index.kept_outcome(source, uid).await? {
            KeptOutcome::Nothing if !is_whole => KeptOutcome::Pending,
            kept => kept,
        })
    }

    async fn outcome_story(&self, uid: &str) -> Result<OutcomeStory, JournalError> {
        causes::story_of(&self.journal, uid).await
    }
}

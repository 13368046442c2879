//! Finds for plugins why objects ended badly: the words from the index of phases, and the states behind them
//! from the journal, with their secrets. `capability` decides who is granted it, and hides the secrets.

use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::ports::{
    Backlog, ChangeQuestion, JournalError, KeptOutcome, OutcomeChanges, OutcomeFinder, OutcomeStory,
};
use kubewitness_journal::{Journal, PhaseIndex};

use super::causes;

/// How long a question waits for the index to catch up. A plugin that gets `pending` asks again.
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
        // The end of this object may be in the part that the index has not read. Only then does a question
        // wait.
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

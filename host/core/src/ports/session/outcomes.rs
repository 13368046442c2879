//! Host → capability: why objects ended badly, for a plugin that is granted it. A plugin asks, and is handed nothing: when a
//! state is handed over, the states of the pods that explain it may still be on their way.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use crate::ports::JournalError;
use crate::state::{ObjectRef, Seq, State};
use crate::views::{Cause, CauseKind};

/// A place in the order of explanations. Where the host no longer knows its line, that order has begun anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomePlace {
    pub line: String,
    pub number: u64,
}

/// Asks for the outcomes of some sources that changed after a place.
#[derive(Clone, Debug, Default)]
pub struct ChangeQuestion {
    pub sources: BTreeSet<String>,
    /// `None`: from the oldest on.
    pub after: Option<OutcomePlace>,
    pub limit: usize,
}

/// An outcome that was explained, or whose explanation was withdrawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedOutcome {
    pub source: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The position of the state with which the object ended.
    pub seq: Seq,
    /// `None`: the object goes on after all.
    pub kind: Option<CauseKind>,
}

/// A page of outcomes, in the order in which they were explained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomeChanges {
    pub outcomes: Vec<ChangedOutcome>,
    /// Where the next page begins.
    pub next: OutcomePlace,
    pub has_more: bool,
    /// The place of the question is not one of this line, so the page begins with the oldest.
    pub is_restarted: bool,
}

/// The same for a plugin, with the next place as a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomePage {
    pub outcomes: Vec<ChangedOutcome>,
    pub next: String,
    pub has_more: bool,
    pub is_restarted: bool,
}

/// The outcome of one object, as the host keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptOutcome {
    /// It has not ended badly, or nothing is known of it.
    Nothing,
    /// It is about to be explained.
    Pending,
    /// It was explained.
    Explained { seq: Seq, kind: CauseKind },
}

/// The states that an explanation is made of, with their secrets. Each list is oldest first.
#[derive(Clone, Debug, Default)]
pub struct OutcomeStory {
    pub states: Vec<Arc<State>>,
    /// Those of the objects that it owns.
    pub related: Vec<Arc<State>>,
    /// The newest state of each Event about them.
    pub events: Vec<Arc<State>>,
    /// Older states exist that are not here.
    pub is_cut: bool,
}

/// An explanation, as a plugin is given it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainedOutcome {
    pub object: ObjectRef,
    /// The position of the state with which it ended, and when that was observed.
    pub seq: Seq,
    pub ended_ms: u64,
    /// How it ended, in a clause.
    pub headline: String,
    /// The same, with how long it waited and ran.
    pub sentence: String,
    pub doubt: String,
    pub cause: Cause,
}

/// The answer to a plugin that asks about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutcomeFinding {
    /// It has not ended badly, or nothing is known of it.
    Nothing,
    /// It is about to be explained: the plugin asks again.
    Pending,
    Explained(Box<ExplainedOutcome>),
}

/// Finds out why objects ended badly.
#[async_trait]
pub trait OutcomeFinder: Send + Sync {
    async fn outcome_changes(&self, question: ChangeQuestion) -> Result<OutcomeChanges, JournalError>;
    /// The outcome of an object of a source. It waits a moment for what the journal has more.
    async fn kept_outcome(&self, source: &str, uid: &str) -> Result<KeptOutcome, JournalError>;
    async fn outcome_story(&self, uid: &str) -> Result<OutcomeStory, JournalError>;
}

/// Knows of no outcome: where no index is kept, as in a trial.
pub struct NoOutcomes;

#[async_trait]
impl OutcomeFinder for NoOutcomes {
    async fn outcome_changes(&self, question: ChangeQuestion) -> Result<OutcomeChanges, JournalError> {
        let next = question.after.unwrap_or_default();
        Ok(OutcomeChanges { next, ..OutcomeChanges::default() })
    }

    async fn kept_outcome(&self, _: &str, _: &str) -> Result<KeptOutcome, JournalError> {
        Ok(KeptOutcome::Nothing)
    }

    async fn outcome_story(&self, _: &str) -> Result<OutcomeStory, JournalError> {
        Ok(OutcomeStory::default())
    }
}

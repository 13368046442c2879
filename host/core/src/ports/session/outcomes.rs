//! The port through which a plugin with the grant `outcomes` asks why objects ended badly. Outcomes are
//! queried and not delivered: when a state is delivered, the states of the pods that explain it may still be
//! in transit.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use crate::ports::JournalError;
use crate::state::{ObjectRef, Seq, State};
use crate::views::{Cause, CauseKind};

/// A position in the order of explanations. If the host no longer knows its line, the order has started over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomePlace {
    pub line: String,
    pub number: u64,
}

/// A query for the outcomes of some sources that changed after a position.
#[derive(Clone, Debug, Default)]
pub struct ChangeQuestion {
    pub sources: BTreeSet<String>,
    /// `None` starts at the oldest.
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
    /// The position of the object's end state.
    pub seq: Seq,
    /// `None` if the object continues after all.
    pub kind: Option<CauseKind>,
}

/// A page of outcomes, in the order in which they were explained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomeChanges {
    pub outcomes: Vec<ChangedOutcome>,
    /// Where the next page begins.
    pub next: OutcomePlace,
    pub has_more: bool,
    /// Whether the page starts at the oldest outcome because the position belongs to another line.
    pub is_restarted: bool,
}

/// An [`OutcomeChanges`] for a plugin: the next position is a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomePage {
    pub outcomes: Vec<ChangedOutcome>,
    pub next: String,
    pub has_more: bool,
    pub is_restarted: bool,
}

/// The outcome of one object, as the host stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptOutcome {
    /// The object has not ended badly, or is unknown.
    Nothing,
    /// The explanation is pending.
    Pending,
    /// It was explained.
    Explained { seq: Seq, kind: CauseKind },
}

/// The states from which an explanation is made, with their secrets. Each list is oldest first.
#[derive(Clone, Debug, Default)]
pub struct OutcomeStory {
    pub states: Vec<Arc<State>>,
    /// The states of the objects that it owns.
    pub related: Vec<Arc<State>>,
    /// The newest state of each Event about these objects.
    pub events: Vec<Arc<State>>,
    /// Whether older states exist that are not included.
    pub is_cut: bool,
}

/// An explanation as a plugin receives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainedOutcome {
    pub object: ObjectRef,
    /// The position of the object's end state, and when that state was observed.
    pub seq: Seq,
    pub ended_ms: u64,
    /// A clause that says how it ended.
    pub headline: String,
    /// The headline, with how long the object waited and ran.
    pub sentence: String,
    pub doubt: String,
    pub cause: Cause,
}

/// The answer to a plugin's question about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutcomeFinding {
    /// The object has not ended badly, or is unknown.
    Nothing,
    /// The explanation is pending: the plugin asks again.
    Pending,
    Explained(Box<ExplainedOutcome>),
}

/// Finds why objects ended badly.
#[async_trait]
pub trait OutcomeFinder: Send + Sync {
    async fn outcome_changes(&self, question: ChangeQuestion) -> Result<OutcomeChanges, JournalError>;
    /// The outcome of an object of a source. It waits briefly for the index to catch up with the journal.
    async fn kept_outcome(&self, source: &str, uid: &str) -> Result<KeptOutcome, JournalError>;
    async fn outcome_story(&self, uid: &str) -> Result<OutcomeStory, JournalError>;
}

/// Knows no outcomes, for hosts without an index, such as a trial run.
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

//! The requests that callers queue, and the channels that return their answers.

use std::collections::VecDeque;

use futures::future::BoxFuture;
use kubewitness_core::ports::{
    AppendBatch, AppendResult, JournalError, KvWrite, NoteDurability, ProgressSave,
};
use tokio::sync::oneshot;

use crate::store::RetentionReader;
use crate::store::rows::LetterMarking;
use crate::store::rows::removal::{RemovalPlan, UnusedRows};

pub(super) type AnswerSender<T> = oneshot::Sender<Result<T, JournalError>>;

/// Checks that the facts behind a removal still hold. Retention supplies it, and the writer calls it.
pub(crate) type FactsCheck =
    for<'a> fn(&'a mut dyn RetentionReader, &'a RemovalPlan) -> BoxFuture<'a, Result<bool, JournalError>>;

/// A queued request. Each may be executed twice, because a transaction whose answer was lost is repeated.
pub(crate) enum GroupWork {
    Append(AppendBatch, AnswerSender<AppendResult>),
    Save(String, ProgressSave, AnswerSender<()>),
    Note(String, Vec<KvWrite>, NoteDurability, AnswerSender<()>),
    Replay(LetterMarking, AnswerSender<()>),
    /// Runs in its own transaction, which first checks that the facts still hold.
    Remove(Box<RemovalPlan>, FactsCheck, AnswerSender<bool>),
    Sweep(Box<UnusedRows>, AnswerSender<bool>),
    /// Writes nothing. It is answered once all earlier work is durable and the store was checked.
    Settle(AnswerSender<()>),
    /// Makes this process the leader or not. Only the leader writes what plugins save.
    Lead(bool, AnswerSender<()>),
    /// Names the Lease with which the replicas elect the leader.
    ElectBy(String, AnswerSender<()>),
    /// Marks the journal as holding an unfinished import, or removes the mark.
    Mark(bool, AnswerSender<()>),
    /// Removes everything that a plugin saved.
    Forget(String, AnswerSender<()>),
}

impl GroupWork {
    pub fn work_weight(&self) -> usize {
        match self {
            Self::Append(append, _) => append.states.len() + append.poison.len() + append.gaps.len(),
            Self::Save(..)
            | Self::Note(..)
            | Self::Replay(..)
            | Self::Remove(..)
            | Self::Sweep(..)
            | Self::Settle(_)
            | Self::Lead(..)
            | Self::ElectBy(..)
            | Self::Mark(..)
            | Self::Forget(..) => 0,
        }
    }

    /// Whether the result of this request depends on the rows that already exist.
    pub fn depends_on_rows(&self) -> bool {
        matches!(self, Self::Append(..) | Self::Sweep(..))
    }

    pub fn is_alone(&self) -> bool {
        matches!(
            self,
            Self::Remove(..)
                | Self::Sweep(..)
                | Self::Lead(..)
                | Self::ElectBy(..)
                | Self::Mark(..)
                | Self::Forget(..)
        )
    }

    pub fn answer_error(self, error: JournalError) {
        // A caller that was dropped needs no answer.
        match self {
            Self::Append(_, answer) => drop(answer.send(Err(error))),
            Self::Save(_, _, answer)
            | Self::Note(.., answer)
            | Self::Replay(_, answer)
            | Self::Settle(answer)
            | Self::Lead(_, answer)
            | Self::ElectBy(_, answer)
            | Self::Mark(_, answer)
            | Self::Forget(_, answer) => {
                drop(answer.send(Err(error)));
            }
            Self::Remove(.., answer) | Self::Sweep(_, answer) => drop(answer.send(Err(error))),
        }
    }
}

/// The result of a transaction.
pub(super) enum WorkDone {
    Written {
        /// The answers to the appends, in their order.
        appended: VecDeque<Result<AppendResult, JournalError>>,
        /// If false, what plugins saved was not written.
        dispatches: bool,
    },
    /// Whether the facts still held, so that the removal was made.
    Removed(bool),
    /// The leadership, the election, the import mark or the saved data of a plugin was changed.
    Changed,
}

pub(super) fn answer_works(works: Vec<GroupWork>, done: WorkDone) {
    let (mut appended, dispatches, removed) = match done {
        WorkDone::Written { appended, dispatches } => (appended, dispatches, false),
        WorkDone::Removed(removed) => (VecDeque::new(), true, removed),
        WorkDone::Changed => (VecDeque::new(), true, false),
    };
    for work in works {
        // A caller that was dropped needs no answer.
        match work {
            GroupWork::Append(_, answer) => {
                if let Some(appended) = appended.pop_front() {
                    drop(answer.send(appended));
                }
            }
            GroupWork::Save(_, _, answer) | GroupWork::Note(.., answer) | GroupWork::Replay(_, answer)
                if !dispatches =>
            {
                drop(answer.send(Err(not_leader_error())));
            }
            GroupWork::Save(_, _, answer)
            | GroupWork::Note(.., answer)
            | GroupWork::Replay(_, answer)
            | GroupWork::Settle(answer)
            | GroupWork::Lead(_, answer)
            | GroupWork::ElectBy(_, answer)
            | GroupWork::Mark(_, answer)
            | GroupWork::Forget(_, answer) => {
                drop(answer.send(Ok(())));
            }
            GroupWork::Remove(.., answer) | GroupWork::Sweep(_, answer) => drop(answer.send(Ok(removed))),
        }
    }
}

/// The error for a write that only the leader may make. It is temporary: the caller retries until this
/// process is the leader.
pub(super) fn not_leader_error() -> JournalError {
    JournalError::Unavailable(
        "another replica is the leader: only the leader writes what plugins save".into(),
    )
}

//! The work that callers queue, and the answers that they get.

use std::collections::VecDeque;

use futures::future::BoxFuture;
use kubewitness_core::ports::{Append, Appended, JournalError, Kept, KvWrite, Save};
use tokio::sync::oneshot;

use crate::store::Past;
use crate::store::rows::Replay;
use crate::store::rows::removal::{Removal, Sweep};

pub(super) type Answer<T> = oneshot::Sender<Result<T, JournalError>>;

/// Whether all that a removal was decided on is as it was: retention says it, the writer asks it.
pub(crate) type StillSo =
    for<'a> fn(&'a mut dyn Past, &'a Removal) -> BoxFuture<'a, Result<bool, JournalError>>;

/// What callers want done. All of it may be done twice.
pub(crate) enum Work {
    Append(Append, Answer<Appended>),
    Save(String, Save, Answer<()>),
    Note(String, Vec<KvWrite>, Kept, Answer<()>),
    Replay(Replay, Answer<()>),
    /// Has a transaction of its own, which asks first whether what was decided on is still so.
    Remove(Box<Removal>, StillSo, Answer<bool>),
    Sweep(Box<Sweep>, Answer<bool>),
    /// Nothing is written: it is answered once everything before it is, and the store was looked at.
    Settle(Answer<()>),
    /// Whether this process is the leader, which writes what plugins save.
    Lead(bool, Answer<()>),
    /// The Lease by which the replicas elect the leader.
    ElectBy(String, Answer<()>),
    /// Whether the journal holds an import that has not come to its end.
    Mark(bool, Answer<()>),
    /// What a plugin left is taken away.
    Forget(String, Answer<()>),
}

impl Work {
    pub fn weight(&self) -> usize {
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

    /// What it means depends on what is there already.
    pub fn plans(&self) -> bool {
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
        // A caller that is gone needs no answer.
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

/// What a transaction did.
pub(super) enum Done {
    Written {
        /// The answers to the appends, in their order.
        appended: VecDeque<Result<Appended, JournalError>>,
        /// Otherwise what plugins left was not written.
        dispatches: bool,
    },
    /// Whether what was decided was still in place.
    Removed(bool),
    /// Who leads, by what it is elected, whether the journal is whole, or what a plugin left.
    Said,
}

pub(super) fn answer(works: Vec<Work>, done: Done) {
    let (mut appended, dispatches, removed) = match done {
        Done::Written { appended, dispatches } => (appended, dispatches, false),
        Done::Removed(removed) => (VecDeque::new(), true, removed),
        Done::Said => (VecDeque::new(), true, false),
    };
    for work in works {
        // A caller that is gone needs no answer.
        match work {
            Work::Append(_, answer) => {
                if let Some(appended) = appended.pop_front() {
                    drop(answer.send(appended));
                }
            }
            Work::Save(_, _, answer) | Work::Note(.., answer) | Work::Replay(_, answer) if !dispatches => {
                drop(answer.send(Err(not_mine())));
            }
            Work::Save(_, _, answer)
            | Work::Note(.., answer)
            | Work::Replay(_, answer)
            | Work::Settle(answer)
            | Work::Lead(_, answer)
            | Work::ElectBy(_, answer)
            | Work::Mark(_, answer)
            | Work::Forget(_, answer) => {
                drop(answer.send(Ok(())));
            }
            Work::Remove(.., answer) | Work::Sweep(_, answer) => drop(answer.send(Ok(removed))),
        }
    }
}

/// The error passes once this process becomes the leader.
pub(super) fn not_mine() -> JournalError {
    JournalError::Unavailable(
        "another replica is the leader: only the leader writes what plugins save".into(),
    )
}

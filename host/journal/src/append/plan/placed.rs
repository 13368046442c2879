//! The positions that an append got.

use kubewitness_core::Seq;

/// The positions of the states of one append, and whether each is new.
#[derive(Debug, Default)]
pub(crate) struct PlacedStates {
    /// `None` for a state that the journal already had.
    pub seqs: Vec<Option<Seq>>,
    /// The newest position of any of them.
    pub through: Seq,
}

/// The position of one state, and whether the state is new.
#[derive(Clone, Copy)]
pub(super) enum StatePlace {
    Fresh(Seq),
    /// Stored before this batch, or placed in it.
    Known(Seq),
}

impl StatePlace {
    pub fn seq(self) -> Seq {
        let (Self::Fresh(seq) | Self::Known(seq)) = self;
        seq
    }

    pub fn as_fresh(self) -> Option<Seq> {
        match self {
            Self::Fresh(seq) => Some(seq),
            Self::Known(_) => None,
        }
    }
}

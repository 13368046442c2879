//! A position of the journal as a client of the live stream keeps it: `SEQ-MARK`. The mark is a digest of the state that
//! was journaled there and of when it was observed.
//!
//! A number alone is not enough. A journal that was restored from a backup gives the numbers of lost states again, and a
//! client that goes on from its number would miss what took them. Positions are given in order and copies are beginnings,
//! so the same state observed at the same moment at one position means that all before it is the same, too. An identity
//! of the journal would have to change with each copy, which nobody sees being made. Replicas of one journal give the
//! same marks.

use std::fmt;

use kubewitness_core::Seq;
use kubewitness_core::ports::RawState;
use kubewitness_core::views::{ViewError, Views};
use ring::digest::{Context, SHA256};

use crate::answer::{Problem, params};

/// Bytes of a digest that are told: two states of one position have the same in one of 2^48 cases.
const MARK_BYTES: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalCursor {
    pub(crate) seq: Seq,
    /// `None`: a number that somebody typed, or the beginning.
    pub(crate) mark: Option<[u8; MARK_BYTES]>,
}

/// The journal's state at a position, compared with a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PositionMatch {
    Same,
    /// Another state: the journal is not the one that gave the position.
    Other,
    /// Nothing: it has not come so far, or retention took the state.
    Unknown,
}

impl JournalCursor {
    pub(crate) fn of(state: &RawState) -> Self {
        let (id, observed_ms) = state.identity();
        let mut context = Context::new(&SHA256);
        context.update(&observed_ms.to_be_bytes());
        context.update(id.as_bytes());
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(&context.finish().as_ref()[..MARK_BYTES]);
        Self { seq: state.seq(), mark: Some(mark) }
    }

    /// `name` is that of the parameter or header.
    pub(crate) fn read(name: &str, text: &str) -> Result<Self, Problem> {
        let Some((seq, mark)) = text.split_once('-') else {
            return Ok(Self { seq: params::number(name, text)?, mark: None });
        };
        let mut bytes = [0; MARK_BYTES];
        hex::decode_to_slice(mark, &mut bytes).map_err(|_| {
            Problem::invalid(
                format!("`{text}` is no position."),
                format!("`{name}` is the id of an event as it came, or a number."),
            )
        })?;
        Ok(Self { seq: params::number(name, seq)?, mark: Some(bytes) })
    }

    /// Without its mark where the journal has no state there, or can't be asked.
    pub(crate) async fn at(views: &dyn Views, seq: Seq) -> Self {
        let state = state_at(views, seq).await.unwrap_or_default();
        state.map_or(Self { seq, mark: None }, |state| Self::of(&state))
    }

    pub(crate) async fn newest(views: &dyn Views) -> Result<Self, ViewError> {
        let seq = *views.newest()?.borrow();
        Ok(Self::at(views, seq).await)
    }

    pub(crate) async fn standing(self, views: &dyn Views) -> Result<PositionMatch, ViewError> {
        let state = match self.mark {
            Some(_) => state_at(views, self.seq).await?,
            None => None,
        };
        Ok(match state {
            Some(state) if Self::of(&state) == self => PositionMatch::Same,
            Some(_) => PositionMatch::Other,
            None => PositionMatch::Unknown,
        })
    }
}

async fn state_at(views: &dyn Views, seq: Seq) -> Result<Option<RawState>, ViewError> {
    let Some(before) = seq.checked_sub(1) else { return Ok(None) };
    let found = views.states_after(before, 1).await?;
    Ok(found.into_iter().find(|state| state.seq() == seq))
}

impl fmt::Display for JournalCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seq)?;
        self.mark.map_or(Ok(()), |mark| write!(f, "-{}", hex::encode(mark)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written_and_nothing_else_is_one() {
        for position in
            [JournalCursor { seq: 7, mark: None }, JournalCursor { seq: 0, mark: Some([0xab; 6]) }]
        {
            assert_eq!(JournalCursor::read("after", &position.to_string()).unwrap(), position);
        }
        assert_eq!(JournalCursor { seq: 7, mark: Some([1; 6]) }.to_string(), "7-010101010101");
        for wrong in ["", "x", "-1", "7-", "7-0101", "7-01010101010101", "7-01010101010g", "-010101010101"] {
            assert!(JournalCursor::read("after", wrong).is_err(), "{wrong}");
        }
    }
}

//! A position of the journal, in the form that clients of the live stream store: `SEQ-MARK`. The mark is a
//! digest of the state at the position and of its observation time.
//!
//! A number alone was rejected: a journal that was restored from a backup assigns the numbers of lost states
//! again, and a client that resumes from its number would miss the new ones. An id of the journal was
//! rejected, too: it would have to change with each copy, which nobody notices. But positions are assigned in
//! order, and a copy is a prefix. So the same state, observed at the same time at the same position, means
//! that everything before it is the same as well. Replicas of one journal give the same marks.

use std::fmt;

use kubewitness_core::Seq;
use kubewitness_core::ports::RawState;
use kubewitness_core::views::{ViewError, Views};
use ring::digest::{Context, SHA256};

use crate::answer::{Problem, params};

/// How many bytes of a digest are used: two states of one position have the same mark in one of 2^48 cases.
const MARK_BYTES: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalCursor {
    pub(crate) seq: Seq,
    /// `None` for a number that somebody typed, and for the beginning.
    pub(crate) mark: Option<[u8; MARK_BYTES]>,
}

/// The journal's state at a position, compared with a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PositionMatch {
    Same,
    /// Another state: the position comes from another journal.
    Other,
    /// No state: the journal has not reached it, or retention removed it.
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
            return Ok(Self { seq: params::parse_number(name, text)?, mark: None });
        };
        let mut bytes = [0; MARK_BYTES];
        hex::decode_to_slice(mark, &mut bytes).map_err(|_| {
            Problem::invalid_request(
                format!("`{text}` is no position."),
                format!("`{name}` is the id of an event as it came, or a number."),
            )
        })?;
        Ok(Self { seq: params::parse_number(name, seq)?, mark: Some(bytes) })
    }

    /// The position has no mark if the journal has no state there or can't be read.
    pub(crate) async fn at_seq(views: &dyn Views, seq: Seq) -> Self {
        let state = state_at(views, seq).await.unwrap_or_default();
        state.map_or(Self { seq, mark: None }, |state| Self::of(&state))
    }

    pub(crate) async fn at_newest(views: &dyn Views) -> Result<Self, ViewError> {
        let seq = *views.newest_position()?.borrow();
        Ok(Self::at_seq(views, seq).await)
    }

    pub(crate) async fn match_position(self, views: &dyn Views) -> Result<PositionMatch, ViewError> {
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

//! Checks a carried state before it is used. Anybody who may publish on the subjects of a stream can send any
//! bytes. A message that is not a state of this partition becomes a poison message, and the states after it
//! continue.

use super::state_check::{self, StateFault};
use super::{GarbledMessage, JournalPosition, partition_of};
use crate::limits::SEQ_MOST;
use crate::state::{Change, State};

/// The values that the states of one partition have in common.
#[derive(Clone, Copy, Debug)]
pub struct PartitionStates<'a> {
    pub source: &'a str,
    pub partition: u32,
    pub partitions: u32,
}

impl PartitionStates<'_> {
    pub fn check(
        &self,
        stood: &JournalPosition,
        state: &State,
        document: &[u8],
    ) -> Result<(), GarbledMessage> {
        self.judge_state(stood, state, document).map_err(GarbledMessage::Refused)
    }

    fn judge_state(&self, stood: &JournalPosition, state: &State, document: &[u8]) -> Result<(), StateFault> {
        if *state.source != *self.source {
            return Err(StateFault::OtherSource(self.source.to_owned()));
        }
        if partition_of(&state.object, self.partitions) != self.partition {
            return Err(StateFault::OtherPartition(self.partition));
        }
        // Accepting it would make all true states after it look like repeats.
        if stood.position != state.seq || stood.position > SEQ_MOST {
            return Err(StateFault::OtherPosition);
        }
        state_check::check_identity(state)?;
        match state.change {
            Change::Gap => state_check::check_gap(state, document).map(drop),
            // The carrier's journal may lack a document, and then sends none.
            _ if document.is_empty() => Ok(()),
            _ => state_check::check_document(state, document),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limits::EPOCH_MOST;
    use crate::state::ObjectRef;
    use crate::stream::tests::state;

    #[test]
    fn a_state_of_another_source_partition_position_or_id_is_refused() {
        let object = Arc::new(ObjectRef { name: "a".into(), ..(*state(9, 1, "12").object).clone() });
        let fine = State { object, ..state(9, 1, "12") };
        let own = partition_of(&fine.object, 4);
        let expected = PartitionStates { source: "jobs", partition: own, partitions: 4 };
        let at =
            |position| JournalPosition { line: "a".into(), position, before: 3, before_lines: Vec::new() };
        let document = br#"{"metadata":{"name":"a","uid":"u1","resourceVersion":"12"}}"#;
        expected.check(&at(9), &fine, document).unwrap();
        expected.check(&at(9), &fine, b"").expect("an absent document is an answer");
        let refused =
            |expected: &PartitionStates, position, state: &State, document: &[u8], message: &str| {
                let why = expected.check(&at(position), state, document).unwrap_err().to_string();
                assert!(why.contains(message), "{why}");
            };
        refused(&PartitionStates { source: "pods", ..expected }, 9, &fine, document, "another source");
        refused(&PartitionStates { partition: own ^ 1, ..expected }, 9, &fine, document, "does not belong");
        refused(&expected, 10, &fine, document, "its position");
        let far = State { seq: SEQ_MOST + 1, ..fine.clone() };
        refused(&expected, SEQ_MOST + 1, &far, document, "its position");
        refused(&expected, 9, &State { epoch: EPOCH_MOST + 1, ..fine.clone() }, document, "its epoch");
        let renamed = State { id: state(9, 1, "13").id, ..fine.clone() };
        refused(&expected, 9, &renamed, document, "its id");
        refused(
            &expected,
            9,
            &fine,
            br#"{"metadata":{"name":"a","uid":"u2","resourceVersion":"12"}}"#,
            "has the uid",
        );
        let no_gap = State { change: Change::Gap, ..fine };
        refused(&expected, 9, &no_gap, document, "the gap of u1");
    }
}

//! The owed states of all lanes, as far as lanes are known by their keys.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::{LaneKey, Seq};

#[derive(Debug, Default)]
pub(in crate::lanes) struct OwedStates {
    /// How many there are, in lanes and as rows alone.
    pub states: usize,
    /// Rows that may not be durable.
    pub unsaved: BTreeMap<Seq, LaneKey>,
    /// Lanes that move and have room, by their first row.
    pub returning: BTreeSet<(Seq, LaneKey)>,
    /// Lanes by when their first owed state was observed.
    pub oldest: BTreeSet<(u64, LaneKey)>,
    /// States below the cursor that were taken back into lanes. They may have been applied before.
    pub recalled: BTreeSet<Seq>,
    pub saves: u64,
}

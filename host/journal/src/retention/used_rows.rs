//! The numbers of shared rows that states refer to, found by reading all states.
//!
//! A journal of a year has hundreds of millions of states. A set of their numbers would take gigabytes, so
//! the numbers are bits in blocks. Numbers are assigned in order and never reused, so few blocks remain for
//! old rows.

use std::collections::BTreeMap;
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::ports::{Backlog, JournalError};

use crate::journal::Journal;
use crate::store::rows::removal::SharedRows;

/// The number of states that one query reads.
pub(super) const PAGE: usize = 4096;
/// The size of a block: 4096 numbers in 512 bytes.
const BLOCK: i64 = 4096;

#[derive(Debug, Default)]
pub(super) struct NumberSet(BTreeMap<i64, Box<[u64; BLOCK as usize / 64]>>);

impl NumberSet {
    fn bit_place(number: i64) -> (i64, usize, u64) {
        let within = number.rem_euclid(BLOCK) as usize;
        (number.div_euclid(BLOCK), within / 64, 1 << (within % 64))
    }

    pub fn insert(&mut self, number: i64) {
        let (block, word, bit) = Self::bit_place(number);
        self.0.entry(block).or_insert_with(|| Box::new([0; BLOCK as usize / 64]))[word] |= bit;
    }

    pub fn contains(&self, number: i64) -> bool {
        let (block, word, bit) = Self::bit_place(number);
        self.0.get(&block).is_some_and(|block| block[word] & bit != 0)
    }
}

/// The shared rows that the states up to a position refer to.
#[derive(Debug, Default)]
pub(super) struct UsedRows {
    statuses: NumberSet,
    anchors: NumberSet,
    pub through: Seq,
}

impl UsedRows {
    /// Whether a row is used. Owners are always reported as used here: the writer checks whether they still
    /// own something.
    pub fn is_used(&self, which: SharedRows, number: i64) -> bool {
        match which {
            SharedRows::Statuses => self.statuses.contains(number),
            SharedRows::Anchors => self.anchors.contains(number),
            SharedRows::Owners => false,
        }
    }

    /// Reads the states up to the present end of the journal, with a pause after each query.
    pub async fn read_to_end(&mut self, journal: &Journal, rest: Duration) -> Result<(), JournalError> {
        let newest = *journal.newest_position().borrow();
        while self.through < newest {
            let mut reader = journal.open_reader().await?;
            let found = reader.retention_reader().references_after(self.through, PAGE).await?;
            drop(reader);
            found.statuses.into_iter().for_each(|number| self.statuses.insert(number));
            found.anchors.into_iter().for_each(|number| self.anchors.insert(number));
            let Some(last) = found.last else { break };
            self.through = last;
            tokio::time::sleep(rest).await;
        }
        self.through = self.through.max(newest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn it_has_the_numbers_that_were_put_in_and_no_others() {
        let numbers = [0, 1, 63, 64, BLOCK - 1, BLOCK, 7 * BLOCK + 5, i64::MAX, -1];
        let (mut set, expected) = (NumberSet::default(), HashSet::from(numbers));
        numbers.into_iter().for_each(|number| set.insert(number));
        for number in numbers.into_iter().flat_map(|number| [number.saturating_sub(1), number]) {
            assert_eq!(set.contains(number), expected.contains(&number), "{number}");
        }
        assert_eq!(set.0.len(), 5);
    }
}

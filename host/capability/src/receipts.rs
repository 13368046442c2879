//! The index of receipts: which states a plugin has already applied, so that a repeat changes nothing.
//!
//! A receipt is found by its state's id; its position only decides when it may be removed. Finding it by
//! position was rejected: a journal on a database server can lose its newest commits in a failover. Then the
//! same states are witnessed again at other positions, and their old positions go to other states. For the
//! same reason receipts stay for a while after the cursor has passed them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::{Seq, State, StateId};

/// The most receipts that one plugin may have above its cursor: about 50 MB. A plugin reaches this if one
/// lane blocks its cursor while a million later states are finished. It then waits for that lane.
pub const MAX_RECEIPTS: usize = 1_000_000;

/// The most receipts that are read back, the newest first: those above the cursor, and as many below it.
/// Without an order, a database would return the oldest, and the states of the newest receipts would be
/// applied again.
pub const READ_RECEIPTS: i64 = 2 * MAX_RECEIPTS as i64;

/// How long receipts stay after a cursor beyond them was saved. Standby servers lag by seconds, and this
/// leaves time for a manual failover.
const STAY: Duration = Duration::from_secs(300);
/// How many positions before the cursor keep their receipts: about 6 MB, and seconds of states at the highest
/// rate.
const STAY_POSITIONS: Seq = 128 * 1024;
/// How many cursors are remembered meanwhile, at even intervals.
const REMEMBERED: u32 = 16;

/// The first byte of [`encode`]'s output. Older receipts are a multiple of [`SHORT`] bytes long, and these
/// are not.
const WHOLE_PRINTS: u8 = 1;
/// Bytes of one state: its position, little endian, and the print of its id.
const WHOLE: usize = 24;
/// The size of one state in an older receipt, whose print has 32 bits.
const SHORT: usize = 12;

/// One state, as receipts identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptMark {
    pub seq: Seq,
    pub print: IdPrint,
}

impl ReceiptMark {
    pub fn of(state: &State) -> Self {
        Self { seq: state.seq, print: IdPrint::of(state.id.as_str()) }
    }
}

pub fn encode(marks: &[ReceiptMark]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + marks.len() * WHOLE);
    bytes.push(WHOLE_PRINTS);
    for mark in marks {
        bytes.extend_from_slice(&mark.seq.to_le_bytes());
        bytes.extend_from_slice(mark.print.bytes());
    }
    bytes
}

/// `None` if no version has written these bytes.
pub fn decode(bytes: &[u8]) -> Option<Vec<ReceiptMark>> {
    if bytes.len().is_multiple_of(SHORT) {
        let (entries, _) = bytes.as_chunks::<SHORT>();
        return entries
            .iter()
            .map(|entry| {
                decode_mark(entry, |print| {
                    Some(IdPrint::from_short_print(u32::from_le_bytes(print.try_into().ok()?)))
                })
            })
            .collect();
    }
    let (entries, rest) = bytes.strip_prefix(&[WHOLE_PRINTS])?.as_chunks::<WHOLE>();
    if !rest.is_empty() {
        return None;
    }
    entries
        .iter()
        .map(|entry| decode_mark(entry, |print| Some(IdPrint::from_bytes(print.try_into().ok()?))))
        .collect()
}

fn decode_mark(entry: &[u8], print: impl Fn(&[u8]) -> Option<IdPrint>) -> Option<ReceiptMark> {
    let (seq, rest) = entry.split_first_chunk()?;
    Some(ReceiptMark { seq: Seq::from_le_bytes(*seq), print: print(rest)? })
}

/// The receipts of one plugin after its cursor, and those that stay for a while.
#[derive(Debug)]
pub struct AppliedReceipts {
    receipts: Mutex<ReceiptIndex>,
    most: usize,
}

#[derive(Debug, Default)]
struct ReceiptIndex {
    positions: HashMap<IdPrint, Seq>,
    /// Receipts that older versions wrote, by position and short print.
    short: BTreeSet<(Seq, IdPrint)>,
    cursor: Seq,
}

impl ReceiptIndex {
    fn above_cursor(&self) -> usize {
        let whole = self.positions.values().filter(|seq| **seq > self.cursor);
        whole.count()
            + self.short.range((self.cursor.saturating_add(1), IdPrint::from_short_print(0))..).count()
    }
}

impl Default for AppliedReceipts {
    fn default() -> Self {
        Self::of_at_most(MAX_RECEIPTS)
    }
}

impl AppliedReceipts {
    pub fn of_at_most(most: usize) -> Self {
        Self { receipts: Mutex::default(), most }
    }

    fn lock_index(&self) -> MutexGuard<'_, ReceiptIndex> {
        // Collections of plain numbers are whole after any panic.
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, marks: &[ReceiptMark]) {
        let mut receipts = self.lock_index();
        for ReceiptMark { seq, print } in marks {
            if print.is_short() {
                receipts.short.insert((*seq, *print));
            } else {
                receipts.positions.insert(*print, *seq);
            }
        }
    }

    pub fn contains(&self, mark: ReceiptMark) -> bool {
        let receipts = self.lock_index();
        receipts.positions.contains_key(&mark.print) || receipts.short.contains(&(mark.seq, mark.print))
    }

    /// Looks for a receipt of this state, written by this version or by an older one.
    pub fn contains_state(&self, mark: ReceiptMark, id: &StateId) -> bool {
        let receipts = self.lock_index();
        receipts.positions.contains_key(&mark.print)
            || (!receipts.short.is_empty()
                && receipts.short.contains(&(mark.seq, IdPrint::short_of(id.as_str()))))
    }

    /// Everything up to the cursor is finished.
    pub fn pass_cursor(&self, cursor: Seq) {
        self.lock_index().cursor = cursor;
    }

    pub fn prune_through(&self, through: Seq) {
        let mut receipts = self.lock_index();
        receipts.positions.retain(|_, seq| *seq > through);
        receipts.short.retain(|(seq, _)| *seq > through);
    }

    pub fn clear(&self) {
        *self.lock_index() = ReceiptIndex::default();
    }

    pub fn is_full(&self) -> bool {
        let receipts = self.lock_index();
        receipts.positions.len() + receipts.short.len() >= self.most && receipts.above_cursor() >= self.most
    }
}

/// The saved cursors of the last minutes. They determine which receipts may be removed.
#[derive(Debug, Default)]
pub struct SavedCursors(VecDeque<(Duration, Seq)>);

impl SavedCursors {
    /// Notes that a cursor is on disk. Returns the position up to which receipts may be removed.
    pub fn save(&mut self, now: Duration, cursor: Seq) -> Seq {
        let is_due = |last: &(Duration, Seq)| now.saturating_sub(last.0) >= STAY / REMEMBERED;
        if self.0.back().is_none_or(is_due) {
            self.0.push_back((now, cursor));
        }
        let is_old = |saved: &(Duration, Seq)| now.saturating_sub(saved.0) >= STAY;
        while self.0.get(1).is_some_and(is_old) {
            self.0.pop_front();
        }
        let old = self.0.front().filter(|saved| is_old(saved)).map_or(0, |saved| saved.1);
        old.max(cursor.saturating_sub(STAY_POSITIONS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(seq: Seq, id: &str) -> ReceiptMark {
        ReceiptMark { seq, print: IdPrint::of(id) }
    }

    fn older(seq: Seq, id: &str) -> ReceiptMark {
        ReceiptMark { seq, print: IdPrint::short_of(id) }
    }

    #[test]
    fn a_receipt_is_read_back_as_this_version_and_older_ones_wrote_it() {
        for count in 0..20 {
            let marks: Vec<_> = (0..count).map(|seq| mark(Seq::MAX - seq, "a")).collect();
            assert_eq!(decode(&encode(&marks)).unwrap(), marks, "{count}");
        }
        let written = [&5_u64.to_le_bytes()[..], &7_u32.to_le_bytes()].concat();
        assert_eq!(
            decode(&written.repeat(2)).unwrap(),
            [ReceiptMark { seq: 5, print: IdPrint::from_short_print(7) }; 2]
        );
        for damaged in [&[1, 2, 3][..], &encode(&[mark(1, "a")])[..20], &[2; 25]] {
            assert_eq!(decode(damaged), None);
        }
    }

    #[test]
    fn a_state_is_known_by_its_id_wherever_it_stands() {
        let applied = AppliedReceipts::default();
        applied.add(&[mark(5, "a"), mark(5, "b"), older(6, "c"), older(6, "d")]);
        let is_applied = |seq, id: &str| applied.contains_state(mark(seq, id), &StateId::parse(id));
        assert!(is_applied(5, "a") && is_applied(5, "b"), "two receipts at one position");
        assert!(is_applied(9, "a"), "it came again at another position");
        assert!(!is_applied(5, "new"), "another state at the same position");
        assert!(is_applied(6, "c") && is_applied(6, "d") && !is_applied(7, "c"), "of an older version");
        assert!(applied.contains(older(6, "c")) && !applied.contains(older(6, "a")));
    }

    #[test]
    fn receipts_are_full_at_their_bound_until_the_cursor_moves_on() {
        assert_eq!(AppliedReceipts::default().most, MAX_RECEIPTS);
        let applied = AppliedReceipts::of_at_most(2);
        applied.add(&[mark(5, "a")]);
        assert!(!applied.is_full());
        applied.add(&[older(6, "b")]);
        assert!(applied.is_full());
        applied.pass_cursor(5);
        assert!(!applied.is_full(), "what stays below the cursor does not count");
        assert!(applied.contains(mark(5, "a")));
        applied.prune_through(5);
        assert!(!applied.contains(mark(5, "a")) && applied.contains(older(6, "b")));
    }

    #[test]
    fn receipts_stay_for_minutes_and_a_number_of_positions_after_the_saved_cursor() {
        let (mut cursors, second) = (SavedCursors::default(), Duration::from_secs(1));
        for passed in 0..300 {
            assert_eq!(cursors.save(second * passed, 1_000 + Seq::from(passed)), 0);
        }
        assert_eq!(cursors.save(STAY, 2_000), 1_000);
        assert!(cursors.0.len() <= 1 + REMEMBERED as usize, "{}", cursors.0.len());
        assert_eq!(cursors.save(STAY * 3, 3_000), 1_285);
        let far = 10 * STAY_POSITIONS;
        assert_eq!(cursors.save(STAY * 3 + second, far), far - STAY_POSITIONS);
    }
}

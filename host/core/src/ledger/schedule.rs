//! Decides when a ledger gets a signed root, and when its file is closed.

use super::LedgerTally;

/// When a file is closed and the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRotation {
    pub bytes: u64,
    /// The age of a file.
    pub every_ms: Option<u64>,
}

/// How long records may wait for the root that covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigningInterval {
    pub records: u64,
    pub every_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerSchedule {
    pub rotation: Option<FileRotation>,
    pub signing: Option<SigningInterval>,
}

/// The statement that is due now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueWrite {
    Nothing,
    Root,
    Seal,
}

impl LedgerSchedule {
    /// Whether the controller writes any statements.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// The schedule at shutdown: records that wait for a root get one now.
    pub fn at_the_end(&self) -> Self {
        let signing = self.signing.map(|_| SigningInterval { records: 1, every_ms: 0 });
        Self { signing, ..*self }
    }

    /// `bytes` is the length of the open file.
    pub fn due_write(&self, tally: &LedgerTally, bytes: u64, now_ms: u64) -> DueWrite {
        if !tally.has_records() {
            return DueWrite::Nothing;
        }
        let is_full = |rotation: FileRotation| {
            let is_old = rotation.every_ms.is_some_and(|every| has_passed(tally.began_ms(), every, now_ms));
            bytes >= rotation.bytes || is_old
        };
        let is_waiting = |signing: SigningInterval| {
            let Some((records, since_ms)) = tally.unsigned_records() else { return false };
            records >= signing.records || has_passed(since_ms, signing.every_ms, now_ms)
        };
        match () {
            () if self.rotation.is_some_and(is_full) => DueWrite::Seal,
            () if self.signing.is_some_and(is_waiting) => DueWrite::Root,
            () => DueWrite::Nothing,
        }
    }
}

/// If the clock was set back, it counts as due: an extra root is harmless, a missing one is not.
fn has_passed(since_ms: u64, every_ms: u64, now_ms: u64) -> bool {
    now_ms.checked_sub(since_ms).is_none_or(|age| age >= every_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: LedgerSchedule = LedgerSchedule {
        rotation: Some(FileRotation { bytes: 1000, every_ms: Some(500) }),
        signing: Some(SigningInterval { records: 3, every_ms: 100 }),
    };

    fn tally(records: u64, now_ms: u64) -> LedgerTally {
        let mut tally = LedgerTally::before_first_statement(now_ms);
        (0..records).for_each(|number| tally.count_record(number.to_string().as_bytes(), now_ms));
        tally
    }

    #[test]
    fn a_file_without_records_is_neither_signed_nor_closed() {
        assert_eq!(BOTH.due_write(&tally(0, 0), 5000, 10_000), DueWrite::Nothing);
    }

    #[test]
    fn a_root_is_due_after_so_many_records_or_so_long() {
        assert_eq!(BOTH.due_write(&tally(2, 0), 10, 99), DueWrite::Nothing);
        assert_eq!(BOTH.due_write(&tally(3, 0), 10, 99), DueWrite::Root);
        assert_eq!(BOTH.due_write(&tally(1, 0), 10, 100), DueWrite::Root);
    }

    #[test]
    fn at_the_end_whatever_waits_is_signed() {
        assert_eq!(BOTH.at_the_end().due_write(&tally(1, 0), 10, 0), DueWrite::Root);
        let unsigned = LedgerSchedule { signing: None, ..BOTH };
        assert_eq!(unsigned.at_the_end().due_write(&tally(1, 0), 10, 0), DueWrite::Nothing);
    }

    #[test]
    fn a_root_that_covers_every_record_is_not_repeated() {
        let mut tally = tally(3, 0);
        tally.count_statement(b"a root");
        assert_eq!(BOTH.due_write(&tally, 10, 400), DueWrite::Nothing);
        tally.count_record(b"one more", 400);
        assert_eq!(
            (BOTH.due_write(&tally, 10, 499), BOTH.due_write(&tally, 10, 500)),
            (DueWrite::Nothing, DueWrite::Seal)
        );
    }

    #[test]
    fn a_file_is_closed_by_its_size_or_its_age() {
        assert_eq!(BOTH.due_write(&tally(1, 0), 1000, 1), DueWrite::Seal);
        assert_eq!(BOTH.due_write(&tally(1, 0), 1, 500), DueWrite::Seal);
        let never = LedgerSchedule { rotation: None, signing: None };
        assert_eq!(never.due_write(&tally(9, 0), u64::MAX, u64::MAX), DueWrite::Nothing);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_a_root_due() {
        let schedule = LedgerSchedule { rotation: None, ..BOTH };
        assert_eq!(schedule.due_write(&tally(1, 1000), 10, 900), DueWrite::Root);
    }
}

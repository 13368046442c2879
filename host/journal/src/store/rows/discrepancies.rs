//! The findings of audits, as rows. A stream keeps its newest few. They are numbered from 1, so the greatest
//! number is the count of all findings.

use std::collections::BTreeMap;

use kubewitness_core::limits::DISCREPANCIES;
use kubewitness_core::ports::AuditDifferences;
use kubewitness_core::views::DiscrepancyView;

use crate::store::rows::{StoreResult, decode_column};

/// The differences that one append reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundDifferences {
    pub stream: i64,
    pub count: i64,
    /// The newest differences, in order.
    bodies: Vec<String>,
}

/// A number and the finding with that number.
pub(crate) type NumberedRow = (i64, String);

/// The changes of a stream's rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamRowChange {
    pub insert: Vec<NumberedRow>,
    pub remove: Vec<i64>,
}

impl FoundDifferences {
    pub fn of(stream: i64, found: &[DiscrepancyView]) -> Self {
        let body = |view| serde_json::to_string(view).expect("strings and numbers always serialize");
        let newest = &found[found.len().saturating_sub(DISCREPANCIES)..];
        Self { stream, count: found.len() as i64, bodies: newest.iter().map(body).collect() }
    }

    /// `kept` are the stream's rows, in any order. Findings that are already stored are not written again.
    pub fn row_change(self, kept: &[NumberedRow]) -> StreamRowChange {
        let Some(last) = self.bodies.last() else { return StreamRowChange::default() };
        if kept.iter().any(|(_, body)| body == last) {
            return StreamRowChange::default();
        }
        let newest = kept.iter().map(|(number, _)| *number).max().unwrap_or(0) + self.count;
        let first = newest - self.bodies.len() as i64 + 1;
        let outdated = newest - DISCREPANCIES as i64;
        StreamRowChange {
            insert: (first..).zip(self.bodies).collect(),
            remove: kept.iter().map(|(number, _)| *number).filter(|number| *number <= outdated).collect(),
        }
    }
}

/// Reads the rows of all streams of a source, each with its stream, newest first.
pub(crate) fn read(rows: Vec<(i64, i64, String)>) -> StoreResult<AuditDifferences> {
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    for (stream, number, _) in &rows {
        let count = counts.entry(*stream).or_default();
        *count = (*count).max(*number);
    }
    let decode = |(stream, number, body): (i64, i64, String)| {
        decode_column(&body, || format!("discrepancy {number} of stream {stream}"))
    };
    Ok(AuditDifferences {
        count: counts.into_values().sum::<i64>() as u64,
        newest: rows.into_iter().take(DISCREPANCIES).map(decode).collect::<StoreResult<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(moments: std::ops::Range<u64>) -> FoundDifferences {
        let views: Vec<_> =
            moments.map(|found_ms| DiscrepancyView { found_ms, ..Default::default() }).collect();
        FoundDifferences::of(7, &views)
    }

    /// The rows after a change.
    fn applied(kept: &[NumberedRow], change: StreamRowChange) -> Vec<NumberedRow> {
        let mut rows = kept.to_vec();
        rows.retain(|(number, _)| !change.remove.contains(number));
        rows.extend(change.insert);
        rows
    }

    #[test]
    fn the_greatest_number_counts_all_and_only_the_newest_are_kept() {
        let mut rows = applied(&[], found(0..3).row_change(&[]));
        rows = applied(&rows, found(3..3).row_change(&rows));
        rows = applied(&rows, found(3..5).row_change(&rows));
        assert_eq!(rows.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let most = DISCREPANCIES as u64;
        rows = applied(&rows, found(5..5 + 3 * most).row_change(&rows));
        assert_eq!(rows.len(), DISCREPANCIES);
        rows = applied(&rows, found(5 + 3 * most..6 + 3 * most).row_change(&rows));
        assert_eq!(rows.len(), DISCREPANCIES);
        let newest_first = rows.into_iter().rev().map(|(number, body)| (7, number, body)).collect();
        let read = read(newest_first).unwrap();
        assert_eq!((read.count, read.newest.len()), (6 + 3 * most, DISCREPANCIES));
        assert_eq!((read.newest[0].found_ms, read.newest[1].found_ms), (5 + 3 * most, 4 + 3 * most));
    }

    #[test]
    fn what_is_written_once_more_changes_nothing() {
        let first = applied(&[], found(0..2).row_change(&[]));
        let both = applied(&first, found(2..4).row_change(&first));
        assert_eq!(found(0..2).row_change(&both), StreamRowChange::default());
        assert_eq!(found(2..4).row_change(&both), StreamRowChange::default());
    }
}

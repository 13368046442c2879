//! What changed between two documents, line by line. The crate `similar` compares them.

use std::time::{Duration, Instant};

use similar::{Algorithm, ChangeTag, capture_diff_slices_deadline, group_diff_ops};

/// Documents that have little in common take long to compare. What is left after this time is shown as
/// removed and added, which is right, if longer than it could be.
const WITHIN: Duration = Duration::from_millis(250);
/// Equal lines that are shown around a change.
const AROUND: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Same(&'a str),
    Removed(&'a str),
    Added(&'a str),
    /// So many equal lines are left out.
    Skipped(usize),
}

pub(super) fn lines<'a>(old: &'a str, new: &'a str) -> Vec<Line<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let deadline = Some(Instant::now() + WITHIN);
    let changes = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    let (mut shown, mut next) = (Vec::new(), 0);
    let skip = |shown: &mut Vec<_>, count| shown.extend((count > 0).then_some(Line::Skipped(count)));
    for change in group_diff_ops(changes, AROUND).concat() {
        skip(&mut shown, change.old_range().start - next);
        next = change.old_range().end;
        for (tag, lines) in change.iter_slices(&old[..], &new[..]) {
            shown.extend(lines.iter().map(|line| match tag {
                ChangeTag::Equal => Line::Same(line),
                ChangeTag::Delete => Line::Removed(line),
                ChangeTag::Insert => Line::Added(line),
            }));
        }
    }
    skip(&mut shown, old.len() - next);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_what_is_around_it() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10";
        assert_eq!(
            lines(old, new),
            [
                Line::Skipped(1),
                Line::Same("2"),
                Line::Same("3"),
                Line::Same("4"),
                Line::Removed("5"),
                Line::Added("five"),
                Line::Same("6"),
                Line::Same("7"),
                Line::Same("8"),
                Line::Same("9"),
                Line::Added("10"),
            ]
        );
    }

    #[test]
    fn equal_documents_have_no_changes_and_huge_ones_an_answer() {
        assert_eq!(lines("a\nb", "a\nb"), [Line::Skipped(2)]);
        // Too many differences to find the fewest of: whatever is shown must still lead from one to the other.
        let text =
            |step: usize| (0..20_000).map(|line| format!("{}\n", line * step % 9973)).collect::<String>();
        let (old, new) = (text(7), text(11));
        let (mut before, mut after) = (old.lines(), new.lines());
        for line in lines(&old, &new) {
            match line {
                Line::Same(text) => assert_eq!((before.next(), after.next()), (Some(text), Some(text))),
                Line::Removed(text) => assert_eq!(before.next(), Some(text)),
                Line::Added(text) => assert_eq!(after.next(), Some(text)),
                Line::Skipped(count) => {
                    (0..count).for_each(|_| assert_eq!(before.next(), after.next()));
                }
            }
        }
        assert_eq!((before.next(), after.next()), (None, None));
    }
}

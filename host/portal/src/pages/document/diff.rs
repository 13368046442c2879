//! Compares two documents line by line. The crate `similar` compares them.

use std::time::{Duration, Instant};

use similar::{Algorithm, ChangeTag, capture_diff_slices_deadline, group_diff_ops};

/// Documents with little in common take long to compare. After this time, the rest is shown as removed and
/// added: correct, but longer than necessary.
const WITHIN: Duration = Duration::from_millis(250);
/// How many equal lines are shown around a change.
const AROUND: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiffLine<'a> {
    Same(&'a str),
    Removed(&'a str),
    Added(&'a str),
    /// This many equal lines are omitted.
    Skipped(usize),
}

pub(super) fn diff_lines<'a>(old: &'a str, new: &'a str) -> Vec<DiffLine<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let deadline = Some(Instant::now() + WITHIN);
    let changes = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    let (mut shown, mut next) = (Vec::new(), 0);
    let skip = |shown: &mut Vec<_>, count| shown.extend((count > 0).then_some(DiffLine::Skipped(count)));
    for change in group_diff_ops(changes, AROUND).concat() {
        skip(&mut shown, change.old_range().start - next);
        next = change.old_range().end;
        for (tag, lines) in change.iter_slices(&old[..], &new[..]) {
            shown.extend(lines.iter().map(|line| match tag {
                ChangeTag::Equal => DiffLine::Same(line),
                ChangeTag::Delete => DiffLine::Removed(line),
                ChangeTag::Insert => DiffLine::Added(line),
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
            diff_lines(old, new),
            [
                DiffLine::Skipped(1),
                DiffLine::Same("2"),
                DiffLine::Same("3"),
                DiffLine::Same("4"),
                DiffLine::Removed("5"),
                DiffLine::Added("five"),
                DiffLine::Same("6"),
                DiffLine::Same("7"),
                DiffLine::Same("8"),
                DiffLine::Same("9"),
                DiffLine::Added("10"),
            ]
        );
    }

    #[test]
    fn equal_documents_have_no_changes_and_huge_ones_an_answer() {
        assert_eq!(diff_lines("a\nb", "a\nb"), [DiffLine::Skipped(2)]);
        // With too many differences, the shortest list is not found, but the shown lines must still lead from
        // one document to the other.
        let text =
            |step: usize| (0..20_000).map(|line| format!("{}\n", line * step % 9973)).collect::<String>();
        let (old, new) = (text(7), text(11));
        let (mut before, mut after) = (old.lines(), new.lines());
        for line in diff_lines(&old, &new) {
            match line {
                DiffLine::Same(text) => assert_eq!((before.next(), after.next()), (Some(text), Some(text))),
                DiffLine::Removed(text) => assert_eq!(before.next(), Some(text)),
                DiffLine::Added(text) => assert_eq!(after.next(), Some(text)),
                DiffLine::Skipped(count) => {
                    (0..count).for_each(|_| assert_eq!(before.next(), after.next()));
                }
            }
        }
        assert_eq!((before.next(), after.next()), (None, None));
    }
}

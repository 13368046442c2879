//! The lines in which two texts differ, as a unified diff. The crate `similar` compares them.

use std::time::{Duration, Instant};

use similar::{Algorithm, ChangeTag, DiffOp, capture_diff_slices_deadline, group_diff_ops};

use super::clean_line;

/// Texts with little in common take long to compare. After this time, the rest is shown as removed and added:
/// correct, but longer than necessary.
const WITHIN: Duration = Duration::from_secs(2);
/// How many equal lines are shown around a change.
const AROUND: usize = 3;

pub fn unified_diff(titles: &[String; 2], before: &str, after: &str, coloured: bool) -> String {
    let (old_lines, new_lines): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let deadline = Some(Instant::now() + WITHIN);
    let changes = capture_diff_slices_deadline(Algorithm::Myers, &old_lines, &new_lines, deadline);
    let mut text = String::new();
    let mut line = |colour: &str, line: String| {
        let line = clean_line(&line);
        match coloured && !colour.is_empty() {
            true => text.push_str(&format!("\x1b[{colour}m{line}\x1b[0m\n")),
            false => text.push_str(&format!("{line}\n")),
        }
    };
    line("1", format!("--- {}", titles[0]));
    line("1", format!("+++ {}", titles[1]));
    for hunk in group_diff_ops(changes, AROUND) {
        line("36", hunk_place(&hunk));
        for change in &hunk {
            for (tag, lines) in change.iter_slices(&old_lines[..], &new_lines[..]) {
                let (sign, colour) = match tag {
                    ChangeTag::Equal => (' ', ""),
                    ChangeTag::Delete => ('-', "31"),
                    ChangeTag::Insert => ('+', "32"),
                };
                lines.iter().for_each(|it| line(colour, format!("{sign}{it}")));
            }
        }
    }
    text
}

/// `@@ -3,7 +3,8 @@`, as `patch` reads it.
fn hunk_place(hunk: &[DiffOp]) -> String {
    let span = |range: &dyn Fn(&DiffOp) -> std::ops::Range<usize>| {
        let (first, last) =
            (hunk.first().map(range).unwrap_or_default(), hunk.last().map(range).unwrap_or_default());
        let lines = last.end - first.start;
        let begin = if lines == 0 { first.start } else { first.start + 1 };
        if lines == 1 { begin.to_string() } else { format!("{begin},{lines}") }
    };
    format!("@@ -{} +{} @@", span(&DiffOp::old_range), span(&DiffOp::new_range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_one_that_patch_takes() {
        let titles = ["x  position 4".to_owned(), "x  position 7".to_owned()];
        let (before, after) = ("a: 1\nb: 2\nc: 3\nd: 4\ne: 5\n", "a: 1\nb: 2\nc: 3\nd: 4\ne: six\u{1b}\n");
        assert_eq!(
            unified_diff(&titles, before, after, false),
            "--- x  position 4\n+++ x  position 7\n@@ -2,4 +2,4 @@\n b: 2\n c: 3\n d: 4\n-e: 5\n+e: six·\n"
        );
        let text = unified_diff(&titles, "", "a: 1\n", true);
        assert!(
            text.contains("\u{1b}[36m@@ -0,0 +1 @@\u{1b}[0m") && text.contains("\u{1b}[32m+a: 1\u{1b}[0m"),
            "{text:?}"
        );
        assert_eq!(unified_diff(&titles, "a: 1\n", "a: 1\n", false).lines().count(), 2);
    }
}

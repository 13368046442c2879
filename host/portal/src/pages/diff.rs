//! What changed between two documents, line by line.

/// A pair of documents with more lines than this (after what is equal at both ends) is told as
/// one change: the table that finds the shortest difference grows with the product.
const LINES: usize = 2000;
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
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let mut all: Vec<Line<'a>> = old[..head].iter().map(|line| Line::Same(line)).collect();
    middle(&old[head..old_end], &new[head..new_end], &mut all);
    all.extend(old[old_end..].iter().map(|line| Line::Same(line)));
    fold(&all)
}

fn middle<'a>(old: &[&'a str], new: &[&'a str], out: &mut Vec<Line<'a>>) {
    if old.len() > LINES || new.len() > LINES {
        out.extend(old.iter().map(|line| Line::Removed(line)));
        out.extend(new.iter().map(|line| Line::Added(line)));
        return;
    }
    // `common[i][j]`: the most lines that the rests from i and j have in common.
    let width = new.len() + 1;
    let mut common = vec![0u16; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = match old[i] == new[j] {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            out.push(Line::Same(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len()
            || (i < old.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            out.push(Line::Removed(old[i]));
            i += 1;
        } else {
            out.push(Line::Added(new[j]));
            j += 1;
        }
    }
}

fn fold<'a>(all: &[Line<'a>]) -> Vec<Line<'a>> {
    let changed: Vec<usize> = (0..all.len()).filter(|index| !matches!(all[*index], Line::Same(_))).collect();
    let mut folded = Vec::new();
    let (mut skipped, mut next) = (0, 0);
    for (index, line) in all.iter().enumerate() {
        while next < changed.len() && changed[next] + AROUND < index {
            next += 1;
        }
        let near = changed.get(next).is_some_and(|change| change.abs_diff(index) <= AROUND);
        if !near {
            skipped += 1;
            continue;
        }
        if skipped > 0 {
            folded.push(Line::Skipped(std::mem::take(&mut skipped)));
        }
        folded.push(*line);
    }
    if skipped > 0 {
        folded.push(Line::Skipped(skipped));
    }
    folded
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
        let (old, new) = ("x\n".repeat(LINES + 1), "y\n".repeat(LINES + 1));
        assert_eq!(lines(&old, &new).len(), 2 * (LINES + 1));
    }
}

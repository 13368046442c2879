//! The number of a journal's format, in which an unfinished import is marked.

/// Added to the number of a journal's format while it holds an import that has not come to its end.
/// The mark stands there since every journal has that number, and since a program that knows of no
/// such mark refuses it as a format that it does not know, instead of going on with half a story.
pub(crate) const UNFINISHED: i64 = 1_000_000;

/// A format, and whether an import that has not come to its end is marked in it.
pub(crate) fn unmarked(format: i64) -> (i64, bool) {
    match format >= UNFINISHED {
        true => (format - UNFINISHED, true),
        false => (format, false),
    }
}

/// The number of a format, with a mark for an unfinished import.
pub(crate) fn marked(format: i64, unfinished: bool) -> i64 {
    if unfinished { format + UNFINISHED } else { format }
}

//! The number of a journal's format, which also marks an unfinished import.

/// Added to the number of a journal's format while it holds an unfinished import. The mark is in this number
/// because every journal has it. A program that does not know the mark refuses the format as unknown, instead
/// of continuing with an incomplete journal.
pub(crate) const UNFINISHED: i64 = 1_000_000;

/// Splits the stored number into the format and the mark of an unfinished import.
pub(crate) fn split_mark(format: i64) -> (i64, bool) {
    match format >= UNFINISHED {
        true => (format - UNFINISHED, true),
        false => (format, false),
    }
}

/// The number of a format, with a mark for an unfinished import.
pub(crate) fn with_mark(format: i64, unfinished: bool) -> i64 {
    if unfinished { format + UNFINISHED } else { format }
}

//! The waits of a test. The test harness writes a line for each wait, with its seconds.

use std::path::Path;

#[derive(Clone, Debug, PartialEq)]
pub struct RecordedWait {
    pub what: String,
    pub seconds: f64,
}

/// The waits, longest first. A test without waits writes no file.
pub fn read(file: &Path) -> Vec<RecordedWait> {
    let mut waits = parse(&std::fs::read_to_string(file).unwrap_or_default());
    waits.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    waits
}

fn parse(text: &str) -> Vec<RecordedWait> {
    let mut waits: Vec<RecordedWait> = Vec::new();
    let of_line = |line: &str| {
        let (seconds, what) = line.split_once('\t')?;
        Some(RecordedWait { what: what.to_owned(), seconds: seconds.parse().ok()? })
    };
    for wait in text.lines().filter_map(of_line) {
        match waits.iter_mut().find(|known| known.what == wait.what) {
            Some(known) => known.seconds += wait.seconds,
            None => waits.push(wait),
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_the_same_thing_are_added_up() {
        let waits = parse("1.5\tthe Lease\n0.5\ta row\n2\tthe Lease\nbroken\n");
        let wait = |what: &str, seconds| RecordedWait { what: what.to_owned(), seconds };
        assert_eq!(waits, [wait("the Lease", 3.5), wait("a row", 0.5)]);
    }
}

//! Verifies an audit trail: no line was changed, removed, moved or repeated since it was written.
//!
//! A line is one JSON object that ends with `,"hash":"…"}`, or with a signature after the hash. The
//! hash is SHA-256, in hex, over the hash of the line before and the line's own text without hash
//! and signature; the text also names its number `n` and the hash before it, `prev`. The first line
//! has number 1 and sixty-four zeros before it.
//!
//! A chain can't show that lines are missing at its end. A reader who has noted the newest hash can compare it.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, Read};

use ring::digest::{Context, SHA256, digest};
use serde::{Deserialize, Serialize};

/// A ledger takes no longer records.
const LINE_BYTES: u64 = 256 * 1024 + 1;
const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const HASH_FIELD: &str = ",\"hash\":\"";
const SIGNATURE_FIELD: &str = ",\"signature\":\"";

/// What was found. Nothing after the first bad line is looked at: it hangs on that line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub ok: bool,
    /// Lines that hold, from the beginning.
    pub lines: u64,
    pub signed: u64,
    pub first_bad_line: Option<u64>,
    /// What is wrong with it.
    pub what: Option<String>,
    /// The hash of the last line that holds.
    pub head: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first_bad_line, &self.what) {
            (Some(line), Some(what)) => write!(f, "line {line}: {what}; the {} before it hold", self.lines),
            _ if self.lines == 0 => f.write_str("no lines yet"),
            _ => write!(
                f,
                "{} lines, {} of them signed, unbroken; the newest is {}",
                self.lines, self.signed, self.head
            ),
        }
    }
}

/// Why a line does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    Cut,
    NotText,
    Unreadable(String),
    NoHash,
    Number(u64),
    Unlinked,
    Changed,
    Twice(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut => f.write_str("it has no end: it was cut, or is too long"),
            Self::NotText => f.write_str("it is not text"),
            Self::Unreadable(error) => write!(f, "it can't be read: {error}"),
            Self::NoHash => f.write_str("it does not end with its hash"),
            Self::Number(n) => write!(f, "it has number {n}: a line before it was removed, added or moved"),
            Self::Unlinked => f.write_str(
                "it does not follow from the line before it: one of the two was changed or replaced",
            ),
            Self::Changed => f.write_str("its text does not match its hash: it was changed"),
            Self::Twice(id) => write!(
                f,
                "the state {id} is there a second time: two plugins write to this ledger, one wrote to it under two \
                 names, or the line was added"
            ),
        }
    }
}

#[derive(Deserialize)]
struct Line {
    n: u64,
    prev: String,
    id: String,
}

/// An error is one of reading; whatever is wrong with the lines is in the report.
pub fn verify(mut reader: impl BufRead) -> io::Result<Report> {
    let mut report = Report { ok: true, head: START.to_owned(), ..Report::default() };
    // Half of each id's hash: collisions are out of reach, and a million lines take some 30 MB.
    let mut ids: HashSet<[u8; 16]> = HashSet::new();
    let mut bytes = Vec::new();
    while reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut bytes)? > 0 {
        match check(&bytes, &report, &mut ids) {
            Ok((head, signed)) => {
                report.lines += 1;
                report.signed += u64::from(signed);
                report.head = head;
            }
            Err(broken) => {
                report.ok = false;
                report.first_bad_line = Some(report.lines + 1);
                report.what = Some(broken.to_string());
                break;
            }
        }
        bytes.clear();
    }
    Ok(report)
}

/// Gives the line's hash, and whether it is signed.
fn check(bytes: &[u8], before: &Report, ids: &mut HashSet<[u8; 16]>) -> Result<(String, bool), Broken> {
    let text = bytes.strip_suffix(b"\n").ok_or(Broken::Cut)?;
    let text = std::str::from_utf8(text).map_err(|_| Broken::NotText)?;
    let line: Line = serde_json::from_str(text).map_err(|error| Broken::Unreadable(error.to_string()))?;
    let (body, hash, signed) = split(text).ok_or(Broken::NoHash)?;
    // The number and the link come first: they tell a missing or moved line from a changed one.
    if line.n != before.lines + 1 {
        return Err(Broken::Number(line.n));
    }
    if line.prev != before.head {
        return Err(Broken::Unlinked);
    }
    let mut own = Context::new(&SHA256);
    for part in [line.prev.as_str(), body, "}"] {
        own.update(part.as_bytes());
    }
    let own = hex::encode(own.finish());
    if own != hash {
        return Err(Broken::Changed);
    }
    let half = digest(&SHA256, line.id.as_bytes()).as_ref().first_chunk().copied().unwrap_or_default();
    if !ids.insert(half) {
        return Err(Broken::Twice(line.id));
    }
    Ok((own, signed))
}

/// The text before the hash, the hash, and whether a signature follows it.
fn split(text: &str) -> Option<(&str, &str, bool)> {
    let text = text.strip_suffix("\"}")?;
    // From the end: what the object itself says can't get behind the last of its fields.
    let (text, signed) = match text.rsplit_once(SIGNATURE_FIELD) {
        Some((text, signature)) if !signature.contains('"') => (text.strip_suffix('"')?, true),
        _ => (text, false),
    };
    let (body, hash) = text.rsplit_once(HASH_FIELD)?;
    (hash.len() == START.len()).then_some((body, hash, signed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(ids: &[&str]) -> Vec<String> {
        let mut prev = START.to_owned();
        let mut lines = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            let body = format!(r#"{{"n":{},"prev":"{prev}","id":"{id}","phase":"Running""#, index + 1);
            let hash = hex::encode(digest(&SHA256, format!("{prev}{body}}}").as_bytes()));
            let signature = if index % 2 == 1 { r#","signature":"c2ln""# } else { "" };
            lines.push(format!("{body}{HASH_FIELD}{hash}\"{signature}}}\n"));
            prev = hash;
        }
        lines
    }

    fn report(lines: &[String]) -> Report {
        verify(lines.concat().as_bytes()).unwrap()
    }

    fn bad(lines: &[String]) -> (u64, String) {
        let report = report(lines);
        assert!(!report.ok);
        (report.first_bad_line.unwrap(), report.what.unwrap())
    }

    #[test]
    fn an_unbroken_chain_holds() {
        let lines = chain(&["a", "b", "c"]);
        let report = report(&lines);
        assert!(report.ok, "{report}");
        assert_eq!((report.lines, report.signed, report.first_bad_line), (3, 1, None));
        assert!(lines[2].contains(&report.head));
    }

    #[test]
    fn an_empty_trail_holds() {
        assert_eq!(report(&[]).to_string(), "no lines yet");
    }

    #[test]
    fn a_changed_byte_is_found_in_its_line() {
        let mut lines = chain(&["a", "b", "c"]);
        lines[1] = lines[1].replace("Running", "Succeed");
        let (line, what) = bad(&lines);
        assert_eq!(line, 2);
        assert!(what.contains("changed"), "{what}");
    }

    #[test]
    fn a_line_changed_together_with_its_hash_breaks_the_next() {
        let mut lines = chain(&["a", "b", "c"]);
        lines[1] = chain(&["a", "x"]).remove(1);
        assert_eq!(bad(&lines).0, 3);
    }

    #[test]
    fn a_removed_line_is_found() {
        for (remove, found) in [(0, 1), (1, 2)] {
            let mut lines = chain(&["a", "b", "c"]);
            lines.remove(remove);
            let (line, what) = bad(&lines);
            assert_eq!(line, found);
            assert!(what.contains("removed"), "{what}");
        }
    }

    #[test]
    fn swapped_lines_are_found() {
        let mut lines = chain(&["a", "b", "c"]);
        lines.swap(1, 2);
        assert_eq!(bad(&lines).0, 2);
    }

    #[test]
    fn a_line_that_was_cut_is_found() {
        let mut lines = chain(&["a", "b", "c"]);
        lines[2].truncate(40);
        let (line, what) = bad(&lines);
        assert_eq!(line, 3);
        assert!(what.contains("cut"), "{what}");
    }

    #[test]
    fn a_missing_end_shows_in_the_newest_hash_only() {
        let lines = chain(&["a", "b", "c"]);
        let (whole, short) = (report(&lines), report(&lines[..2]));
        assert!(short.ok && short.head != whole.head);
    }

    #[test]
    fn a_state_that_is_there_twice_is_found() {
        let (line, what) = bad(&chain(&["a", "b", "a"]));
        assert_eq!(line, 3);
        assert!(what.contains("second time"), "{what}");
    }

    #[test]
    fn an_object_that_names_itself_like_a_hash_changes_nothing() {
        let forged = format!("x{},", HASH_FIELD.replace('"', "\\\""));
        assert!(report(&chain(&["a", &forged, "c"])).ok);
    }

    #[test]
    fn what_is_no_line_of_a_trail_is_bad_and_not_an_error() {
        for text in ["\n", "{}\n", "null\n", "\u{0}\n", "{\"n\":1,\"prev\":\"\",\"id\":\"\"}\n"] {
            assert_eq!(bad(&[text.to_owned()]).0, 1, "{text:?}");
        }
        assert_eq!(verify([0xff, b'\n'].as_slice()).unwrap().first_bad_line, Some(1));
    }

    #[test]
    fn a_line_without_an_end_is_bad_before_it_fills_the_memory() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        assert_eq!(verify(endless).unwrap().first_bad_line, Some(1));
    }
}

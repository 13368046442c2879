//! Ledgers that are changed in every way, and the result of verifying each. The tests read only files: no
//! controller runs.

mod changes;
mod parts;

use std::path::PathBuf;

use kubewitness_core::ledger::{LedgerTally, StatementKind, closed_file};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};

use super::anchor::RootAnchor;
use super::findings::AuditReport;
use super::statements::{PublicKeys, is_statement};
use super::verify::{ProofDemands, verify_files};
use super::{keys, trail};

const HASH_FIELD: &str = ",\"hash\":\"";

/// Lines of a trail, each with the previous hash. The plugin signs every second one.
fn chain(ids: &[&str]) -> Vec<String> {
    chain_signed(ids, true)
}

fn chain_signed(ids: &[&str], signs: bool) -> Vec<String> {
    chain_of(ids.iter().map(|id| format!(r#""id":"{id}","phase":"Running""#)), signs)
}

/// `fields` are those of each record, without the chain.
pub fn chain_of(fields: impl Iterator<Item = String>, signs: bool) -> Vec<String> {
    let mut prev = trail::START.to_owned();
    let mut lines = Vec::new();
    for (index, fields) in fields.enumerate() {
        let body = format!(r#"{{"n":{},"prev":"{prev}",{fields}"#, index + 1);
        let hash = hex::encode(digest(&SHA256, format!("{prev}{body}}}").as_bytes()));
        let signature = if signs && index % 2 == 1 { r#","signature":"c2ln""# } else { "" };
        lines.push(format!("{body}{HASH_FIELD}{hash}\"{signature}}}\n"));
        prev = hash;
    }
    lines
}

fn key() -> Ed25519KeyPair {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap()
}

fn public(key: &Ed25519KeyPair) -> PublicKeys {
    let public = key.public_key().as_ref().to_vec();
    PublicKeys::from([(keys::id(&public), public)])
}

/// A ledger as the controller writes it: with a root after every `every` records, and a seal after every
/// `each_file`.
pub fn ledger(
    id: &str,
    records: &[String],
    every: usize,
    each_file: usize,
    key: Option<&Ed25519KeyPair>,
) -> Vec<Vec<String>> {
    let mut tally = LedgerTally::before_first_statement(0);
    let mut files = vec![Vec::new()];
    let sign = |text: &[u8]| key.unwrap().sign(text).as_ref().to_vec();
    let name = key.map(|key| keys::id(key.public_key().as_ref()));
    for (index, record) in records.iter().enumerate() {
        files.last_mut().unwrap().push(record.clone());
        tally.count_record(record.trim_end().as_bytes(), 0);
        let kind = match index + 1 {
            count if count % each_file == 0 => StatementKind::Seal,
            count if count % every == 0 => StatementKind::Root,
            _ => continue,
        };
        let statement = tally.next_statement(kind, id, index as u64, name.clone());
        let line = statement.encode_line(key.is_some().then_some(&sign)).unwrap();
        files.last_mut().unwrap().push(String::from_utf8([line.as_slice(), b"\n"].concat()).unwrap());
        tally.count_line(&line, 0).unwrap();
        if kind == StatementKind::Seal {
            let head = statement.head_after(&line).encode_line(None).unwrap();
            tally = LedgerTally::before_first_statement(0);
            tally.count_line(&head, 0).unwrap();
            files.push(vec![format!("{}\n", String::from_utf8(head).unwrap())]);
        }
    }
    files
}

struct TrailFolder(tempfile::TempDir);

impl TrailFolder {
    fn of(files: &[Vec<u8>]) -> (Self, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("trail.jsonl");
        let write = |(index, bytes): (usize, &Vec<u8>)| {
            let path =
                if index + 1 == files.len() { open.clone() } else { closed_file(&open, index as u64 + 1) };
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut paths: Vec<_> = files.iter().enumerate().map(write).collect();
        // Their order on the command line does not matter.
        paths.reverse();
        (Self(folder), paths)
    }
}

fn proved(files: &[Vec<u8>], demands: &ProofDemands) -> AuditReport {
    let (folder, paths) = TrailFolder::of(files);
    let report = verify_files(&paths, demands, &mut |_| {}).unwrap();
    drop(folder.0);
    report
}

fn bytes(files: &[Vec<String>]) -> Vec<Vec<u8>> {
    files.iter().map(|lines| lines.concat().into_bytes()).collect()
}

fn report(lines: &[String]) -> AuditReport {
    proved(&[lines.concat().into_bytes()], &ProofDemands::default())
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
    assert!(report.not_shown[0].contains("nothing in it is signed"), "{:?}", report.not_shown);
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
    assert_eq!(proved(&[vec![0xff, b'\n']], &ProofDemands::default()).first_bad_line, Some(1));
}

#[test]
fn a_ledger_of_another_plugin_is_refused_with_what_can_be_proved() {
    let (line, what) = bad(&["{\"a\":1}\n".to_owned()]);
    assert!(line == 1 && what.contains("only ledgers of that plugin can be proved"), "{what}");
}

#[test]
fn a_line_without_an_end_is_bad_before_it_fills_the_memory() {
    let endless = vec![b'x'; super::verify::LINE_BYTES as usize + 10];
    let report = proved(&[endless], &ProofDemands::default());
    assert_eq!(report.first_bad_line, Some(1));
    assert!(report.what.unwrap().contains("too long"));
}

fn render_records(count: usize) -> Vec<String> {
    let ids: Vec<_> = (0..count).map(|number| format!("state {number}")).collect();
    chain_signed(&ids.iter().map(String::as_str).collect::<Vec<_>>(), false)
}

const ID: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn a_sealed_ledger_holds_and_says_what_is_not_signed_yet() {
    let key = key();
    let files = bytes(&ledger(ID, &render_records(11), 2, 4, Some(&key)));
    let report = proved(&files, &ProofDemands { keys: public(&key), ..ProofDemands::default() });
    assert!(report.ok, "{report}");
    assert_eq!((report.files, report.seals, report.roots, report.signed_roots), (3, 2, 5, 5));
    assert_eq!((report.lines, report.open), (11, 1));
    assert!(
        report.not_shown.iter().any(|remark| remark.contains("the last 1 records")),
        "{:?}",
        report.not_shown
    );
    let strict = ProofDemands { keys: public(&key), is_from_first: true, ..ProofDemands::default() };
    assert!(proved(&files, &strict).ok);
    let fault = proved(&files[1..], &strict).what.unwrap();
    assert!(
        fault.contains("number 1 of the ledger, was not given") && fault.contains("--from-middle"),
        "{fault}"
    );
    // A later part can be proved alone, and the report says so.
    let part = proved(&files[2..], &ProofDemands { keys: public(&key), ..ProofDemands::default() });
    assert!(
        part.ok && part.not_shown[0].contains("before the first of these files"),
        "{part} {:?}",
        part.not_shown
    );
}

#[test]
fn a_file_that_is_missing_given_twice_or_of_another_ledger_is_named() {
    let key = key();
    let demands = || ProofDemands { keys: public(&key), ..ProofDemands::default() };
    let files = bytes(&ledger(ID, &render_records(11), 2, 4, Some(&key)));
    let fault_in = |files: &[Vec<u8>]| proved(files, &demands()).what.unwrap();
    assert!(fault_in(&[files[0].clone(), files[2].clone()]).contains("file 2 of the ledger is missing"));
    assert!(
        fault_in(&[files[0].clone(), files[1].clone(), files[1].clone()])
            .contains("copy, or the ledger was forked")
    );
    let other = bytes(&ledger(&ID.replace('0', "f"), &render_records(11), 2, 4, Some(&key)));
    let mixed = fault_in(&[files[0].clone(), other[1].clone(), files[2].clone()]);
    assert!(mixed.contains("another ledger"), "{mixed}");
    // The same ledger with a fork: the earlier files differ.
    let forked = bytes(&ledger(ID, &chain(&["a", "b", "c", "d", "e", "f", "g", "h"]), 2, 4, Some(&key)));
    let forked = fault_in(&[files[0].clone(), forked[1].clone()]);
    assert!(forked.contains("does not follow from the end of the file before"), "{forked}");
}

#[test]
fn an_emptied_file_behind_a_sealed_one_was_cut() {
    let files = ledger(&"ab".repeat(16), &render_records(9), 2, 4, None);
    let mut emptied = bytes(&files);
    emptied[2].clear();
    let report = proved(&emptied, &ProofDemands::default());
    let what = report.what.unwrap();
    assert!(!report.ok && what.contains("it is empty") && !what.contains("forked"), "{what}");
}

#[test]
fn a_record_has_no_more_levels_than_others_read() {
    let deep = |levels: usize| {
        let value = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        report(&chain_of(std::iter::once(format!(r#""id":"a","text":"[[\"[[","x":{value}"#)), false))
    };
    assert!(deep(127).ok, "{:?}", deep(127).what);
    assert!(deep(128).what.unwrap().contains("more than 128 levels"));
}

#[test]
fn a_whole_chain_that_is_rewritten_with_correct_hashes_needs_the_key() {
    let (own, other) = (key(), key());
    let demands = ProofDemands { keys: public(&own), ..ProofDemands::default() };
    let fault_with = |key: Option<&Ed25519KeyPair>, every| {
        proved(&bytes(&ledger(ID, &render_records(9), every, 4 * every, key)), &demands).what.unwrap()
    };
    assert!(fault_with(Some(&other), 2).contains("it is signed with key"));
    assert!(fault_with(None, 2).contains("no root in these files is signed"));
    // After the signed part.
    let mut files = ledger(ID, &render_records(9), 2, 100, Some(&own));
    let last = files[0].pop().unwrap();
    let root = files[0].iter_mut().rfind(|line| is_statement(line.as_bytes())).unwrap();
    *root = format!("{}}}\n", root.split_once(",\"key\"").unwrap().0);
    files[0].push(last);
    assert!(proved(&bytes(&files), &demands).what.unwrap().contains("it has no signature"));
    assert!(fault_with(None, 100).contains("no root in these files is signed"));
    // Under the id of the right key.
    let text =
        String::from_utf8(bytes(&ledger(ID, &render_records(9), 2, 100, Some(&other))).remove(0)).unwrap();
    let id = |key: &Ed25519KeyPair| keys::id(key.public_key().as_ref());
    let forged = text.replace(&id(&other), &id(&own)).into_bytes();
    assert!(proved(&[forged], &demands).what.unwrap().contains("signature does not hold"));
}

#[test]
fn with_the_key_only_a_root_that_was_noted_elsewhere_shows_that_all_was_rewritten() {
    let key = key();
    let anchor_of = |files: &[Vec<u8>]| -> RootAnchor {
        let report = proved(files, &ProofDemands { keys: public(&key), ..ProofDemands::default() });
        report.newest_root.unwrap().anchor.parse().unwrap()
    };
    let (first, longer) = (
        ledger(ID, &render_records(6), 2, 100, Some(&key)),
        ledger(ID, &render_records(9), 2, 4, Some(&key)),
    );
    let (first, longer) = (bytes(&first), bytes(&longer));
    let noted = anchor_of(&longer);
    let demands = |anchor: &RootAnchor| ProofDemands {
        keys: public(&key),
        anchors: vec![anchor.clone().into()],
        ..ProofDemands::default()
    };
    assert_eq!(proved(&longer, &demands(&noted)).anchors, 1);
    // It belongs to a closed file, and the file after it was started again.
    let rewritten =
        bytes(&ledger(ID, &chain(&["a", "b", "c", "d", "e", "f", "g", "h", "i"]), 2, 4, Some(&key)));
    let fault = proved(&rewritten, &demands(&noted)).what.unwrap();
    assert!(fault.contains("another root than the noted"), "{fault}");
    let fault = proved(&longer[..1], &demands(&noted)).what.unwrap();
    assert!(fault.contains("file 2, which was not given"), "{fault}");
    let noted = anchor_of(&first);
    let short = bytes(&ledger(ID, &render_records(4), 2, 100, Some(&key)));
    let fault = proved(&short, &demands(&noted)).what.unwrap();
    assert!(fault.contains("its end was cut"), "{fault}");
    let other = RootAnchor { ledger: ID.replace('0', "f"), file: 7, ..noted };
    assert!(proved(&short, &demands(&other)).what.unwrap().contains("another ledger than these files"));
}

#[test]
fn a_key_that_was_changed_leaves_both_parts_provable_with_both_keys() {
    let (old, new) = (key(), key());
    let all = render_records(8);
    let sign = |key: &Ed25519KeyPair, text: &[u8]| key.sign(text).as_ref().to_vec();
    let mut tally = LedgerTally::before_first_statement(0);
    let mut lines = Vec::new();
    for (index, record) in all.iter().enumerate() {
        tally.count_record(record.trim_end().as_bytes(), 0);
        lines.push(record.clone());
        let key = if index < 4 { &old } else { &new };
        let statement =
            tally.next_statement(StatementKind::Root, ID, 1, Some(keys::id(key.public_key().as_ref())));
        let line = statement.encode_line(Some(&|text| sign(key, text))).unwrap();
        tally.count_line(&line, 0).unwrap();
        lines.push(format!("{}\n", String::from_utf8(line).unwrap()));
    }
    let both = public(&old).into_iter().chain(public(&new)).collect();
    let file = [lines.concat().into_bytes()];
    assert!(proved(&file, &ProofDemands { keys: both, ..ProofDemands::default() }).ok);
    let report = proved(&file, &ProofDemands { keys: public(&old), ..ProofDemands::default() });
    assert_eq!(report.first_bad_line, Some(10), "{report}");
}

/// Closed from the beginning, and signed from a later root on.
#[test]
fn a_ledger_that_is_signed_later_is_proved_from_its_beginning() {
    let key = key();
    let files = signed_from(&render_records(8), 2, &key);
    let demands = || ProofDemands { keys: public(&key), ..ProofDemands::default() };
    let report = proved(&files, &demands());
    assert!(report.ok, "{report}");
    assert_eq!((report.roots, report.signed_roots, report.seals), (8, 6, 2));
    assert!(report.not_shown[0].contains("2 roots there have none"), "{:?}", report.not_shown);
    // The part that the first signature covers can't be changed any more.
    let mut changed = files.clone();
    let at = changed[0].windows(7).position(|text| text == b"Running").unwrap();
    changed[0][at] = b'W';
    assert!(!proved(&changed, &demands()).ok);
}

/// A root after each record, and a seal after every third one. The first roots are not signed.
fn signed_from(records: &[String], unsigned: usize, key: &Ed25519KeyPair) -> Vec<Vec<u8>> {
    let sign = |text: &[u8]| key.sign(text).as_ref().to_vec();
    let mut tally = LedgerTally::before_first_statement(0);
    let mut files = vec![Vec::new()];
    for (index, record) in records.iter().enumerate() {
        tally.count_record(record.trim_end().as_bytes(), 0);
        let is_signed = index >= unsigned;
        let kind = if index % 3 == 2 { StatementKind::Seal } else { StatementKind::Root };
        let name = is_signed.then(|| keys::id(key.public_key().as_ref()));
        let statement = tally.next_statement(kind, ID, 1, name);
        let line = statement.encode_line(is_signed.then_some(&sign)).unwrap();
        tally.count_line(&line, 0).unwrap();
        let file = files.last_mut().unwrap();
        file.extend_from_slice(&[record.as_bytes(), &line, b"\n"].concat());
        if kind == StatementKind::Seal {
            let head = statement.head_after(&line).encode_line(None).unwrap();
            tally = LedgerTally::before_first_statement(0);
            tally.count_line(&head, 0).unwrap();
            files.push([head.as_slice(), b"\n"].concat());
        }
    }
    files
}

#[test]
fn lines_that_the_host_took_over_are_told() {
    let (all, key) = (render_records(3), key());
    let mut tally = LedgerTally::before_first_statement(0);
    let mut lines = Vec::new();
    for record in &all {
        tally.count_record(record.trim_end().as_bytes(), 0);
        lines.push(record.clone());
    }
    tally.adopt_existing_lines(None);
    let sign = |text: &[u8]| key.sign(text).as_ref().to_vec();
    let root = tally.next_statement(StatementKind::Root, ID, 1, Some(keys::id(key.public_key().as_ref())));
    lines.push(format!("{}\n", String::from_utf8(root.encode_line(Some(&sign)).unwrap()).unwrap()));
    let report = proved(
        &[lines.concat().into_bytes()],
        &ProofDemands { keys: public(&key), ..ProofDemands::default() },
    );
    assert!(report.ok && report.adopted == 3, "{report}");
    assert!(
        report.not_shown[0].contains("whether 3 lines are as they were written"),
        "{:?}",
        report.not_shown
    );
}

#[test]
fn no_more_records_stand_behind_the_newest_root_than_the_controller_leaves() {
    let key = key();
    let proved_with = |behind: usize, every: Option<u64>| {
        let mut files = ledger(ID, &render_records(4), 2, 100, Some(&key));
        files[0].extend(render_records(4 + behind).split_off(4));
        let demands = ProofDemands { keys: public(&key), signed_every: every, ..ProofDemands::default() };
        proved(&bytes(&files), &demands)
    };
    assert!(proved_with(2024, None).ok);
    let fault = proved_with(2025, None).what.unwrap();
    assert!(
        fault.contains("2025 records stand after the newest root") && fault.contains("2024 at most"),
        "{fault}"
    );
    assert!(proved_with(2025, Some(1001)).ok && !proved_with(1027, Some(2)).ok);
    // As many records as between two signed roots may be unsigned at the end.
    let many = ledger(ID, &render_records(4500), 2200, 5000, Some(&key));
    assert!(proved(&bytes(&many), &ProofDemands { keys: public(&key), ..ProofDemands::default() }).ok);
    let mut more = many;
    more[0].extend(render_records(6700).split_off(4500));
    assert!(!proved(&bytes(&more), &ProofDemands { keys: public(&key), ..ProofDemands::default() }).ok);
}

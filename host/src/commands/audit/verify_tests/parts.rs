//! Parts of a ledger: files that were not given, and numbers that nothing continues.

use super::super::BrokenLine;
use super::*;

#[test]
fn files_that_were_not_given_are_told_whichever_end_lacks_them() {
    let records = chain_signed(&["a", "b", "c", "d", "e", "f", "g"], false);
    let files = bytes(&ledger("0f", &records, 9, 2, None));
    assert_eq!(files.len(), 4);
    let elsewhere = |given: &[Vec<u8>]| proved(given, &ProofDemands::default()).files_not_given();
    assert_eq!(elsewhere(&files), None);
    assert_eq!(elsewhere(&files[3..]).unwrap(), "files 1 to 3 of the ledger were not given");
    assert_eq!(elsewhere(&files[1..]).unwrap(), "file 1 of the ledger was not given");
    assert_eq!(elsewhere(&files[..2]).unwrap(), "file 3 of the ledger, and those after it, were not given");
    assert_eq!(
        elsewhere(&files[1..2]).unwrap(),
        "file 1 of the ledger was not given; file 3 of the ledger, and those after it, were not given"
    );
    assert_eq!(elsewhere(&[records.concat().into_bytes()]), None, "nothing closes this ledger");
    let forged = AuditReport { ok: true, first_file: u64::MAX, files: 1, seals: 1, ..AuditReport::default() };
    assert!(forged.files_not_given().is_some(), "a number that somebody made up");
}

#[test]
fn a_file_that_is_named_twice_is_read_once() {
    let records = chain_signed(&["a", "b", "c"], false);
    let (folder, mut paths) = TrailFolder::of(&bytes(&ledger("0f", &records, 9, 2, None)));
    let once = verify_files(&paths, &ProofDemands::default(), &mut |_| {}).unwrap();
    paths.push(folder.0.path().join("./trail.jsonl"));
    let twice = verify_files(&paths, &ProofDemands::default(), &mut |_| {}).unwrap();
    assert!(twice.ok, "{:?}", twice.what);
    assert_eq!((twice.files, twice.lines), (once.files, once.lines));
}

#[test]
fn the_last_number_that_there_is_ends_a_chain_and_no_proof() {
    let part = |records: u64, n: u64| {
        let (start, at) = (trail::START, "2026-11-26T00:00:00.000Z");
        let head = format!(
            r#"{{"kubewitness.dev/ledger":"head","ledger":"0f","file":9,"previous":"{start}","records":{records},"at":"{at}"}}"#
        );
        let body = format!(r#"{{"n":{n},"prev":"{start}","id":"a","phase":"Running""#);
        let hash = hex::encode(digest(&SHA256, format!("{start}{body}}}").as_bytes()));
        proved(&[format!("{head}\n{body}{HASH_FIELD}{hash}\"}}\n").into_bytes()], &ProofDemands::default())
    };
    assert!(part(3, 4).ok);
    assert_eq!(part(3, u64::MAX).what, Some(BrokenLine::Number(u64::MAX).to_string()));
    assert_eq!(part(u64::MAX, 4).what, Some(BrokenLine::Miscounted.to_string()));
}

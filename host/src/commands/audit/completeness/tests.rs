//! Tests of comparisons between small trails and journals.

use std::sync::Arc;

use kubewitness_core::ports::{self, SourceStart};
use kubewitness_core::{StateId, Version};
use kubewitness_journal::PluginAccount;

use super::*;

fn trail() -> UnmatchedTrail {
    let mut trail = UnmatchedTrail::default();
    for seq in [3, 4, 6] {
        trail.add(format!(r#"{{"seq":{seq},"id":"state {seq}","source":"jobs"}}"#).as_bytes());
    }
    trail.add(b"not of a trail");
    trail
}

fn said(id: &str) -> RecordComparison {
    RecordComparison { id: half_hash(id), shown: None, document: None }
}

fn at(source: &str, seq: Seq) -> State {
    State { source: source.into(), seq, ..state() }
}

/// Compares with a journal that has these states of `jobs`, and as many of `pods`.
fn told_of(
    mut trail: UnmatchedTrail,
    journaled: &[Seq],
    is_retained: bool,
    writer: &LedgerWriter,
) -> AuditReport {
    let mut report = AuditReport { ok: true, lines: 3, ..AuditReport::default() };
    for seq in journaled {
        trail.compare_state(&at("jobs", *seq), &said(&format!("state {seq}")), writer);
        trail.compare_state(&at("pods", *seq), &said("of another source"), writer);
    }
    trail.report_result(&mut report, is_retained, writer);
    report
}

fn report_of(trail: UnmatchedTrail, journaled: &[Seq], is_retained: bool) -> AuditReport {
    told_of(trail, journaled, is_retained, &LedgerWriter::default())
}

/// A plugin that subscribes to these sources from the beginning.
fn far(sources: &[&str], cursor: Seq, delivered: u64) -> LedgerWriter {
    let start = |source: &&str| SourceStart { source: (*source).into(), after: 0, until: None };
    let sources = sources.iter().map(start).collect();
    let progress = ports::PluginProgress { cursor, delivered, sources, ..ports::PluginProgress::default() };
    LedgerWriter {
        account: Some(PluginAccount { progress, ..PluginAccount::default() }),
        ..LedgerWriter::default()
    }
}

#[test]
fn without_the_plugins_progress_only_what_is_between_the_records_is_compared_and_the_rest_is_told() {
    let report = report_of(trail(), &[1, 2, 3, 4, 6, 7], false);
    assert_eq!((report.ok, report.compared), (true, Some(3)));
    let [open] = report.not_shown.as_slice() else { panic!("{report} {:?}", report.not_shown) };
    assert!(open.contains("after the last") && open.contains("all of a source"), "{open}");
}

#[test]
fn each_state_that_the_plugin_has_finished_is_there_and_what_it_never_got_is_told() {
    let mut writer = far(&["jobs"], 6, 3);
    let all = [3, 4, 6, 7, 9];
    let report = told_of(trail(), &all, false, &writer);
    assert_eq!((report.ok, report.compared), (true, Some(3)), "{report}");
    assert_eq!(report.not_shown, ["2 states that wait: the plugin has not finished them yet"]);
    // The end of the trail was cut.
    writer.account.as_mut().unwrap().progress.above = vec![(9, 9)];
    let cut = told_of(trail(), &all, false, &writer).what.unwrap();
    assert!(
        cut.contains("1 states of the journal are not in the trail") && cut.contains("positions 9:"),
        "{cut}"
    );
    writer.account.as_mut().unwrap().letters = [9].into();
    let parked = told_of(trail(), &all, false, &writer);
    assert!(
        parked.ok && parked.not_shown.iter().any(|remark| remark.starts_with("1 dead letters")),
        "{parked}"
    );
    // The beginning is missing, which may be in other files.
    let cut = told_of(trail(), &[2, 3, 4, 6], false, &writer).what.unwrap();
    assert!(cut.contains("positions 2:") && cut.contains("--from-middle"), "{cut}");
    let middle = UnmatchedTrail { from_middle: Some(3), ..trail() };
    assert!(told_of(middle, &[2, 3, 4, 6], false, &writer).ok);
}

#[test]
fn a_source_that_the_trail_lacks_is_missing_if_the_plugin_subscribes_to_it() {
    let cut = told_of(trail(), &[3, 4, 6], false, &far(&["jobs", "pods"], 6, 3)).what.unwrap();
    assert!(cut.contains("3 states of the journal are not in the trail"), "{cut}");
    let some = LedgerWriter { selective: ["pods".to_owned()].into(), ..far(&["jobs", "pods"], 6, 3) };
    let report = told_of(trail(), &[3, 4, 6], false, &some);
    assert!(report.ok && report.not_shown[0].contains("every state of `pods`"), "{report}");
    // The filter also let these states through, so each one left a record.
    let few = told_of(
        trail(),
        &[3, 4, 6],
        false,
        &LedgerWriter { selective: some.selective, ..far(&["jobs", "pods"], 6, 4) },
    );
    assert!(few.what.unwrap().contains("was handed 4 states, and the trail has 3 records"));
    // Sources to which it never subscribed are ignored.
    assert!(told_of(trail(), &[3, 4, 6], false, &far(&["jobs"], 6, 3)).ok);
}

#[test]
fn missing_added_and_strange_states_are_named() {
    let missing = report_of(trail(), &[3, 4, 5, 6], false).what.unwrap();
    assert!(
        missing.contains("1 states of the journal are not in the trail") && missing.contains("positions 5:"),
        "{missing}"
    );
    let added = report_of(trail(), &[3, 6], false).what.unwrap();
    assert!(added.contains("1 records are of states that the journal never had"), "{added}");
    let retained = report_of(trail(), &[4, 6], true);
    assert!(retained.ok && retained.not_shown[1].contains("retention"), "{retained}");
    let mut strange = trail();
    strange.compare_state(&at("jobs", 4), &said("another"), &LedgerWriter::default());
    let strange = report_of(strange, &[3, 6], false).what.unwrap();
    assert!(strange.contains("another installation") && strange.contains("positions 4"), "{strange}");
}

/// The plugin's record of a state, with this digest of its document.
fn record(state: &State, digest: &str) -> String {
    let State { id, seq, source, object, .. } = state;
    let ObjectRef { group, kind, namespace, name, uid, .. } = &**object;
    serde_json::json!({
        "seq": seq, "id": id, "source": source, "change": state.change, "api_group": group, "kind": kind,
        "namespace": namespace, "name": name, "uid": uid, "resource_version": state.resource_version.as_str(),
        "phase": state.status.phase, "observed_at": calendar::format_rfc3339(state.observed_ms),
        "document_sha256": digest,
    })
    .to_string()
}

/// The report about a trail whose journal has this many gaps between its records.
fn gaps(count: Seq) -> AuditReport {
    let mut trail = UnmatchedTrail::default();
    for seq in [2, count + 3] {
        trail.add(format!(r#"{{"seq":{seq},"id":"state {seq}","source":"jobs"}}"#).as_bytes());
    }
    let mut report = AuditReport { ok: true, lines: 2, ..AuditReport::default() };
    for seq in 1..count + 3 {
        let (id, change) = (StateId::parse(&format!("jobs/0///x/gap:7-{seq}")), Change::Gap);
        trail.take_gap(&State { id, change, ..at("jobs", seq) }, &mut report);
        trail.take_gap(&at("jobs", seq), &mut report);
    }
    for seq in [2, count + 3] {
        trail.compare_state(&at("jobs", seq), &said(&format!("state {seq}")), &LedgerWriter::default());
    }
    trail.report_result(&mut report, false, &LedgerWriter::default());
    report
}

#[test]
fn gaps_of_the_journal_are_counted_and_all_are_named_up_to_a_bound() {
    let report = gaps(8);
    assert!(report.ok, "{report}");
    let remark = report.not_shown.last().unwrap();
    assert!(remark.contains("9 gaps") && remark.contains("x/gap:7-2 at position 2"), "{remark}");
    assert!(remark.ends_with(", and 4 more (`-o json` names up to 1000)"), "{remark}");
    assert_eq!(report.gaps.len(), 9);
    assert_eq!(gaps(3000).gaps.len(), GAPS);
    assert!(gaps(2).not_shown.last().unwrap().ends_with("at position 4"));
}

fn state() -> State {
    let object = ObjectRef { kind: "Job".into(), namespace: "vision".into(), ..ObjectRef::default() };
    State {
        id: StateId::parse("jobs/0/x"),
        seq: 3,
        source: "jobs".into(),
        epoch: 0,
        change: Change::Present,
        object: object.into(),
        owner: None,
        resource_version: Version::new("7"),
        status: Arc::default(),
        previous: None,
        observed_ms: 5000,
        late: false,
        quotes_none_under: None,
    }
}

#[test]
fn a_record_that_says_something_else_than_the_journal_is_named() {
    let state = state();
    let (own, digest) = (
        record(&state, &hex::encode(sha256(&[b"{}"]))),
        LedgerWriter { has_digests: true, ..LedgerWriter::default() },
    );
    let report_of = |text: &str, writer: &LedgerWriter| {
        let mut trail = UnmatchedTrail::default();
        trail.add(text.as_bytes());
        let document = writer.has_digests.then_some(b"{}".as_slice());
        trail.compare_state(&state, &RecordComparison::of(&state, document), writer);
        let mut report = AuditReport { ok: true, lines: 1, ..AuditReport::default() };
        trail.report_result(&mut report, false, writer);
        report
    };
    assert_eq!((report_of(&own, &digest).ok, report_of(&own, &digest).compared), (true, Some(1)));
    let moved = report_of(&own.replace("vision", "speech"), &digest).what.unwrap();
    assert!(moved.contains("something else than the journal"), "{moved}");
    let other = record(&state, &"0f".repeat(32));
    let what = report_of(&other, &digest).what.unwrap();
    assert!(what.contains("another digest"), "{what}");
    let redacted = report_of(&other, &LedgerWriter::default());
    assert!(redacted.ok && redacted.not_shown[1].contains("digests of documents"), "{redacted}");
}

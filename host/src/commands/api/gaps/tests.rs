//! Tests of the output about gaps and poison messages.

use clap::Parser;
use kubewitness_core::ObjectRef;
use kubewitness_core::views::{DiscrepancyView, JournalView, PoisonView, SourceCounts};

use super::poison::poison_text;
use super::*;
use crate::cli::{Cli, Command, ZoneArg};

fn parsed(arguments: &[&str]) -> Result<(GapParameters, String)> {
    let line = ["kubewitness", "gaps"].iter().chain(arguments);
    let Command::Gaps(args) = Cli::parse_from(line).command else { unreachable!("the command is `gaps`") };
    gap_parameters(&args)
}

#[test]
fn gaps_are_asked_for_by_object_uid_kind_namespace_and_source() {
    let (parameters, about) = parsed(&["job/train", "-n", "a", "--source", "jobs"]).unwrap();
    let pairs: Vec<_> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(pairs, [("kind", "job"), ("name", "train"), ("namespace", "a"), ("source", "jobs")]);
    assert_eq!(about, "of job/train in namespace a of source jobs");
    let uid = "0f31c8e2-8b1f-4a52-9a55-0d8f7f6f2b10";
    assert_eq!(parsed(&[uid]).unwrap().0, [("uid", uid.to_owned())]);
    assert_eq!(parsed(&["pods"]).unwrap().0, [("kind", "pods".to_owned())]);
    assert_eq!(parsed(&[]).unwrap().0, []);
    for wrong in ["job/", "/x", ""] {
        assert!(parsed(&[wrong]).unwrap_err().to_string().contains("KIND/NAME"), "{wrong}");
    }
}

fn gap(object: Option<ObjectRef>, after: &str, before: &str, message: &str) -> Gap {
    Gap {
        source: "jobs".into(),
        object,
        epoch: 1,
        after: after.into(),
        before: before.into(),
        reason: "Compacted".into(),
        message: message.into(),
        recorded_ms: 1_795_182_311_250,
    }
}

#[test]
fn a_gap_has_scope_bounds_and_reason_in_its_row_and_its_message_once() {
    let train = ObjectRef {
        kind: "Job".into(),
        namespace: "a".into(),
        name: "train".into(),
        uid: "u1".into(),
        ..ObjectRef::default()
    };
    let gaps =
        [gap(Some(train), "7", "12", "compaction\u{1b} came first"), gap(None, "3", "", "older words")];
    let text = gaps_table(&gaps, false);
    let lines: Vec<_> = text.lines().collect();
    let at = ZoneArg::local_zone().show_time(1_795_182_311_250);
    assert_eq!(lines[1], format!("{at}   jobs     Job/train in a     7       12       Compacted"));
    assert_eq!(lines[2], format!("{at}   jobs     the whole source   3       open     Compacted"));
    assert_eq!(lines[3], "2 gaps: versions strictly between AFTER and BEFORE were not witnessed");
    assert_eq!(lines[4..], ["Compacted: compaction· came first", "Compacted, of a source: older words"]);
    let wide = gaps_table(&gaps, true);
    assert!(wide.contains("EPOCH") && wide.contains("u1") && wide.contains("older words"), "{wide}");
}

#[test]
fn a_question_concerns_the_sources_of_its_kind() {
    let source = |name: &str, api_version: &str, kind: &str| SourceView {
        name: name.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        ..SourceView::default()
    };
    let sources = [source("jobs", "batch/v1", "Job"), source("pods", "v1", "Pod")];
    let asked = |parameters: &[(&'static str, &str)]| {
        let parameters = parameters.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let of = sources.iter().filter(|source| is_asked(&parameters, source));
        of.map(|source| source.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(asked(&[("limit", "5")]), ["jobs", "pods"]);
    assert_eq!(asked(&[("kind", "jobs.batch"), ("name", "x")]), ["jobs"]);
    assert_eq!(asked(&[("source", "pods"), ("uid", "x")]), ["pods"]);
}

#[test]
fn nothing_found_is_said_with_since_when_and_with_what_may_still_come() {
    let journal =
        JournalView { oldest_at: Some("2026-11-20T11:00:00.000Z".into()), ..JournalView::default() };
    let status = StatusView { journal, ..StatusView::default() };
    let seen = SourceView { name: "jobs".into(), synced: true, ..SourceView::default() };
    let text = no_gaps_text("of job/x", false, true, &status, &[&seen]);
    assert!(text.starts_with("no gap of job/x: every version since the first list was witnessed"), "{text}");
    assert!(text.contains(&ZoneArg::local_zone().show_text("2026-11-20T11:00:00.000Z")), "{text}");
    let held_up = SourceView { condition: Some("403: forbidden".into()), ..seen.clone() };
    let doubted = SourceView { doubt: Some("an event was lost".into()), ..seen.clone() };
    let unseen = SourceView { synced: false, ..seen.clone() };
    let refused = StatusView { problems: vec!["two hosts".into()], ..status.clone() };
    for text in
        [no_gaps_text("", false, true, &refused, &[&seen]), no_gaps_text("", false, true, &status, &[])]
    {
        assert!(text.starts_with("no gap so far, but not all is watched"), "{text}");
    }
    let restricted = StatusView { restricted: true, ..status.clone() };
    let text = no_gaps_text("of job/x", false, true, &restricted, &[&seen]);
    assert!(text.starts_with("no gap of job/x that you may see; gaps of whole sources are for"), "{text}");
    let hidden = SourceView { gaps: 5, poison: 2, ..seen.clone() };
    let text = no_gaps_text("", false, true, &status, &[&hidden]);
    assert!(
        text.starts_with("no gap that you may see: 5 are recorded, of other objects or taken by retention ("),
        "{text}"
    );
    assert!(
        no_gaps_text("of job/x", true, true, &status, &[&hidden]).contains("every version"),
        "others have them"
    );
    let text = no_gaps_text("of job/x", true, false, &status, &[&hidden]);
    assert!(text.contains("no gap of job/x that you may see") && !text.contains("every version"), "{text}");
    let text = no_gaps_text("", false, true, &status, &[&doubted]);
    assert!(text.starts_with("no gap is known, but events of jobs get lost ("), "{text}");
    for blind in [held_up, unseen, SourceView { walking: 1, ..seen }] {
        let text = no_gaps_text("", false, true, &status, &[&blind]);
        assert!(
            text.starts_with("no gap so far, but not all is seen now") && text.contains("jobs"),
            "{text}"
        );
    }
    let source = SourceView {
        name: "jobs".into(),
        poison: 2,
        counts: SourceCounts { walk_back_requests: 3, walked_back: 1, ..Default::default() },
        differed: 3,
        discrepancies: vec![
            DiscrepancyView {
                object: ObjectRef { kind: "Job".into(), name: "x".into(), ..ObjectRef::default() },
                witnessed: "7".into(),
                listed: "9".into(),
                found_ms: 1_795_182_311_250,
            },
            DiscrepancyView { witnessed: "7".into(), ..DiscrepancyView::default() },
        ],
        ..SourceView::default()
    };
    let lines = other_blind_spots(&[&source]);
    let found = format!(
        "found at {}: Job/x was last witnessed at version 7, and listed at 9: it is read back, or lies in a gap",
        ZoneArg::local_zone().show_time(1_795_182_311_250)
    );
    for part in [
        found.as_str(),
        "its first list is not complete",
        "2 states were no object of its kind",
        "1 missed version was read back, in 3 requests",
        "and no longer listed: it is read back, or lies in a gap",
        "1 more object differed",
    ] {
        assert!(lines.contains(part), "{part} is not in\n{lines}");
    }
    assert_eq!(other_blind_spots(&[&SourceView { synced: true, ..SourceView::default() }]), "");
}

#[test]
fn poison_is_shown_so_that_no_terminal_obeys_it() {
    let view = PoisonView {
        number: 7,
        source: "jobs".into(),
        error: "bad\nline".into(),
        excerpt: "\u{1b}[2J".into(),
        bytes: 4,
        ..PoisonView::default()
    };
    let text = poison_text(&[view], true, None, 0);
    assert!(text.contains("bad·line") && text.contains("·[2J") && !text.contains('\u{1b}'), "{text}");
    assert_eq!(
        poison_text(&[], false, Some("pods"), 0),
        "no poison of source pods: every frame was an object of its kind\n"
    );
    assert_eq!(poison_text(&[], false, None, 2), "no poison that you may see: 2 are recorded\n");
}

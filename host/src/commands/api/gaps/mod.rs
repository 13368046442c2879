//! `kubewitness gaps` and `kubewitness poison`: the versions that were not witnessed, with their bounds, and the
//! frames that did not decode.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};

use anyhow::{Result, bail};
use kubewitness_core::views::{
    DiscrepancyView, ObjectView, PoisonView, SourceView, StatusView, TimelineView,
};
use kubewitness_core::{Gap, ObjectRef, kinds};

use super::client::Client;
use super::live::poll;
use super::object_name::{ObjectName, is_uid, names};
use super::status::{blind, plural, source_remarks};
use crate::cli::{GapsArgs, PoisonArgs, Zone};
use crate::commands::print::{self, Table, clean, remarks};
use crate::commands::{End, Ended};

type Parameters = Vec<(&'static str, String)>;

/// Differences of audits that are shown for each source; the figures count them all.
const DIFFERENCES: usize = 10;

/// Objects that are looked up by their labels.
const MOST: usize = 10_000;
/// Gaps that are looked through for those that fit: ten answers of the API.
const MOST_GAPS: usize = 100_000;

// ---- gaps --------------------------------------------------------------------------------

pub async fn gaps(args: GapsArgs) -> Ended {
    let client = Client::reach(&args.query.reach).await?;
    poll(args.watch, async || gaps_shown(&client, &args).await).await
}

async fn gaps_shown(client: &Client, args: &GapsArgs) -> Result<String> {
    let (parameters, about) = asked(args)?;
    let (gaps, cut) = found(client, &parameters, args).await?;
    if gaps.is_empty() && is_one_object(&parameters) {
        was_witnessed(client, &parameters, &about).await?;
    }
    let status: StatusView = client.get("api/v1/status", &Parameters::new()).await?;
    let sources: Vec<_> = status.sources.iter().filter(|source| is_asked(&parameters, source)).collect();
    let narrowed = args.selector.is_some() || parameters.iter().any(|(name, _)| *name != "source");
    let (whole, sees_all) = if narrowed { whole(client, &sources).await? } else { (Vec::new(), true) };
    let Some(output) = args.query.output.shape() else {
        return Ok(names(gaps.iter().filter_map(|gap| gap.object.as_ref())));
    };
    print::shown(output, &gaps, |gaps, wide| {
        let mut text = match (gaps.is_empty(), whole.is_empty()) {
            (true, true) => none(&about, narrowed, sees_all, &status, &sources),
            (true, false) => format!("no gap {}, for itself{}\n", clean(&about), that_you_may_see(sees_all)),
            (false, _) => table(gaps, wide),
        };
        if cut {
            text.push_str(&only_newest(args.limit));
        }
        if !whole.is_empty() {
            text.push_str(&format!("\nof the whole source, which may concern it:\n{}", table(&whole, wide)));
        }
        if narrowed { text } else { text + &beside(&sources) }
    })
}

/// Whether a source has anything to do with the question.
fn is_asked(parameters: &Parameters, source: &SourceView) -> bool {
    let group = source.api_version.split_once('/').map_or("", |(group, _)| group);
    parameters.iter().all(|(name, value)| match *name {
        "source" => *value == source.name,
        "kind" => kinds::is_kind(group, &source.kind, value),
        _ => true,
    })
}

/// The gaps of whole sources, each of which may lie in the story of each object; and whether all gaps are seen that were
/// recorded.
async fn whole(client: &Client, sources: &[&SourceView]) -> Result<(Vec<Gap>, bool)> {
    let none: [(&str, &str); 0] = [];
    let found = client.list::<Gap>("api/v1/gaps", &none, MOST_GAPS).await?;
    let (mut all, is_cut) = (found.rows, found.more);
    all.retain(|gap| sources.iter().any(|source| source.name == gap.source));
    let recorded: u64 = sources.iter().map(|source| source.gaps).sum();
    let sees_all = is_cut || all.len() as u64 >= recorded;
    all.retain(|gap| gap.object.is_none());
    Ok((all, sees_all))
}

fn that_you_may_see(sees_all: bool) -> &'static str {
    if sees_all { "" } else { ", as far as you may see" }
}

/// What the API is asked for, and the same in words.
fn asked(args: &GapsArgs) -> Result<(Parameters, String)> {
    let mut parameters = Parameters::new();
    let mut words = Vec::new();
    match &args.object[..] {
        [] => {}
        [kind] if !kind.is_empty() && !kind.contains('/') && !is_uid(kind) => {
            parameters.push(("kind", kind.clone()));
            words.push(format!("of any {kind}"));
        }
        object => match ObjectName::only(object)? {
            ObjectName::Uid(uid) => {
                words.push(format!("of {uid}"));
                parameters.push(("uid", uid));
            }
            ObjectName::Object { kind, name } => {
                words.push(format!("of {kind}/{name}"));
                parameters.extend([("kind", kind), ("name", name)]);
            }
        },
    }
    if let Some(namespace) = &args.namespace {
        parameters.push(("namespace", namespace.clone()));
        words.push(format!("in namespace {namespace}"));
    }
    if let Some(source) = &args.source {
        parameters.push(("source", source.clone()));
        words.push(format!("of source {source}"));
    }
    if let Some(selector) = &args.selector {
        words.push(format!("with the labels {selector}"));
    }
    Ok((parameters, words.join(" ")))
}

fn only_newest(limit: usize) -> String {
    format!("only the newest {limit} are shown: --limit shows more\n")
}

/// The newest gaps, and whether there may be more. Labels are of objects, so gaps of those are chosen by uid.
async fn found(client: &Client, parameters: &Parameters, args: &GapsArgs) -> Result<(Vec<Gap>, bool)> {
    let Some(selector) = &args.selector else {
        let found = client.list::<Gap>("api/v1/gaps", parameters, args.limit).await?;
        return Ok((found.rows, found.more));
    };
    let uids = labelled(client, selector, parameters).await?;
    let found = client.list::<Gap>("api/v1/gaps", parameters, MOST_GAPS).await?;
    let (mut gaps, cut) = (found.rows, found.more);
    gaps.retain(|gap| gap.object.as_ref().is_some_and(|object| uids.contains(&object.uid)));
    let more = gaps.len() > args.limit;
    gaps.truncate(args.limit);
    Ok((gaps, cut || more))
}

/// The uids of the objects with these labels, also of those that are gone, that fit the parameters.
pub(super) async fn labelled(
    client: &Client,
    selector: &str,
    parameters: &[(&'static str, String)],
) -> Result<BTreeSet<String>> {
    let of_object = |name: &'static str| if name == "uid" { "search" } else { name };
    let mut asked: Parameters =
        parameters.iter().map(|(name, value)| (of_object(name), value.clone())).collect();
    asked.extend([("labelSelector", selector.to_owned()), ("gone", "true".to_owned())]);
    let objects = client.list::<ObjectView>("api/v1/objects", &asked, MOST).await?;
    if objects.more {
        eprintln!(
            "kubewitness: more than {MOST} objects have these labels, and what is of others is not shown: name fewer labels"
        );
    }
    Ok(objects.rows.into_iter().map(|view| view.object.uid).collect())
}

fn is_one_object(parameters: &Parameters) -> bool {
    parameters.iter().any(|(name, _)| matches!(*name, "uid" | "name"))
}

/// That an object has no gap can only be said of one that was seen.
async fn was_witnessed(client: &Client, parameters: &Parameters, about: &str) -> Result<()> {
    let known = |name: &str| matches!(name, "uid" | "kind" | "namespace" | "name");
    let mut asked: Parameters = parameters.iter().filter(|(name, _)| known(name)).cloned().collect();
    asked.push(("limit", "1".into()));
    let story: TimelineView = client.get("api/v1/timeline", &asked).await?;
    if story.states.is_empty() {
        bail!("nothing was witnessed {about}: `kubewitness get all` lists what is there now");
    }
    Ok(())
}

/// "Every version" is said only while every source that was asked about sees what happens.
fn none(
    about: &str,
    is_narrowed: bool,
    sees_all: bool,
    status: &StatusView,
    sources: &[&SourceView],
) -> String {
    let about = if about.is_empty() { String::new() } else { format!(" {}", clean(about)) };
    let since = match &status.journal.oldest_at {
        Some(at) => format!("the journal begins at {}", clean(&Zone::here().shown(at))),
        None => "the journal has no state yet".into(),
    };
    if status.restricted {
        // Nor do they see what holds a source up.
        return format!(
            "no gap{about} that you may see; gaps of whole sources are for people who may list their kind in the whole cluster\n"
        );
    }
    if sources.is_empty() || !status.problems.is_empty() {
        return format!(
            "no gap{about} so far, but not all is watched: `kubewitness status` tells why ({since})\n"
        );
    }
    let named = |of: &dyn Fn(&SourceView) -> bool| {
        let of = sources.iter().filter(|source| of(source));
        of.map(|source| clean(&source.name).to_string()).collect::<Vec<_>>().join(", ")
    };
    // The list is of what they may see, and the figures are of all.
    let recorded: u64 = sources.iter().map(|source| source.gaps).sum();
    if recorded > 0 && !is_narrowed {
        return format!(
            "no gap{about} that you may see: {recorded} {} recorded, of other objects or taken by retention ({since})\n",
            plural(recorded, "is", "are")
        );
    }
    if !sees_all {
        return format!(
            "no gap{about} that you may see. Other gaps are recorded: of other objects, or of whole sources, which only \
             people see who may list the kind in the whole cluster, or retention removed them ({since})\n"
        );
    }
    let blind = named(&|source| blind(source).is_some());
    if !blind.is_empty() {
        return format!(
            "no gap{about} so far, but not all is seen now: `kubewitness status` tells what holds up {blind} ({since})\n"
        );
    }
    let doubted = named(&|source| source.doubt.is_some());
    if !doubted.is_empty() {
        return format!("no gap{about} is known, but events of {doubted} get lost ({since})\n");
    }
    format!(
        "no gap{about}: every version since the first list was witnessed, as far as can be told ({since})\n"
    )
}

fn table(gaps: &[Gap], wide: bool) -> String {
    let mut header = vec!["RECORDED", "SOURCE", "SCOPE", "AFTER", "BEFORE", "REASON"];
    if wide {
        header.extend(["EPOCH", "UID", "MESSAGE"]);
    }
    // The reasons stand below the table, too.
    let mut table = Table::new(&header).spare(&["REASON", "RECORDED", "SOURCE"]).whole(wide);
    for gap in gaps {
        let mut row = vec![
            Zone::here().show(gap.recorded_ms),
            gap.source.clone(),
            scope(gap),
            bound(&gap.after),
            bound(&gap.before),
            gap.reason.clone(),
        ];
        if wide {
            row.push(gap.epoch.to_string());
            row.push(gap.object.as_ref().map(|object| object.uid.clone()).unwrap_or_default());
            row.push(gap.message.clone());
        }
        table.row(row);
    }
    let count = gaps.len() as u64;
    format!(
        "{}{count} {}: versions strictly between AFTER and BEFORE were not witnessed\n{}",
        table.render(),
        plural(count, "gap", "gaps"),
        if wide { String::new() } else { reasons(gaps) }
    )
}

/// Each reason once, in the words of the newest gap that has it: a column would be too wide. What
/// it means for a whole source is something else than for an object.
fn reasons(gaps: &[Gap]) -> String {
    let mut words: BTreeMap<(&str, bool), &str> = BTreeMap::new();
    for gap in gaps {
        words.entry((&gap.reason, gap.object.is_none())).or_insert(&gap.message);
    }
    let told = words.into_iter().filter(|(_, message)| !message.is_empty());
    remarks(told.map(|((reason, whole), message)| {
        (if whole { format!("{reason}, of a source") } else { reason.to_owned() }, message)
    }))
}

fn scope(gap: &Gap) -> String {
    gap.object.as_ref().map_or_else(|| "the whole source".into(), of)
}

fn of(object: &ObjectRef) -> String {
    match object.namespace.as_str() {
        "" => format!("{}/{}", object.kind, object.name),
        namespace => format!("{}/{} in {namespace}", object.kind, object.name),
    }
}

/// An empty bound is not known: before the first list, or until now.
fn bound(version: &str) -> String {
    if version.is_empty() { "open".into() } else { version.into() }
}

/// What else a source can't or did not see as it should have.
fn beside(sources: &[&SourceView]) -> String {
    let mut told = Vec::new();
    for source in sources {
        let counts = &source.counts;
        let name = source.name.as_str();
        if !source.synced && source.condition.is_none() {
            told.push((name, "its first list is not complete: its gaps are not known yet".to_owned()));
        }
        told.extend(source_remarks(source));
        if source.poison > 0 {
            let states = plural(source.poison, "state was", "states were");
            let text =
                format!("{} {states} no object of its kind: `kubewitness poison` lists them", source.poison);
            told.push((name, text));
        }
        if counts.walk_back_requests > 0 {
            let versions = plural(counts.walked_back, "version was", "versions were");
            let requests = counts.walk_back_requests;
            let what = match counts.walked_back {
                0 => "missed versions were looked for".to_string(),
                count => format!("{count} missed {versions} read back"),
            };
            told.push((name, format!("{what}, in {requests} requests")));
        }
        told.extend(source.discrepancies.iter().take(DIFFERENCES).map(|found| (name, differed(found))));
        let more = source.differed.saturating_sub(source.discrepancies.len().min(DIFFERENCES) as u64);
        if more > 0 {
            let objects = plural(more, "object", "objects");
            told.push((name, format!("{more} more {objects} differed from what was witnessed")));
        }
    }
    remarks(told)
}

/// What was found of one object; `-o json` of the status has them all.
fn differed(found: &DiscrepancyView) -> String {
    let DiscrepancyView { object, witnessed, listed, found_ms } = found;
    let found = Zone::here().show(*found_ms);
    let what = match (witnessed.as_str(), listed.as_str()) {
        ("", "") => "was not known, and its deletion came".to_string(),
        ("", listed) => format!("was not known, and listed at version {listed}"),
        (witnessed, "") => format!("was last witnessed at version {witnessed}, and no longer listed"),
        (witnessed, listed) => format!("was last witnessed at version {witnessed}, and listed at {listed}"),
    };
    format!("found at {found}: {} {what}: it is read back, or lies in a gap", of(object))
}

// ---- poison ------------------------------------------------------------------------------

pub async fn poison(args: PoisonArgs) -> Ended {
    let client = Client::reach(&args.query.reach).await?;
    if let Some(number) = args.number {
        raw(&client.bytes(&format!("api/v1/poison/{number}/raw")).await?)?;
        return Ok(End::Fine);
    }
    let parameters: Parameters = args.source.clone().map(|source| ("source", source)).into_iter().collect();
    let found = client.list::<PoisonView>("api/v1/poison", &parameters, args.limit).await?;
    let poison = found.rows;
    let recorded =
        if poison.is_empty() { recorded_poison(&client, args.source.as_deref()).await? } else { 0 };
    print::wide(args.query.output, &poison, |poison, wide| {
        let text = poison_text(poison, wide, args.source.as_deref(), recorded);
        if found.more { text + &only_newest(args.limit) } else { text }
    })?;
    Ok(End::Fine)
}

/// As the figures say; the list is of what they may see.
async fn recorded_poison(client: &Client, source: Option<&str>) -> Result<u64> {
    let status: StatusView = client.get("api/v1/status", &Parameters::new()).await?;
    let asked = status.sources.iter().filter(|view| source.is_none_or(|name| name == view.name));
    Ok(asked.map(|view| view.poison).sum())
}

fn poison_text(poison: &[PoisonView], wide: bool, source: Option<&str>, recorded: u64) -> String {
    if poison.is_empty() {
        let of = source.map(|name| format!(" of source {}", clean(name))).unwrap_or_default();
        if recorded > 0 {
            let are = plural(recorded, "is", "are");
            return format!("no poison{of} that you may see: {recorded} {are} recorded\n");
        }
        return format!("no poison{of}: every frame was an object of its kind\n");
    }
    let mut header = vec!["NUMBER", "OBSERVED", "SOURCE", "BYTES", "ERROR"];
    if wide {
        header.extend(["EPOCH", "BEGINS"]);
    }
    let mut table = Table::new(&header).spare(&["BYTES", "SOURCE", "OBSERVED"]);
    for view in poison {
        let mut row = vec![
            view.number.to_string(),
            Zone::here().show(view.observed_ms),
            view.source.clone(),
            view.bytes.to_string(),
            view.error.clone(),
        ];
        if wide {
            row.extend([view.epoch.to_string(), view.excerpt.clone()]);
        }
        table.row(row);
    }
    table.render() + "`kubewitness poison NUMBER` prints one as it came\n"
}

/// As they came into a file or a pipe; a terminal gets what it can't obey.
fn raw(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = match out.is_terminal() {
        true => {
            drop(out);
            let text = String::from_utf8_lossy(bytes);
            return print::text(&format!("{}\n", clean(&text)));
        }
        false => out.write_all(bytes).and_then(|()| out.flush()),
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kubewitness_core::views::{JournalView, SourceCounts};

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(arguments: &[&str]) -> Result<(Parameters, String)> {
        let line = ["kubewitness", "gaps"].iter().chain(arguments);
        let Command::Gaps(args) = Cli::parse_from(line).command else {
            unreachable!("the command is `gaps`")
        };
        asked(&args)
    }

    #[test]
    fn gaps_are_asked_for_by_object_uid_kind_namespace_and_source() {
        let (parameters, about) = parsed(&["job/train", "-n", "a", "--source", "jobs"]).unwrap();
        let told: Vec<_> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(told, [("kind", "job"), ("name", "train"), ("namespace", "a"), ("source", "jobs")]);
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
        let text = table(&gaps, false);
        let lines: Vec<_> = text.lines().collect();
        let at = Zone::here().show(1_795_182_311_250);
        assert_eq!(lines[1], format!("{at}   jobs     Job/train in a     7       12       Compacted"));
        assert_eq!(lines[2], format!("{at}   jobs     the whole source   3       open     Compacted"));
        assert_eq!(lines[3], "2 gaps: versions strictly between AFTER and BEFORE were not witnessed");
        assert_eq!(lines[4..], ["Compacted: compaction· came first", "Compacted, of a source: older words"]);
        let wide = table(&gaps, true);
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
        let text = none("of job/x", false, true, &status, &[&seen]);
        assert!(
            text.starts_with("no gap of job/x: every version since the first list was witnessed"),
            "{text}"
        );
        assert!(text.contains(&Zone::here().shown("2026-11-20T11:00:00.000Z")), "{text}");
        let held_up = SourceView { condition: Some("403: forbidden".into()), ..seen.clone() };
        let doubted = SourceView { doubt: Some("an event was lost".into()), ..seen.clone() };
        let unseen = SourceView { synced: false, ..seen.clone() };
        let refused = StatusView { problems: vec!["two hosts".into()], ..status.clone() };
        for text in [none("", false, true, &refused, &[&seen]), none("", false, true, &status, &[])] {
            assert!(text.starts_with("no gap so far, but not all is watched"), "{text}");
        }
        let restricted = StatusView { restricted: true, ..status.clone() };
        let text = none("of job/x", false, true, &restricted, &[&seen]);
        assert!(
            text.starts_with("no gap of job/x that you may see; gaps of whole sources are for"),
            "{text}"
        );
        let hidden = SourceView { gaps: 5, poison: 2, ..seen.clone() };
        let text = none("", false, true, &status, &[&hidden]);
        assert!(
            text.starts_with(
                "no gap that you may see: 5 are recorded, of other objects or taken by retention ("
            ),
            "{text}"
        );
        assert!(
            none("of job/x", true, true, &status, &[&hidden]).contains("every version"),
            "others have them"
        );
        let text = none("of job/x", true, false, &status, &[&hidden]);
        assert!(
            text.contains("no gap of job/x that you may see") && !text.contains("every version"),
            "{text}"
        );
        let text = none("", false, true, &status, &[&doubted]);
        assert!(text.starts_with("no gap is known, but events of jobs get lost ("), "{text}");
        for blind in [held_up, unseen, SourceView { walking: 1, ..seen }] {
            let text = none("", false, true, &status, &[&blind]);
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
        let lines = beside(&[&source]);
        let found = format!(
            "found at {}: Job/x was last witnessed at version 7, and listed at 9: it is read back, or lies in a gap",
            Zone::here().show(1_795_182_311_250)
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
        assert_eq!(beside(&[&SourceView { synced: true, ..SourceView::default() }]), "");
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
}

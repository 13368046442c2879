//! The texts about gaps: the table, the message if none exist, and other things that a source missed.

use std::collections::BTreeMap;

use kubewitness_core::views::{DiscrepancyView, SourceView, StatusView};
use kubewitness_core::{Gap, ObjectRef};

use crate::cli::ZoneArg;
use crate::commands::api::status::{plural, source_remarks, why_blind};
use crate::commands::print::{TextTable, clean_line, remarks_text};

/// How many differences of audits are shown for each source; the figures count them all.
const DIFFERENCES: usize = 10;

/// "Every version" is claimed only while every requested source sees all changes.
pub(super) fn no_gaps_text(
    about: &str,
    is_narrowed: bool,
    sees_all: bool,
    status: &StatusView,
    sources: &[&SourceView],
) -> String {
    let about = if about.is_empty() { String::new() } else { format!(" {}", clean_line(about)) };
    let since = match &status.journal.oldest_at {
        Some(at) => format!("the journal begins at {}", clean_line(&ZoneArg::local_zone().show_text(at))),
        None => "the journal has no state yet".into(),
    };
    if status.restricted {
        // They can't see either what blocks a source.
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
        of.map(|source| clean_line(&source.name).to_string()).collect::<Vec<_>>().join(", ")
    };
    // The list has only what they may see, but the figures count everything.
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
    let blind = named(&|source| why_blind(source).is_some());
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

pub(super) fn gaps_table(gaps: &[Gap], wide: bool) -> String {
    let mut header = vec!["RECORDED", "SOURCE", "SCOPE", "AFTER", "BEFORE", "REASON"];
    if wide {
        header.extend(["EPOCH", "UID", "MESSAGE"]);
    }
    // The reasons also appear below the table.
    let mut table =
        TextTable::new(&header).with_spare_columns(&["REASON", "RECORDED", "SOURCE"]).with_whole_cells(wide);
    for gap in gaps {
        let mut row = vec![
            ZoneArg::local_zone().show_time(gap.recorded_ms),
            gap.source.clone(),
            gap_scope(gap),
            bound_or_open(&gap.after),
            bound_or_open(&gap.before),
            gap.reason.clone(),
        ];
        if wide {
            row.push(gap.epoch.to_string());
            row.push(gap.object.as_ref().map(|object| object.uid.clone()).unwrap_or_default());
            row.push(gap.message.clone());
        }
        table.push_row(row);
    }
    let count = gaps.len() as u64;
    format!(
        "{}{count} {}: versions strictly between AFTER and BEFORE were not witnessed\n{}",
        table.render(),
        plural(count, "gap", "gaps"),
        if wide { String::new() } else { reasons_text(gaps) }
    )
}

/// Each reason once, in the words of the newest gap that has it, because a column would be too wide. A reason
/// means something else for a whole source than for an object.
fn reasons_text(gaps: &[Gap]) -> String {
    let mut words: BTreeMap<(&str, bool), &str> = BTreeMap::new();
    for gap in gaps {
        words.entry((&gap.reason, gap.object.is_none())).or_insert(&gap.message);
    }
    let reasons = words.into_iter().filter(|(_, message)| !message.is_empty());
    remarks_text(reasons.map(|((reason, whole), message)| {
        (if whole { format!("{reason}, of a source") } else { reason.to_owned() }, message)
    }))
}

fn gap_scope(gap: &Gap) -> String {
    gap.object.as_ref().map_or_else(|| "the whole source".into(), object_text)
}

fn object_text(object: &ObjectRef) -> String {
    match object.namespace.as_str() {
        "" => format!("{}/{}", object.kind, object.name),
        namespace => format!("{}/{} in {namespace}", object.kind, object.name),
    }
}

/// An empty bound is unknown: before the first list, or until now.
fn bound_or_open(version: &str) -> String {
    if version.is_empty() { "open".into() } else { version.into() }
}

/// Names the other things that a source can't see, or did not see.
pub(super) fn other_blind_spots(sources: &[&SourceView]) -> String {
    let mut lines = Vec::new();
    for source in sources {
        let counts = &source.counts;
        let name = source.name.as_str();
        if !source.synced && source.condition.is_none() {
            lines.push((name, "its first list is not complete: its gaps are not known yet".to_owned()));
        }
        lines.extend(source_remarks(source));
        if source.poison > 0 {
            let states = plural(source.poison, "state was", "states were");
            let text =
                format!("{} {states} no object of its kind: `kubewitness poison` lists them", source.poison);
            lines.push((name, text));
        }
        if counts.walk_back_requests > 0 {
            let versions = plural(counts.walked_back, "version was", "versions were");
            let requests = counts.walk_back_requests;
            let what = match counts.walked_back {
                0 => "missed versions were looked for".to_string(),
                count => format!("{count} missed {versions} read back"),
            };
            lines.push((name, format!("{what}, in {requests} requests")));
        }
        lines.extend(
            source.discrepancies.iter().take(DIFFERENCES).map(|found| (name, difference_text(found))),
        );
        let more = source.differed.saturating_sub(source.discrepancies.len().min(DIFFERENCES) as u64);
        if more > 0 {
            let objects = plural(more, "object", "objects");
            lines.push((name, format!("{more} more {objects} differed from what was witnessed")));
        }
    }
    remarks_text(lines)
}

/// The difference that an audit found for one object; `-o json` of the status has all of them.
fn difference_text(found: &DiscrepancyView) -> String {
    let DiscrepancyView { object, witnessed, listed, found_ms } = found;
    let found = ZoneArg::local_zone().show_time(*found_ms);
    let what = match (witnessed.as_str(), listed.as_str()) {
        ("", "") => "was not known, and its deletion came".to_string(),
        ("", listed) => format!("was not known, and listed at version {listed}"),
        (witnessed, "") => format!("was last witnessed at version {witnessed}, and no longer listed"),
        (witnessed, listed) => format!("was last witnessed at version {witnessed}, and listed at {listed}"),
    };
    format!("found at {found}: {} {what}: it is read back, or lies in a gap", object_text(object))
}

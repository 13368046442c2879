//! The figures of sources, and what blocks a source.

use kubewitness_core::views::SourceView;

use super::plural;
use crate::cli::ZoneArg;
use crate::commands::print::{TextTable, age_text, clean_line, remarks_text};

/// The state of a source in one word.
fn state_word(source: &SourceView) -> &'static str {
    match (&source.condition, source.synced, source.walking) {
        (Some(_), _, _) => "held up",
        (None, false, _) => "listing",
        (None, true, 0) => "synced",
        (None, true, _) => "walking",
    }
}

/// Why a source may not have the present objects; `None` while it sees all changes.
pub fn why_blind(source: &SourceView) -> Option<String> {
    let name = clean_line(&source.name);
    if let Some(condition) = &source.condition {
        return Some(format!(
            "source {name} is held up, what is shown may be old: {}",
            clean_line(condition)
        ));
    }
    if !source.synced {
        return Some(format!("source {name} is listing, so that objects may be missing"));
    }
    let objects = plural(source.walking, "object", "objects");
    (source.walking > 0).then(|| {
        format!("source {name} is reading {} {objects} back, which may be old until then", source.walking)
    })
}

fn count_relists(source: &SourceView) -> u64 {
    source.counts.lists_expired + source.counts.lists_replaced
}

pub(super) fn sources_text(sources: &[SourceView], wide: bool) -> String {
    if sources.is_empty() {
        return "no source is configured: the host's settings name what is watched\n".into();
    }
    let mut header = vec![
        "SOURCE",
        "STATE",
        "OBJECTS",
        "CHECKPOINT",
        "GAPS",
        "POISON",
        "RELISTS",
        "WALKED",
        "DIFFS",
        "EVENT",
    ];
    if wide {
        header.extend(["KIND", "EPOCH", "LAST EVENT"]);
    }
    let spare = &["WALKED", "RELISTS", "DIFFS", "POISON", "CHECKPOINT", "OBJECTS"];
    let mut table = TextTable::new(&header).with_spare_columns(spare).with_whole_cells(wide);
    for source in sources {
        let mut row = vec![
            source.name.clone(),
            state_word(source).into(),
            source.objects.to_string(),
            source.checkpoint.clone(),
            source.gaps.to_string(),
            source.poison.to_string(),
            count_relists(source).to_string(),
            source.counts.walked_back.to_string(),
            source.differed.to_string(),
            source.last_event_age_seconds.map_or_else(|| "never".into(), age_text),
        ];
        if wide {
            row.push(format!("{} {}", source.api_version, source.kind));
            row.push(source.epoch.to_string());
            row.push(ZoneArg::local_zone().show_text(source.last_event_at.as_deref().unwrap_or("never")));
        }
        table.push_row(row);
    }
    table.render()
        + &remarks_text(sources.iter().flat_map(source_remarks).chain(sources.iter().filter_map(last_audit)))
}

/// Remarks about a source beside its figures, the most urgent first.
pub(in crate::commands::api) fn source_remarks(source: &SourceView) -> Vec<(&str, String)> {
    let mut remarks = Vec::new();
    remarks.extend(source.condition.clone());
    remarks.extend(source.limitation.clone());
    remarks.extend(source.doubt.clone());
    if source.walking > 0 {
        let objects = plural(
            source.walking,
            "object has missed versions that are",
            "objects have missed versions that are",
        );
        remarks.push(format!("{} {objects} being read back now", source.walking));
    }
    for epoch in source.epochs.iter().filter(|epoch| epoch.epoch > 0) {
        let since = epoch.replaced_at.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
        remarks.push(format!("the server's history was replaced{since}: epoch {} began", epoch.epoch));
    }
    remarks.into_iter().map(|text| (source.name.as_str(), text)).collect()
}

fn last_audit(source: &SourceView) -> Option<(&str, String)> {
    let found = ZoneArg::local_zone().show_time(source.discrepancies.first()?.found_ms);
    let count = source.differed;
    let objects = plural(count, "object", "objects");
    let text = format!(
        "{count} {objects} differed from what was witnessed, the last at {found}: `kubewitness gaps` lists them"
    );
    Some((source.name.as_str(), text))
}

/// Shows the work of each source since the process started. Each source is a column, because the figures
/// would be wider than a terminal.
pub(super) fn doings_table(sources: &[SourceView]) -> String {
    let names = sources.iter().map(|source| clean_line(&source.name).into_owned());
    let header: Vec<String> = std::iter::once("SINCE THE START".to_owned()).chain(names).collect();
    let mut table = TextTable::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for (name, figure) in DOINGS {
        table.push_row(std::iter::once((*name).to_string()).chain(sources.iter().map(figure)));
    }
    table.render()
}

type SourceActivity = (&'static str, fn(&SourceView) -> String);

const DOINGS: &[SourceActivity] = &[
    ("events: present", |s| s.counts.present.to_string()),
    ("events: gone", |s| s.counts.gone.to_string()),
    ("events: left", |s| s.counts.left.to_string()),
    ("events: bookmarks", |s| s.counts.bookmarks.to_string()),
    ("events: poison", |s| s.counts.poison.to_string()),
    ("events: duplicates", |s| s.counts.duplicates.to_string()),
    ("events: stale, refused", |s| s.counts.stale.to_string()),
    ("watches", |s| s.counts.watches.to_string()),
    ("watches: expired", |s| s.counts.expired.to_string()),
    ("lists: first", |s| s.counts.lists_first.to_string()),
    ("lists: watch expired", |s| s.counts.lists_expired.to_string()),
    ("lists: history replaced", |s| s.counts.lists_replaced.to_string()),
    ("lists: audit", |s| s.counts.lists_audit.to_string()),
    ("lists: as a stream", |s| s.counts.lists_streamed.to_string()),
    ("walk-back: requests", |s| s.counts.walk_back_requests.to_string()),
    ("walk-back: versions found", |s| s.counts.walked_back.to_string()),
    ("walk-back: objects waiting", |s| s.walking.to_string()),
    ("audits: last", |s| ZoneArg::local_zone().show_text(s.last_audit_at.as_deref().unwrap_or("never"))),
    ("audits: differences", |s| s.counts.discrepancies.to_string()),
    ("gaps recorded", |s| s.counts.gaps.to_string()),
    ("histories replaced", |s| s.counts.epochs.to_string()),
    ("bytes received", |s| s.counts.bytes.to_string()),
    ("bytes discarded", |s| s.counts.discarded_bytes.to_string()),
    ("time to decode", |s| format!("{:.3} s", s.counts.decode_ns as f64 / 1e9)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_does_not_see_what_happens_says_so() {
        let seen = SourceView { name: "jobs".into(), synced: true, ..SourceView::default() };
        assert_eq!(why_blind(&seen), None);
        let reason = |source: SourceView| why_blind(&source).unwrap();
        assert!(reason(SourceView { condition: Some("403".into()), ..seen.clone() }).ends_with("old: 403"));
        assert!(reason(SourceView { synced: false, ..seen.clone() }).contains("jobs is listing"));
        assert!(reason(SourceView { walking: 1, ..seen }).contains("reading 1 object back"));
    }
}

//! `kubewitness status` and `kubewitness plugins`: the figures of the sources, the plugins and the journal. They
//! show no object, and change nothing.

mod calls;
mod plugins;
mod sources;

use kubewitness_core::views::{HeldView, LedgerView, ReplicaView, SourceView, StatusView, StreamView};

use super::client::ApiClient;
use super::live::poll;
use crate::cli::{StatusArgs, ZoneArg};
use crate::commands::CommandResult;
use crate::commands::print::{self, TextTable, age_text, clean_line, remarks_text};
use plugins::{PluginColumns, plugins_text};
pub use plugins::{plugin_views, plugins_table, run_plugins};
pub(super) use sources::source_remarks;
pub use sources::why_blind;
use sources::{doings_table, sources_text};

const NO_PARAMETERS: [(&str, &str); 0] = [];
/// The message for people who may see objects but not how the controller works.
const RESTRICTED: &str = "figures are for people who may `get` `status` in the group `kubewitness.dev`";

pub async fn run_status(args: StatusArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.query.reach).await?;
    poll(args.watch, async || {
        let status: StatusView = client.get("api/v1/status", &NO_PARAMETERS).await?;
        print::render_output(args.query.output, &status, status_text)
    })
    .await
}

fn status_text(status: &StatusView, wide: bool) -> String {
    if status.restricted {
        return restricted_text(&status.sources);
    }
    let mut text = match status.sources.is_empty() && !status.problems.is_empty() {
        true => "no source is watched: the problems below say why the settings are not in force\n".into(),
        false => sources_text(&status.sources, wide),
    };
    if wide && !status.sources.is_empty() {
        text.push_str(&format!("\n{}", doings_table(&status.sources)));
    }
    let mut digests = if wide {
        plugins_table(&status.plugins)
    } else {
        plugins_text(&status.plugins, PluginColumns::Figures)
    };
    let journal = &status.journal;
    if !status.streams.is_empty() {
        digests.push_str(&format!("\n{}", streams_text(&status.streams)));
    }
    if !status.ledgers.is_empty() {
        digests.push_str(&format!("\n{}", ledgers_text(&status.ledgers)));
    }
    text.push_str(&format!(
        "\n{digests}\njournal: {} states, {} KiB, positions {} to {}{}\nkept in: {}\n",
        journal.states,
        journal.bytes / 1024,
        journal.oldest_seq,
        journal.newest_seq,
        journal
            .oldest_at
            .as_ref()
            .map(|at| format!(", since {}", clean_line(&ZoneArg::local_zone().show_text(at))))
            .unwrap_or_default(),
        clean_line(&journal.place),
    ));
    if let Some(replica) = &status.replica {
        text.push_str(&replicas_text(replica));
    }
    for held in &status.held {
        text.push_str(&held_text(held));
    }
    for problem in &status.problems {
        text.push_str(&format!("configuration: {}\n", clean_line(problem)));
    }
    text
}

/// For people who may not see the figures: these are all 0, and would be taken at face value.
fn restricted_text(sources: &[SourceView]) -> String {
    let lines = sources.iter().map(|source| {
        let state = if source.synced { "synced" } else { "not up to date" };
        format!(
            "source {}: {} {}, {state}\n",
            clean_line(&source.name),
            clean_line(&source.api_version),
            clean_line(&source.kind)
        )
    });
    let text: String = lines.collect();
    format!("{text}{RESTRICTED}\n")
}

fn held_text(held: &HeldView) -> String {
    let HeldView { source, holder, states, since, remedy } = held;
    let kept =
        plural(*states, "state of {} that is", "states of {} that are").replace("{}", &clean_line(source));
    format!(
        "retention: {states} {kept} beyond its bounds held by {} since {since}: {}\n",
        clean_line(holder),
        clean_line(remedy)
    )
}

fn replicas_text(this: &ReplicaView) -> String {
    let named = |name: &String| match (name == &this.name, Some(name) == this.dispatcher.as_ref()) {
        (true, true) => format!("{} (this one, leader)", clean_line(name)),
        (true, false) => format!("{} (this one)", clean_line(name)),
        (false, true) => format!("{} (leader)", clean_line(name)),
        (false, false) => clean_line(name).into_owned(),
    };
    let names: Vec<_> = this.replicas.iter().map(named).collect();
    let mut text =
        format!("shared by: {}\nelected by: Lease {}\n", names.join(", "), clean_line(&this.lease));
    if this.dispatcher.is_none() {
        text.push_str("no replica hands states to plugins now\n");
    }
    if let Some(condition) = &this.condition {
        text.push_str(&format!("election: {}\n", clean_line(condition)));
    }
    text
}

fn streams_text(streams: &[StreamView]) -> String {
    let mut table = TextTable::new(&["STREAM", "STATE", "CARRIES", "CARRIED", "WAITING"]);
    for stream in streams {
        table.push_row([
            stream.name.clone(),
            if stream.condition.is_some() { "held up".into() } else { "carrying".into() },
            stream.carries.join(","),
            stream.carried.to_string(),
            stream.waiting.to_string(),
        ]);
    }
    table.render()
        + &remarks_text(streams.iter().flat_map(|stream| {
            let remarks = stream.condition.iter().chain(&stream.limitation);
            remarks.map(|remark| (stream.name.as_str(), remark.clone()))
        }))
}

fn ledgers_text(ledgers: &[LedgerView]) -> String {
    let mut table = TextTable::new(&["LEDGER", "STATE", "SHIPPED", "WAITING", "REMOVED", "FAILED"]);
    for ledger in ledgers {
        let waiting = match ledger.waiting {
            0 => "0".into(),
            waiting => format!("{waiting} ({})", age_text(ledger.waiting_seconds)),
        };
        table.push_row([
            ledger.name.clone(),
            if ledger.condition.is_some() { "held up".into() } else { "shipping".into() },
            ledger.shipped.to_string(),
            waiting,
            ledger.removed.to_string(),
            ledger.failed.to_string(),
        ]);
    }
    table.render()
        + &remarks_text(ledgers.iter().filter_map(|ledger| Some((&ledger.name, ledger.condition.clone()?))))
}

pub fn plural<'a>(count: u64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::{EpochView, PluginView, SourceCounts};

    use super::*;

    #[test]
    fn a_status_tells_what_holds_a_source_up_and_what_the_configuration_lacks() {
        let source = |name: &str, condition: Option<&str>| SourceView {
            name: name.into(),
            condition: condition.map(Into::into),
            ..SourceView::default()
        };
        let failed = PluginView {
            name: "p".into(),
            message: Some("no\nplace\u{1b}]0;x\u{7}".into()),
            ..PluginView::default()
        };
        let status = StatusView {
            sources: vec![source("jobs", None), source("pods", Some("403: pods is forbidden"))],
            plugins: vec![failed],
            problems: vec!["two host documents\u{202e}".into()],
            held: vec![HeldView {
                source: "jobs".into(),
                holder: "plugin p".into(),
                states: 1200,
                since: "2026-11-20T13:59:58.120Z".into(),
                remedy: "repair\u{1b} it".into(),
            }],
            ..StatusView::default()
        };
        for wide in [false, true] {
            let text = status_text(&status, wide);
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines[3], "pods: 403: pods is forbidden");
            assert!(text.contains("\np: no\n    place·]0;x·\n"), "{text}");
            assert_eq!(lines.last(), Some(&"configuration: two host documents·"));
            let held = "retention: 1200 states of jobs that are beyond its bounds held by plugin p since 2026-11-20T";
            assert!(text.contains(held) && text.contains(": repair· it\n"), "{text}");
            assert!(!text.contains("jobs:"), "{text}");
        }
    }

    #[test]
    fn a_stream_tells_what_holds_it_up_and_that_it_has_no_key() {
        let stream = StreamView {
            name: "platform".into(),
            condition: Some("its server is away".into()),
            limitation: Some("it has no key".into()),
            ..StreamView::default()
        };
        let text = status_text(&StatusView { streams: vec![stream], ..StatusView::default() }, false);
        assert!(text.contains("platform: its server is away\nplatform: it has no key\n"), "{text}");
    }

    fn busy() -> SourceView {
        SourceView {
            name: "batch-jobs-1".into(),
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            objects: 100_000,
            checkpoint: "9876543210".into(),
            epoch: 1,
            synced: true,
            gaps: 1234,
            poison: 12,
            walking: 1,
            differed: 7,
            last_event_at: Some("2026-11-20T13:59:58.120Z".into()),
            last_event_age_seconds: Some(119.0),
            last_audit_at: Some("2026-11-20T13:55:00.000Z".into()),
            limitation: Some("this server does not read old versions".into()),
            counts: SourceCounts {
                lists_expired: 2,
                lists_replaced: 1,
                walked_back: 213,
                walk_back_requests: 240,
                discrepancies: 2,
                decode_ns: 91_500_000,
                ..SourceCounts::default()
            },
            epochs: vec![
                EpochView::default(),
                EpochView {
                    epoch: 1,
                    replaced_at: Some("2026-11-20T11:02:03.456Z".into()),
                    ..EpochView::default()
                },
            ],
            ..SourceView::default()
        }
    }

    #[test]
    fn a_table_of_large_figures_fits_a_hundred_columns() {
        let plugin = PluginView {
            name: "notification".into(),
            state: "degraded".into(),
            observed: 12_345_678,
            delivered: 12_345_678,
            lag_seq: 12_345,
            resyncs: 2,
            resynced: 200_000,
            resync_failed: 1,
            lag_seconds: 123.4,
            ..PluginView::default()
        };
        let status = StatusView { sources: vec![busy()], plugins: vec![plugin], ..StatusView::default() };
        let text = status_text(&status, false);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        let row = text.lines().nth(1).unwrap();
        let cells: Vec<_> = row.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let wanted =
            ["batch-jobs-1", "walking", "100000", "9876543210", "1234", "12", "3", "213", "7", "119 s"];
        assert_eq!(cells, wanted);
        for remark in [
            "batch-jobs-1: this server does not read old versions",
            "batch-jobs-1: 1 object has missed versions that are being read back now",
            "notification: 2 resyncs handed 200000 states over again, 1 failed",
            "batch-jobs-1: the server's history was replaced at 2026-11-20T11:02:03.456Z: epoch 1 began",
        ] {
            assert!(text.lines().any(|line| line == remark), "{remark} is not in\n{text}");
        }
    }

    #[test]
    fn wide_has_every_figure() {
        let status = StatusView { sources: vec![busy()], ..StatusView::default() };
        let text = status_text(&status, true);
        for part in [
            "batch/v1 Job",
            "walk-back: requests          240\n",
            "audits: last                 20",
            "0.091 s",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn whoever_may_not_see_figures_is_told_so_and_no_zero() {
        let jobs = SourceView { name: "jobs".into(), ..SourceView::default() };
        let status = StatusView { sources: vec![jobs], restricted: true, ..StatusView::default() };
        let text = status_text(&status, true);
        assert!(text.starts_with("source jobs: ") && text.contains("kubewitness.dev"), "{text}");
        assert!(!text.contains('0'), "{text}");
    }

    #[test]
    fn before_anything_is_configured_it_says_so() {
        let text = status_text(&StatusView::default(), false);
        assert!(text.starts_with("no source is configured"), "{text}");
        assert!(text.contains("no plugin is configured"), "{text}");
    }

    #[test]
    fn settings_that_are_refused_are_not_said_to_name_no_source() {
        let refused =
            StatusView { problems: vec!["host.yaml:9: spec: is odd".into()], ..StatusView::default() };
        let text = status_text(&refused, false);
        assert!(text.starts_with("no source is watched: the problems below"), "{text}");
        assert!(text.contains("host.yaml:9: spec: is odd"), "{text}");
    }
}

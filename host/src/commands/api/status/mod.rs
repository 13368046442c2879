//! `kubewitness status` and `kubewitness plugins`: the figures of the sources, the plugins and the journal. They
//! show no object, and change nothing.

mod calls;

use anyhow::{Result, anyhow};
use kubewitness_core::views::{
    GrantUseView, HeldView, LedgerView, PausedView, PluginView, ReplicaView, ShadowView, SourceView,
    StatusView, StreamView, TickView,
};

use super::client::Client;
use super::live::poll;
use crate::cli::{GetOutput, PluginsArgs, StatusArgs, Zone};
use crate::commands::Ended;
use crate::commands::print::{self, Table, age, clean, remarks};

const NO_PARAMETERS: [(&str, &str); 0] = [];
/// For whoever may see objects, and not how the controller works.
const RESTRICTED: &str = "figures are for people who may `get` `status` in the group `kubewitness.dev`";

pub async fn status(args: StatusArgs) -> Ended {
    let client = Client::reach(&args.query.reach).await?;
    poll(args.watch, async || {
        let status: StatusView = client.get("api/v1/status", &NO_PARAMETERS).await?;
        print::shown(args.query.output, &status, status_text)
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
    let mut digests =
        if wide { plugins_table(&status.plugins) } else { plugins_text(&status.plugins, Columns::Figures) };
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
            .map(|at| format!(", since {}", clean(&Zone::here().shown(at))))
            .unwrap_or_default(),
        clean(&journal.place),
    ));
    if let Some(replica) = &status.replica {
        text.push_str(&replicas_text(replica));
    }
    for held in &status.held {
        text.push_str(&held_text(held));
    }
    for problem in &status.problems {
        text.push_str(&format!("configuration: {}\n", clean(problem)));
    }
    text
}

/// For whoever may not see the figures: all of them are 0, and would be taken for what they say.
fn restricted_text(sources: &[SourceView]) -> String {
    let lines = sources.iter().map(|source| {
        let state = if source.synced { "synced" } else { "not up to date" };
        format!(
            "source {}: {} {}, {state}\n",
            clean(&source.name),
            clean(&source.api_version),
            clean(&source.kind)
        )
    });
    let text: String = lines.collect();
    format!("{text}{RESTRICTED}\n")
}

fn held_text(held: &HeldView) -> String {
    let HeldView { source, holder, states, since, remedy } = held;
    let kept = plural(*states, "state of {} that is", "states of {} that are").replace("{}", &clean(source));
    format!(
        "retention: {states} {kept} beyond its bounds held by {} since {since}: {}\n",
        clean(holder),
        clean(remedy)
    )
}

fn replicas_text(this: &ReplicaView) -> String {
    let named = |name: &String| match (name == &this.name, Some(name) == this.dispatcher.as_ref()) {
        (true, true) => format!("{} (this one, dispatches)", clean(name)),
        (true, false) => format!("{} (this one)", clean(name)),
        (false, true) => format!("{} (dispatches)", clean(name)),
        (false, false) => clean(name).into_owned(),
    };
    let names: Vec<_> = this.replicas.iter().map(named).collect();
    let mut text = format!("shared by: {}\nelected by: Lease {}\n", names.join(", "), clean(&this.lease));
    if this.dispatcher.is_none() {
        text.push_str("no replica hands states to plugins now: one is about to take over\n");
    }
    if let Some(condition) = &this.condition {
        text.push_str(&format!("election: {}\n", clean(condition)));
    }
    text
}

// ---- sources -----------------------------------------------------------------------------

/// One word for where a source is.
fn state(source: &SourceView) -> &'static str {
    match (&source.condition, source.synced, source.walking) {
        (Some(_), _, _) => "held up",
        (None, false, _) => "listing",
        (None, true, 0) => "synced",
        (None, true, _) => "walking",
    }
}

/// Why a source may not have what is there now; `None` while it sees what happens.
pub fn blind(source: &SourceView) -> Option<String> {
    let name = clean(&source.name);
    if let Some(condition) = &source.condition {
        return Some(format!("source {name} is held up, what is shown may be old: {}", clean(condition)));
    }
    if !source.synced {
        return Some(format!("source {name} is listing, so that objects may be missing"));
    }
    let objects = plural(source.walking, "object", "objects");
    (source.walking > 0).then(|| {
        format!("source {name} is reading {} {objects} back, which may be old until then", source.walking)
    })
}

fn relists(source: &SourceView) -> u64 {
    source.counts.lists_expired + source.counts.lists_replaced
}

fn sources_text(sources: &[SourceView], wide: bool) -> String {
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
    let mut table = Table::new(&header).spare(spare).whole(wide);
    for source in sources {
        let mut row = vec![
            source.name.clone(),
            state(source).into(),
            source.objects.to_string(),
            source.checkpoint.clone(),
            source.gaps.to_string(),
            source.poison.to_string(),
            relists(source).to_string(),
            source.counts.walked_back.to_string(),
            source.differed.to_string(),
            source.last_event_age_seconds.map_or_else(|| "never".into(), age),
        ];
        if wide {
            row.push(format!("{} {}", source.api_version, source.kind));
            row.push(source.epoch.to_string());
            row.push(Zone::here().shown(source.last_event_at.as_deref().unwrap_or("never")));
        }
        table.row(row);
    }
    table.render()
        + &remarks(sources.iter().flat_map(source_remarks).chain(sources.iter().filter_map(audited)))
}

/// What a source has to say beyond its figures, the most urgent first.
pub(super) fn source_remarks(source: &SourceView) -> Vec<(&str, String)> {
    let mut told = Vec::new();
    told.extend(source.condition.clone());
    told.extend(source.limitation.clone());
    told.extend(source.doubt.clone());
    if source.walking > 0 {
        let objects = plural(
            source.walking,
            "object has missed versions that are",
            "objects have missed versions that are",
        );
        told.push(format!("{} {objects} being read back now", source.walking));
    }
    for epoch in source.epochs.iter().filter(|epoch| epoch.epoch > 0) {
        let since = epoch.replaced_at.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
        told.push(format!("the server's history was replaced{since}: epoch {} began", epoch.epoch));
    }
    told.into_iter().map(|text| (source.name.as_str(), text)).collect()
}

fn audited(source: &SourceView) -> Option<(&str, String)> {
    let found = Zone::here().show(source.discrepancies.first()?.found_ms);
    let count = source.differed;
    let objects = plural(count, "object", "objects");
    let text = format!(
        "{count} {objects} differed from what was witnessed, the last at {found}: `kubewitness gaps` lists them"
    );
    Some((source.name.as_str(), text))
}

pub fn plural<'a>(count: u64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// What each source has done since the process started: a column a source, since the figures are
/// more than a terminal is wide.
fn doings_table(sources: &[SourceView]) -> String {
    let names = sources.iter().map(|source| clean(&source.name).into_owned());
    let header: Vec<String> = std::iter::once("SINCE THE START".to_owned()).chain(names).collect();
    let mut table = Table::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for (name, figure) in DOINGS {
        table.row(std::iter::once((*name).to_string()).chain(sources.iter().map(figure)));
    }
    table.render()
}

type Doing = (&'static str, fn(&SourceView) -> String);

const DOINGS: &[Doing] = &[
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
    ("audits: last", |s| Zone::here().shown(s.last_audit_at.as_deref().unwrap_or("never"))),
    ("audits: differences", |s| s.counts.discrepancies.to_string()),
    ("gaps recorded", |s| s.counts.gaps.to_string()),
    ("histories replaced", |s| s.counts.epochs.to_string()),
    ("bytes received", |s| s.counts.bytes.to_string()),
    ("bytes discarded", |s| s.counts.discarded_bytes.to_string()),
    ("time to decode", |s| format!("{:.3} s", s.counts.decode_ns as f64 / 1e9)),
];

// ---- plugins -----------------------------------------------------------------------------

pub async fn plugins(args: PluginsArgs) -> Ended {
    let client = Client::reach(&args.reach).await?;
    poll(args.watch, async || plugins_shown(&client, args.name.as_deref(), args.output).await).await
}

/// Those with this name, or all.
pub async fn plugin_views(client: &Client, name: Option<&str>) -> Result<Vec<PluginView>> {
    let mut plugins: Vec<PluginView> = client.get("api/v1/plugins", &NO_PARAMETERS).await?;
    if plugins.is_empty() {
        let status: StatusView = client.get("api/v1/status", &NO_PARAMETERS).await?;
        if status.restricted {
            return Err(anyhow!(RESTRICTED));
        }
    }
    if let Some(name) = name {
        plugins.retain(|plugin| plugin.name == name);
        if plugins.is_empty() {
            return Err(anyhow!("there is no plugin `{}`: `kubewitness plugins` lists them", clean(name)));
        }
    }
    Ok(plugins)
}

async fn plugins_shown(client: &Client, name: Option<&str>, output: GetOutput) -> Result<String> {
    let plugins = plugin_views(client, name).await?;
    let Some(output) = output.shape() else {
        return Ok(plugins.iter().map(|plugin| format!("{}\n", clean(&plugin.name))).collect());
    };
    print::shown(output, &plugins, |plugins, wide| {
        plugins_text(plugins, if wide { Columns::All } else { Columns::WithDigest })
    })
}

pub fn plugins_table(plugins: &[PluginView]) -> String {
    plugins_text(plugins, Columns::WithDigest)
}

/// How much of each plugin is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Columns {
    Figures,
    WithDigest,
    All,
}

fn plugins_text(plugins: &[PluginView], columns: Columns) -> String {
    if plugins.is_empty() {
        return "no plugin is configured, or the configuration is still being read: `kubewitness status` says which. A \
                plugin is a manifest in the folder of --config, or a ConfigMap labelled kubewitness.dev/plugin=true\n"
            .into();
    }
    let mut header =
        vec!["PLUGIN", "STATE", "OBSERVED", "DELIVERED", "FILTERED", "DEAD", "WAITING", "RETRYING", "LAG"];
    if columns == Columns::All {
        header.extend(["DROPPED", "SUPERSEDED", "TAKEN", "RESYNCED", "UNJUDGED", "LONGEST CALL"]);
    }
    if columns != Columns::Figures {
        header.push("DIGEST");
    }
    let spare = &["DIGEST", "FILTERED", "RETRYING", "OBSERVED", "DELIVERED", "DEAD", "WAITING"];
    let mut table = Table::new(&header).spare(spare).whole(columns == Columns::All);
    for plugin in plugins {
        let mut row = vec![
            plugin.name.clone(),
            plugin.state.clone(),
            plugin.observed.to_string(),
            plugin.delivered.to_string(),
            plugin.filtered.to_string(),
            plugin.dead.to_string(),
            plugin.waiting.to_string(),
            plugin.retrying.to_string(),
            format!("{} ({})", plugin.lag_seq, age(plugin.lag_seconds)),
        ];
        if columns == Columns::All {
            row.extend(
                [plugin.dropped, plugin.superseded, plugin.taken, plugin.resynced].map(|n| n.to_string()),
            );
            row.extend([plugin.filter_errors.to_string(), age(plugin.queue.longest_running_seconds)]);
        }
        match columns {
            Columns::Figures => {}
            Columns::WithDigest => row.push(plugin.digest.chars().take(12).collect()),
            Columns::All => row.push(plugin.digest.clone()),
        }
        table.row(row);
    }
    let pauses = plugins.iter().filter_map(|p| Some((&p.name, paused(p)?)));
    let messages = plugins.iter().filter_map(|p| Some((&p.name, p.message.clone()?)));
    let resyncs = plugins.iter().filter_map(|p| Some((&p.name, resynced(p)?)));
    let taken = plugins.iter().filter_map(|p| Some((&p.name, taken(p)?)));
    let ticks = plugins.iter().filter_map(|p| Some((&p.name, ticked(p, columns)?)));
    let shadows = plugins.iter().filter_map(|p| Some((&p.name, in_shadow(p, columns)?)));
    let grants = plugins.iter().filter(|_| columns == Columns::All);
    let grants = grants.filter_map(|p| Some((&p.name, granted(p)?)));
    let calls = if columns == Columns::All { calls::calls_text(plugins) } else { String::new() };
    let remarks =
        pauses.chain(messages).chain(resyncs).chain(taken).chain(ticks).chain(shadows).chain(grants);
    table.render() + &self::remarks(remarks) + &calls
}

fn streams_text(streams: &[StreamView]) -> String {
    let mut table = Table::new(&["STREAM", "STATE", "CARRIES", "CARRIED", "WAITING"]);
    for stream in streams {
        table.row([
            stream.name.clone(),
            if stream.condition.is_some() { "held up".into() } else { "carrying".into() },
            stream.carries.join(","),
            stream.carried.to_string(),
            stream.waiting.to_string(),
        ]);
    }
    table.render()
        + &remarks(streams.iter().filter_map(|stream| Some((&stream.name, stream.condition.clone()?))))
}

fn ledgers_text(ledgers: &[LedgerView]) -> String {
    let mut table = Table::new(&["LEDGER", "STATE", "SHIPPED", "WAITING", "REMOVED", "FAILED"]);
    for ledger in ledgers {
        let waiting = match ledger.waiting {
            0 => "0".into(),
            waiting => format!("{waiting} ({})", age(ledger.waiting_seconds)),
        };
        table.row([
            ledger.name.clone(),
            if ledger.condition.is_some() { "held up".into() } else { "shipping".into() },
            ledger.shipped.to_string(),
            waiting,
            ledger.removed.to_string(),
            ledger.failed.to_string(),
        ]);
    }
    table.render()
        + &remarks(ledgers.iter().filter_map(|ledger| Some((&ledger.name, ledger.condition.clone()?))))
}

fn paused(plugin: &PluginView) -> Option<String> {
    let PausedView { who, why, since } = plugin.paused.as_ref()?;
    Some(format!(
        "{who} paused it at {}: {why}. It gets no states until it is resumed, and retention keeps them",
        Zone::here().shown(since)
    ))
}

fn taken(plugin: &PluginView) -> Option<String> {
    let states = plural(plugin.taken, "state was", "states were");
    let text = format!("{} {states} removed by retention before the plugin got them", plugin.taken);
    (plugin.taken > 0).then_some(text)
}

fn granted(plugin: &PluginView) -> Option<String> {
    let told = |grant: &GrantUseView| {
        let declared = if grant.declared { "declared" } else { "not declared" };
        let access = grant.access.iter().map(|access| format!(", access {access}")).collect::<String>();
        let calls = plural(grant.calls, "call", "calls");
        format!("{} ({declared}{access}, {} {calls})", grant.name, grant.calls)
    };
    let all: Vec<_> = plugin.grants.iter().map(told).collect();
    let unused = plugin.grants.iter().filter(|grant| grant.calls == 0).map(|grant| grant.name.as_str());
    let unused: Vec<_> = unused.collect();
    let left = match unused.is_empty() {
        true => String::new(),
        false => format!(". Never used since it was started: {}", unused.join(", ")),
    };
    let enough = plugin.grants.iter().filter(|grant| grant.enough.is_some() && grant.enough != grant.access);
    let enough = enough.filter_map(|grant| {
        let enough = grant.enough.as_ref()?;
        Some(format!(". `access: {enough}` is what {} has needed", grant.name))
    });
    let enough: String = enough.collect();
    (!all.is_empty()).then(|| format!("granted: {}{left}{enough}", all.join(", ")))
}

/// Ticks that work are told where much is.
fn ticked(plugin: &PluginView, columns: Columns) -> Option<String> {
    let TickView { ticks, failed, last, next, error: _ } = plugin.tick.as_ref()?;
    if columns != Columns::All && *failed == 0 {
        return None;
    }
    let at = |time: &Option<String>, none: &str| time.clone().unwrap_or_else(|| none.into());
    let (last, next) = (at(last, "none yet"), at(next, "not while it is paused"));
    Some(format!("{ticks} {}, {failed} failed; last: {last}; next: {next}", plural(*ticks, "tick", "ticks")))
}

/// A version in the shadow that does the same is told where much is.
fn in_shadow(plugin: &PluginView, columns: Columns) -> Option<String> {
    let ShadowView { digest, states, different, missed, message, .. } = plugin.shadow.as_ref()?;
    if columns != Columns::All && *different == 0 && message.is_none() {
        return None;
    }
    let digest: String = digest.chars().take(12).collect();
    let message = message.as_ref().map(|message| format!("; {message}")).unwrap_or_default();
    Some(format!(
        "in its shadow {digest}: {states} {} compared, {different} different, {missed} missed; `kubewitness plugin shadow \
         {}` shows them{message}",
        plural(*states, "state", "states"),
        plugin.name
    ))
}

fn resynced(plugin: &PluginView) -> Option<String> {
    let PluginView { resyncs, resynced, resync_failed, .. } = plugin;
    let (rounds, states) = (plural(*resyncs, "resync", "resyncs"), plural(*resynced, "state", "states"));
    let failed = if *resync_failed > 0 { format!(", {resync_failed} failed") } else { String::new() };
    (*resyncs > 0).then(|| format!("{resyncs} {rounds} handed {resynced} {states} over again{failed}"))
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::{EpochView, SourceCounts};

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
    fn a_source_that_does_not_see_what_happens_says_so() {
        let seen = SourceView { name: "jobs".into(), synced: true, ..SourceView::default() };
        assert_eq!(blind(&seen), None);
        let said = |source: SourceView| blind(&source).unwrap();
        assert!(said(SourceView { condition: Some("403".into()), ..seen.clone() }).ends_with("old: 403"));
        assert!(said(SourceView { synced: false, ..seen.clone() }).contains("jobs is listing"));
        assert!(said(SourceView { walking: 1, ..seen }).contains("reading 1 object back"));
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
    fn the_wide_table_of_plugins_has_what_the_narrow_one_leaves_out() {
        let plugin = PluginView {
            name: "notification".into(),
            digest: "0123456789abcdef".into(),
            dropped: 41,
            superseded: 42,
            taken: 43,
            resynced: 44,
            filter_errors: 45,
            grants: vec![
                GrantUseView { name: "http:hook".into(), declared: true, calls: 46, ..Default::default() },
                GrantUseView { name: "kv".into(), ..Default::default() },
                GrantUseView {
                    name: "sql:main".into(),
                    declared: true,
                    calls: 2,
                    access: Some("schema".into()),
                    enough: Some("read".into()),
                },
            ],
            ..PluginView::default()
        };
        let narrow = plugins_text(std::slice::from_ref(&plugin), Columns::WithDigest);
        let wide = plugins_text(std::slice::from_ref(&plugin), Columns::All);
        assert!(narrow.contains("0123456789ab\n") && !narrow.contains("SUPERSEDED"), "{narrow}");
        for part in ["DROPPED", " 41 ", " 42 ", " 43 ", " 44 ", " 45 ", "0123456789abcdef\n"] {
            assert!(wide.contains(part), "{part} is not in\n{wide}");
        }
        let granted = "notification: granted: http:hook (declared, 46 calls), kv (not declared, 0 calls), \
                       sql:main (declared, access schema, 2 calls). Never used since it was started: kv. \
                       `access: read` is what sql:main has needed\n";
        assert!(wide.contains(granted) && !narrow.contains("granted"), "{wide}");
    }

    #[test]
    fn ticks_are_told_where_they_fail_and_in_the_wide_table() {
        let ticking = |failed| {
            let (last, next) =
                (Some("2026-11-20T13:59:30.000Z".into()), Some("2026-11-20T14:00:00.000Z".into()));
            let tick = TickView { ticks: 12, failed, last, next, error: None };
            PluginView { name: "digest".into(), tick: Some(tick), ..PluginView::default() }
        };
        let told =
            "digest: 12 ticks, 4 failed; last: 2026-11-20T13:59:30.000Z; next: 2026-11-20T14:00:00.000Z\n";
        assert!(plugins_text(&[ticking(4)], Columns::Figures).contains(told));
        assert!(!plugins_text(&[ticking(0)], Columns::Figures).contains("ticks"));
        assert!(plugins_text(&[ticking(0)], Columns::All).contains("12 ticks, 0 failed"));
    }

    #[test]
    fn a_shadow_is_told_where_it_differs_and_in_the_wide_table() {
        let beside = |different| {
            let shadow =
                ShadowView { digest: "0123456789abcdef".into(), states: 9, different, ..Default::default() };
            PluginView { name: "audit".into(), shadow: Some(shadow), ..PluginView::default() }
        };
        let told = "audit: in its shadow 0123456789ab: 9 states compared, 1 different, 0 missed; `kubewitness plugin shadow \
                    audit` shows them\n";
        let text = plugins_text(&[beside(1)], Columns::Figures);
        assert!(text.contains(told), "{text}");
        assert!(!plugins_text(&[beside(0)], Columns::Figures).contains("shadow"));
        assert!(plugins_text(&[beside(0)], Columns::All).contains("9 states compared, 0 different"));
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

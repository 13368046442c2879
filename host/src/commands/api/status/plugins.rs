//! `kubewitness plugins`: the figures of each plugin, and remarks about them.

use anyhow::{Result, anyhow};
use kubewitness_core::views::{
    BackfillView, GrantUseView, PausedView, PluginView, ShadowView, StatusView, TickView,
};

use super::super::client::ApiClient;
use super::super::live::poll;
use super::{NO_PARAMETERS, RESTRICTED, calls, plural};
use crate::cli::{GetOutput, PluginsArgs, ZoneArg};
use crate::commands::CommandResult;
use crate::commands::print::{self, TextTable, age_text, clean_line, remarks_text};

pub async fn run_plugins(args: PluginsArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.reach).await?;
    poll(args.watch, async || plugins_shown(&client, args.name.as_deref(), args.output).await).await
}

/// The plugins with this name, or all.
pub async fn plugin_views(client: &ApiClient, name: Option<&str>) -> Result<Vec<PluginView>> {
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
            return Err(anyhow!(
                "there is no plugin `{}`: `kubewitness plugins` lists them",
                clean_line(name)
            ));
        }
    }
    Ok(plugins)
}

async fn plugins_shown(client: &ApiClient, name: Option<&str>, output: GetOutput) -> Result<String> {
    let plugins = plugin_views(client, name).await?;
    let Some(output) = output.shape() else {
        return Ok(plugins.iter().map(|plugin| format!("{}\n", clean_line(&plugin.name))).collect());
    };
    print::render_output(output, &plugins, |plugins, wide| {
        plugins_text(plugins, if wide { PluginColumns::All } else { PluginColumns::WithDigest })
    })
}

pub fn plugins_table(plugins: &[PluginView]) -> String {
    plugins_text(plugins, PluginColumns::WithDigest)
}

/// How much of each plugin is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PluginColumns {
    Figures,
    WithDigest,
    All,
}

pub(super) fn plugins_text(plugins: &[PluginView], columns: PluginColumns) -> String {
    if plugins.is_empty() {
        return "no plugin is configured, or the configuration is still being read: `kubewitness status` says which. A \
                plugin is a manifest in the folder of --config, or a ConfigMap labelled kubewitness.dev/plugin=true\n"
            .into();
    }
    let mut header =
        vec!["PLUGIN", "STATE", "OBSERVED", "DELIVERED", "FILTERED", "DEAD", "WAITING", "RETRYING", "LAG"];
    if columns == PluginColumns::All {
        header.extend(["DROPPED", "SUPERSEDED", "TAKEN", "RESYNCED", "UNJUDGED", "LONGEST CALL"]);
    }
    if columns != PluginColumns::Figures {
        header.push("DIGEST");
    }
    let spare = &["DIGEST", "FILTERED", "RETRYING", "OBSERVED", "DELIVERED", "DEAD", "WAITING"];
    let mut table =
        TextTable::new(&header).with_spare_columns(spare).with_whole_cells(columns == PluginColumns::All);
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
            format!("{} ({})", plugin.lag_seq, age_text(plugin.lag_seconds)),
        ];
        if columns == PluginColumns::All {
            row.extend(
                [plugin.dropped, plugin.superseded, plugin.taken, plugin.resynced].map(|n| n.to_string()),
            );
            row.extend([plugin.filter_errors.to_string(), age_text(plugin.queue.longest_running_seconds)]);
        }
        match columns {
            PluginColumns::Figures => {}
            PluginColumns::WithDigest => row.push(plugin.digest.chars().take(12).collect()),
            PluginColumns::All => row.push(plugin.digest.clone()),
        }
        table.push_row(row);
    }
    let pauses = plugins.iter().filter_map(|p| Some((&p.name, pause_remark(p)?)));
    let messages = plugins.iter().filter_map(|p| Some((&p.name, p.message.clone()?)));
    let backfills = plugins.iter().filter_map(|p| Some((&p.name, backfill_remark(p)?)));
    let resyncs = plugins.iter().filter_map(|p| Some((&p.name, resync_remark(p)?)));
    let taken = plugins.iter().filter_map(|p| Some((&p.name, taken_remark(p)?)));
    let losses = plugins.iter().filter_map(|p| Some((&p.name, loss_remark(p)?)));
    let ticks = plugins.iter().filter_map(|p| Some((&p.name, ticks_remark(p, columns)?)));
    let shadows = plugins.iter().filter_map(|p| Some((&p.name, in_shadow(p, columns)?)));
    let grants = plugins.iter().filter(|_| columns == PluginColumns::All);
    let grants = grants.filter_map(|p| Some((&p.name, grants_remark(p)?)));
    let calls = if columns == PluginColumns::All { calls::calls_text(plugins) } else { String::new() };
    let remarks = pauses.chain(messages).chain(backfills).chain(resyncs).chain(taken).chain(losses);
    let remarks = remarks.chain(ticks).chain(shadows).chain(grants);
    table.render() + &remarks_text(remarks) + &calls
}

fn pause_remark(plugin: &PluginView) -> Option<String> {
    let PausedView { who, why, since } = plugin.paused.as_ref()?;
    Some(format!(
        "{who} paused it at {}: {why}. It gets no states until it is resumed, and retention keeps them",
        ZoneArg::local_zone().show_text(since)
    ))
}

fn backfill_remark(plugin: &PluginView) -> Option<String> {
    let BackfillView { sources, through } = plugin.backfill.as_ref()?;
    Some(format!("it goes back for the past of {}, up to position {through}", sources.join(", ")))
}

fn taken_remark(plugin: &PluginView) -> Option<String> {
    let states = plural(plugin.taken, "state was", "states were");
    let text = format!("{} {states} removed by retention before the plugin got them", plugin.taken);
    (plugin.taken > 0).then_some(text)
}

/// The newest loss, and how many there were.
fn loss_remark(plugin: &PluginView) -> Option<String> {
    let newest = plugin.losses.last()?;
    let times = match plugin.losses.len() {
        1 => String::new(),
        count => format!(" ({count} times so far)"),
    };
    Some(format!("{}{times}: {}", ZoneArg::local_zone().show_text(&newest.found), newest.message))
}

fn grants_remark(plugin: &PluginView) -> Option<String> {
    let entry = |grant: &GrantUseView| {
        let declared = if grant.declared { "declared" } else { "not declared" };
        let access = grant.access.iter().map(|access| format!(", access {access}")).collect::<String>();
        let calls = plural(grant.calls, "call", "calls");
        format!("{} ({declared}{access}, {} {calls})", grant.name, grant.calls)
    };
    let all: Vec<_> = plugin.grants.iter().map(entry).collect();
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

/// Ticks without failures are shown in the wide output only.
fn ticks_remark(plugin: &PluginView, columns: PluginColumns) -> Option<String> {
    let TickView { ticks, failed, last, next, error: _ } = plugin.tick.as_ref()?;
    if columns != PluginColumns::All && *failed == 0 {
        return None;
    }
    let at = |time: &Option<String>, none: &str| time.clone().unwrap_or_else(|| none.into());
    let (last, next) = (at(last, "none yet"), at(next, "not while it is paused"));
    Some(format!("{ticks} {}, {failed} failed; last: {last}; next: {next}", plural(*ticks, "tick", "ticks")))
}

/// A shadow version without differences is shown in the wide output only.
fn in_shadow(plugin: &PluginView, columns: PluginColumns) -> Option<String> {
    let ShadowView { digest, states, different, missed, message, .. } = plugin.shadow.as_ref()?;
    if columns != PluginColumns::All && *different == 0 && message.is_none() {
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

fn resync_remark(plugin: &PluginView) -> Option<String> {
    let PluginView { resyncs, resynced, resync_failed, .. } = plugin;
    let (rounds, states) = (plural(*resyncs, "resync", "resyncs"), plural(*resynced, "state", "states"));
    let failed = if *resync_failed > 0 { format!(", {resync_failed} failed") } else { String::new() };
    (*resyncs > 0).then(|| format!("{resyncs} {rounds} handed {resynced} {states} over again{failed}"))
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::DatabaseLossView;

    use super::*;

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
        let narrow = plugins_text(std::slice::from_ref(&plugin), PluginColumns::WithDigest);
        let wide = plugins_text(std::slice::from_ref(&plugin), PluginColumns::All);
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
    fn of_several_losses_of_a_database_the_newest_is_told() {
        let loss = |message: &str| DatabaseLossView {
            found: "at noon".into(),
            message: message.into(),
            ..DatabaseLossView::default()
        };
        let plugin = |losses: Vec<DatabaseLossView>| PluginView {
            name: "persistence".into(),
            losses,
            ..PluginView::default()
        };
        let text = |losses| plugins_text(&[plugin(losses)], PluginColumns::Figures);
        assert!(!text(vec![]).contains("persistence: "));
        assert!(text(vec![loss("one")]).contains("persistence: at noon: one\n"));
        let twice = text(vec![loss("one"), loss("two")]);
        assert!(twice.contains("(2 times so far): two\n") && !twice.contains("one"), "{twice}");
    }

    #[test]
    fn ticks_are_told_where_they_fail_and_in_the_wide_table() {
        let ticking = |failed| {
            let (last, next) =
                (Some("2026-11-20T13:59:30.000Z".into()), Some("2026-11-20T14:00:00.000Z".into()));
            let tick = TickView { ticks: 12, failed, last, next, error: None };
            PluginView { name: "digest".into(), tick: Some(tick), ..PluginView::default() }
        };
        let expected =
            "digest: 12 ticks, 4 failed; last: 2026-11-20T13:59:30.000Z; next: 2026-11-20T14:00:00.000Z\n";
        assert!(plugins_text(&[ticking(4)], PluginColumns::Figures).contains(expected));
        assert!(!plugins_text(&[ticking(0)], PluginColumns::Figures).contains("ticks"));
        assert!(plugins_text(&[ticking(0)], PluginColumns::All).contains("12 ticks, 0 failed"));
    }

    #[test]
    fn a_shadow_is_told_where_it_differs_and_in_the_wide_table() {
        let beside = |different| {
            let shadow =
                ShadowView { digest: "0123456789abcdef".into(), states: 9, different, ..Default::default() };
            PluginView { name: "audit".into(), shadow: Some(shadow), ..PluginView::default() }
        };
        let expected = "audit: in its shadow 0123456789ab: 9 states compared, 1 different, 0 missed; `kubewitness plugin shadow \
                    audit` shows them\n";
        let text = plugins_text(&[beside(1)], PluginColumns::Figures);
        assert!(text.contains(expected), "{text}");
        assert!(!plugins_text(&[beside(0)], PluginColumns::Figures).contains("shadow"));
        assert!(plugins_text(&[beside(0)], PluginColumns::All).contains("9 states compared, 0 different"));
    }
}

//! Questions to a running controller.

use std::sync::Arc;

use anyhow::{Result, bail};
use kubewitness_core::views::{
    DeadLetterView, ObjectQuery, ObjectView, PluginView, ReplayRequest, ReplayView, StatusView,
    TimelineQuery, TimelineView,
};
use kubewitness_core::{State, calendar};
use serde::Serialize;

use super::client::Client;
use super::print::{self, Table, clean, sign};
use super::{End, Ended};
use crate::cli::{DeadLetters, JobsArgs, QueryArgs, TimelineArgs};

#[derive(Serialize)]
struct Nothing {}

pub async fn status(args: QueryArgs) -> Ended {
    let status: StatusView = Client::new(&args.server)?.get("api/v1/status", &Nothing {}).await?;
    print::value(args.output, &status, status_text)?;
    Ok(End::Fine)
}

fn status_text(status: &StatusView) -> String {
    let journal = &status.journal;
    let mut text = format!(
        "{}\n{}\njournal: {} states, {} KiB, positions {} to {}\n",
        sources_table(status),
        plugins_table(&status.plugins),
        journal.states,
        journal.bytes / 1024,
        journal.oldest_seq,
        journal.newest_seq
    );
    for problem in &status.problems {
        text.push_str(&format!("configuration: {}\n", clean(problem)));
    }
    text
}

fn sources_table(status: &StatusView) -> String {
    let mut table =
        Table::new(&["SOURCE", "OBJECTS", "CHECKPOINT", "EPOCH", "SYNCED", "GAPS", "POISON", "LAST EVENT"]);
    for source in &status.sources {
        table.row([
            source.name.clone(),
            source.objects.to_string(),
            source.checkpoint.clone(),
            source.epoch.to_string(),
            sign(source.synced).into(),
            source.gaps.to_string(),
            source.poison.to_string(),
            source.last_event_at.clone().unwrap_or_else(|| "none yet".into()),
        ]);
    }
    let conditions = status.sources.iter().filter_map(|s| Some((&s.name, s.condition.as_ref()?)));
    table.render() + &remarks(conditions)
}

/// What does not fit into a column, below the table. Several faults come as several lines; those
/// after the first are set in, so that none can pass for a remark about something else.
fn remarks<'a>(remarks: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let mut text = String::new();
    for (name, remark) in remarks {
        let mut lines = remark.lines();
        text.push_str(&format!("{}: {}\n", clean(name), clean(lines.next().unwrap_or_default())));
        lines.for_each(|line| text.push_str(&format!("    {}\n", clean(line))));
    }
    text
}

pub fn plugins_table(plugins: &[PluginView]) -> String {
    let mut table = Table::new(&[
        "PLUGIN",
        "STATE",
        "OBSERVED",
        "DELIVERED",
        "FILTERED",
        "DEAD",
        "WAITING",
        "RETRYING",
        "LAG",
        "DIGEST",
    ]);
    for plugin in plugins {
        table.row([
            plugin.name.clone(),
            plugin.state.clone(),
            plugin.observed.to_string(),
            plugin.delivered.to_string(),
            plugin.filtered.to_string(),
            plugin.dead.to_string(),
            plugin.waiting.to_string(),
            plugin.retrying.to_string(),
            format!("{} ({:.1} s)", plugin.lag_seq, plugin.lag_seconds),
            plugin.digest.chars().take(12).collect(),
        ]);
    }
    let messages = plugins.iter().filter_map(|p| Some((&p.name, p.message.as_ref()?)));
    table.render() + &remarks(messages)
}

pub async fn plugins(args: QueryArgs) -> Ended {
    let plugins: Vec<PluginView> = Client::new(&args.server)?.get("api/v1/plugins", &Nothing {}).await?;
    print::value(args.output, &plugins, |plugins| {
        if plugins.is_empty() {
            return "no plugin is configured: apply a ConfigMap labelled kubewitness.dev/plugin=true\n"
                .into();
        }
        plugins_table(plugins)
    })?;
    Ok(End::Fine)
}

pub async fn jobs(args: JobsArgs) -> Ended {
    let query = ObjectQuery {
        source: None,
        kind: (args.kind != "all").then_some(args.kind),
        namespace: args.namespace,
        phase: args.phase,
        limit: Some(args.limit),
        ..ObjectQuery::default()
    };
    let objects: Vec<ObjectView> = Client::new(&args.query.server)?.get("api/v1/objects", &query).await?;
    print::value(args.query.output, &objects, |objects| {
        let mut table =
            Table::new(&["NAMESPACE", "KIND", "NAME", "PHASE", "REASON", "READY", "ATTEMPT", "SINCE"]);
        for view in objects {
            table.row([
                view.object.namespace.clone(),
                view.object.kind.clone(),
                view.object.name.clone(),
                view.status.phase.clone(),
                view.status.reason.clone(),
                format!("{}/{}", view.status.ready, view.status.total),
                view.status.attempt.to_string(),
                view.observed_at.clone(),
            ]);
        }
        if table.is_empty() { "nothing matches\n".into() } else { table.render() }
    })?;
    Ok(End::Fine)
}

pub async fn timeline(args: TimelineArgs) -> Ended {
    let query = timeline_query(&args)?;
    let view: TimelineView = Client::new(&args.query.server)?.get("api/v1/timeline", &query).await?;
    if view.states.is_empty() {
        bail!("nothing was witnessed of {} in namespace {}", args.object, args.namespace);
    }
    print::value(args.query.output, &view, |view| {
        let mut text = states_table(&view.states);
        if !view.related.is_empty() {
            text.push('\n');
            text.push_str(&states_table(&view.related));
        }
        text
    })?;
    Ok(End::Fine)
}

fn timeline_query(args: &TimelineArgs) -> Result<TimelineQuery> {
    let limit = Some(args.limit);
    match args.object.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok(TimelineQuery {
            kind: Some(kind.into()),
            namespace: Some(args.namespace.clone()),
            name: Some(name.into()),
            limit,
            uid: None,
        }),
        None if !args.object.is_empty() => {
            Ok(TimelineQuery { uid: Some(args.object.clone()), limit, ..TimelineQuery::default() })
        }
        _ => bail!("`{}` names no object: write KIND/NAME, such as job/train-7, or a uid", args.object),
    }
}

fn states_table(states: &[Arc<State>]) -> String {
    let mut table =
        Table::new(&["SEQ", "OBSERVED", "OBJECT", "CHANGE", "VERSION", "PHASE", "REASON", "MESSAGE"]);
    for state in states {
        table.row([
            state.seq.to_string(),
            calendar::rfc3339(state.observed_ms),
            format!("{}/{}", state.object.kind, state.object.name),
            if state.late {
                format!("{} (late)", state.change.as_str())
            } else {
                state.change.as_str().into()
            },
            state.resource_version.to_string(),
            state.status.phase.clone(),
            state.status.reason.clone(),
            state.status.message.chars().take(80).collect::<String>().replace('\n', " "),
        ]);
    }
    table.render()
}

pub async fn dead_letters(command: DeadLetters) -> Ended {
    match command {
        DeadLetters::List { plugin, query } => list_dead_letters(plugin, query).await,
        DeadLetters::Replay { plugin, seq, reason, dry_run, query } => {
            let request = ReplayRequest { plugin, seqs: seq, reason, dry_run };
            let view: ReplayView =
                Client::new(&query.server)?.post("api/v1/deadletters/replay", &request).await?;
            print::value(query.output, &view, replay_text)?;
            Ok(End::Fine)
        }
    }
}

fn replay_text(view: &ReplayView) -> String {
    match (view.replayed, view.dry_run) {
        (0, _) => "nothing is parked there that is not being replayed already\n".into(),
        (count, true) => format!("{count} would be replayed\n"),
        (count, false) => format!("{count} being replayed\n"),
    }
}

async fn list_dead_letters(plugin: Option<String>, args: QueryArgs) -> Ended {
    let query: Vec<_> = plugin.map(|name| ("plugin", name)).into_iter().collect();
    let letters: Vec<DeadLetterView> = Client::new(&args.server)?.get("api/v1/deadletters", &query).await?;
    print::value(args.output, &letters, |letters| {
        let mut table = Table::new(&["PLUGIN", "SEQ", "OBJECT", "PHASE", "ATTEMPTS", "LAST", "ERROR"]);
        for view in letters {
            let letter = &view.letter;
            table.row([
                letter.plugin.clone(),
                letter.seq.to_string(),
                format!("{}/{}/{}", view.object.namespace, view.object.kind, view.object.name),
                view.phase.clone(),
                letter.attempts.to_string(),
                calendar::rfc3339(letter.last_ms),
                letter.error.chars().take(100).collect::<String>().replace('\n', " "),
            ]);
        }
        if table.is_empty() { "nothing is parked\n".into() } else { table.render() }
    })?;
    Ok(End::Fine)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use kubewitness_core::views::SourceView;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(object: &str) -> Result<TimelineQuery> {
        let Command::Timeline(args) = Cli::parse_from(["kubewitness", "timeline", object]).command else {
            unreachable!("the command is `timeline`")
        };
        timeline_query(&args)
    }

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
        let text = status_text(&StatusView {
            sources: vec![source("jobs", None), source("pods", Some("403: pods is forbidden"))],
            plugins: vec![failed],
            problems: vec!["two host documents\u{202e}".into()],
            ..StatusView::default()
        });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[3], "pods: 403: pods is forbidden");
        assert!(text.contains("\np: no\n    place·]0;x·\n"), "{text}");
        assert_eq!(lines.last(), Some(&"configuration: two host documents·"));
        assert!(!text.contains("jobs:"), "{text}");
    }

    #[test]
    fn a_replay_of_nothing_does_not_read_like_a_success() {
        let text = |replayed, dry_run| replay_text(&ReplayView { replayed, dry_run });
        assert!(text(0, false).starts_with("nothing is parked"));
        assert_eq!(text(2, true), "2 would be replayed\n");
        assert_eq!(text(2, false), "2 being replayed\n");
    }

    #[test]
    fn an_object_is_named_by_kind_and_name_or_by_uid() {
        assert_eq!(parsed("job/train").unwrap().name.as_deref(), Some("train"));
        assert_eq!(parsed("8a3c-uid").unwrap().uid.as_deref(), Some("8a3c-uid"));
        assert!(parsed("job/").unwrap_err().to_string().contains("KIND/NAME"));
    }
}

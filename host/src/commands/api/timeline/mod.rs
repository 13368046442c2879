//! `kubewitness timeline`: the states of one object, oldest first, the Events about it, and who was notified.

mod evidence;
mod why;

use std::sync::Arc;

use anyhow::bail;
use kubewitness_core::kinds::is_event;
use kubewitness_core::views::{EventView, ReportView, TimelineView};
use kubewitness_core::{State, Status};

use super::client::ApiClient;
use super::get::events;
use super::live::poll;
use super::object_name::{
    ObjectName, fetch_story, namespace_or_context, nothing_witnessed_text, object_lines,
};
use crate::cli::{TimelineArgs, ZoneArg};
use crate::commands::CommandResult;
use crate::commands::print::{self, TextTable, note};
pub use why::run_why;

pub async fn run_timeline(args: TimelineArgs) -> CommandResult {
    let named = ObjectName::parse_only(&args.object)?;
    let client = ApiClient::reach_controller(&args.query.reach).await?;
    let namespace = namespace_or_context(args.namespace.as_deref(), &args.query.reach).await?;
    poll(args.watch, async || {
        let view = fetch_story(&client, &named, &namespace, args.limit).await?;
        if view.states.is_empty() {
            bail!(nothing_witnessed_text(&client, &named, &namespace).await?);
        }
        if view.cut && (!view.owns_more || is_full(&view, args.limit)) {
            note!(
                "kubewitness: there are older states than the {} that --limit shows; raise it to see them",
                args.limit
            );
        }
        if view.owns_more {
            note!("kubewitness: {}", owns_more(view.cut));
        }
        match args.query.output.shape() {
            Some(output) => print::render_output(output, &view, text),
            None => Ok(object_lines(view.states.iter().chain(&view.related).map(|state| &*state.object))),
        }
    })
    .await
}

fn is_full(view: &TimelineView, limit: usize) -> bool {
    view.states.len() >= limit || view.related.len() >= limit
}

fn owns_more(cut: bool) -> &'static str {
    match cut {
        true => "it owns more objects than are shown, which are the newest; raise --limit to see the others",
        false => {
            "what it owns has more parts than are shown: `kubewitness timeline` of one of those has its own"
        }
    }
}

fn text(view: &TimelineView, wide: bool) -> String {
    let is_event = view.states.last().is_some_and(|last| is_event(&last.object.group, &last.object.kind));
    let mut text = states_table(&view.states, wide, !is_event);
    if !view.related.is_empty() {
        text.push('\n');
        text.push_str(&states_table(&view.related, wide, true));
    }
    if !view.events.is_empty() {
        text.push('\n');
        text.push_str(&events_table(&view.events, wide));
    }
    if !view.reports.is_empty() {
        text.push('\n');
        text.push_str(&reports_table(&view.reports, wide));
    }
    text
}

/// As in `kubectl get events`, with the time in place of the age.
fn events_table(events: &[EventView], wide: bool) -> String {
    let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"];
    if wide {
        header.extend(["FROM", "FIRST SEEN", "SEQ"]);
    }
    let mut table = events::fit_to_terminal(TextTable::new(&header)).with_whole_cells(wide);
    for event in events {
        let repeated = event.repetition_text();
        let mut row = vec![
            ZoneArg::local_zone().show_time(event.last_ms),
            event.kind.clone(),
            event.reason.clone(),
            format!("{}/{}", event.about.kind.to_lowercase(), event.about.name),
            if repeated.is_empty() { event.count.to_string() } else { repeated },
            event.message.replace('\n', " "),
        ];
        if wide {
            row.extend([
                event.from.clone(),
                ZoneArg::local_zone().show_time(event.first_ms),
                event.seq.to_string(),
            ]);
        }
        table.push_row(row);
    }
    table.render()
}

/// Who was notified, and what happened to each message.
fn reports_table(reports: &[ReportView], wide: bool) -> String {
    let mut header = vec!["TOLD AT", "TO", "RESULT", "MESSAGE", "WHY"];
    if wide {
        header.extend(["VIA", "PLUGIN", "UID"]);
    }
    let mut table = TextTable::new(&header).with_whole_cells(wide);
    for report in reports {
        let ReportView { plugin, uid, at_ms, to, via, result, title, why } = report.clone();
        let mut row = vec![ZoneArg::local_zone().show_time(at_ms), to, result, title, why];
        if wide {
            row.extend([via, plugin, uid]);
        }
        table.push_row(row);
    }
    table.render()
}

/// An Event has no status: its content is in the table of Events.
fn states_table(states: &[Arc<State>], wide: bool, has_status: bool) -> String {
    let mut header = vec!["SEQ", "OBSERVED", "OBJECT", "CHANGE", "VERSION"];
    if has_status {
        header.extend(["PHASE", "REASON", "MESSAGE"]);
    }
    let spare = &["VERSION", "CHANGE", "MESSAGE", "REASON", "OBJECT"];
    if wide && has_status {
        header.extend(["ATTEMPT", "READY", "EXIT"]);
    }
    if wide {
        header.extend(["SOURCE", "UID"]);
    }
    let mut table =
        TextTable::new(&header).with_spare_columns(spare).with_above("OBJECT").with_whole_cells(wide);
    for state in states {
        let (object, status) = (&state.object, &state.status);
        let mut row = vec![
            state.seq.to_string(),
            ZoneArg::local_zone().show_time(state.observed_ms),
            format!("{}/{}", object.kind, object.name),
            if state.late {
                format!("{} (late)", state.change.as_str())
            } else {
                state.change.as_str().into()
            },
            state.resource_version.to_string(),
        ];
        if has_status {
            row.extend(status_cells(status, wide));
        }
        if wide {
            row.extend([state.source.to_string(), object.uid.clone()]);
        }
        table.push_row(row);
    }
    table.render()
}

fn status_cells(status: &Status, wide: bool) -> Vec<String> {
    let message = match wide {
        true => status.message.clone(),
        false => status.message.chars().take(80).collect::<String>().replace('\n', " "),
    };
    let mut cells = vec![status.phase.clone(), status.reason.clone(), message];
    if wide {
        cells.extend([
            status.attempt.to_string(),
            format!("{}/{}", status.ready, status.total),
            status.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        ]);
    }
    cells
}

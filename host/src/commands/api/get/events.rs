//! The columns of `get events`: those of `kubectl get events`.

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::views::{EventView, ObjectView};

use super::query::{QueryTime, in_phase};
use crate::cli::ZoneArg;
use crate::commands::print::{TextTable, age_text};

/// For a narrow terminal: the next command needs the object, and people read the message.
pub(in crate::commands::api) fn fit_to_terminal(table: TextTable) -> TextTable {
    table
        .with_spare_columns(&["NAMESPACE", "COUNT", "TYPE", "OBJECT"])
        .with_above("OBJECT")
        .with_below("MESSAGE")
}

pub(super) fn table_header(when: QueryTime, wide: bool) -> Vec<&'static str> {
    let mut header = vec!["NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT"];
    header.extend(match when {
        // An Event has no cause.
        QueryTime::Now | QueryTime::Outcome => &[][..],
        QueryTime::Gone => &["DELETED"],
        QueryTime::InPhase => &["SINCE", "UNTIL"],
        QueryTime::At(_) => &["OBSERVED", "KNOWN"],
    });
    header.push("MESSAGE");
    if wide {
        header.extend(["NAME", "COUNT", "FIRST SEEN", "FROM", "SOURCE", "VERSION", "UID"]);
    }
    header
}

pub(super) fn table_row(view: &ObjectView, when: QueryTime, wide: bool) -> Vec<String> {
    let zone = ZoneArg::local_zone();
    let event = view.details.as_ref().and_then(|details| details.event.as_ref());
    let of = |tell: fn(&EventView) -> String| event.map(tell).unwrap_or_default();
    let time = |ms: u64| match when {
        QueryTime::Now | QueryTime::Outcome => {
            age_text(SystemClock::default().now_ms().saturating_sub(ms) as f64 / 1000.0)
        }
        QueryTime::Gone | QueryTime::InPhase | QueryTime::At(_) => zone.show_time(ms),
    };
    let mut row = vec![
        view.object.namespace.clone(),
        event.map(|event| time(event.last_ms)).unwrap_or_default(),
        of(|event| event.kind.clone()),
        of(|event| format!("{} {}", event.reason, event.repetition_text()).trim_end().to_owned()),
        // An Event whose document is unknown is shown under its own name.
        event.map_or_else(|| format!("event/{}", view.object.name), event_subject),
    ];
    match when {
        QueryTime::Now | QueryTime::Outcome => {}
        QueryTime::Gone => {
            row.push(view.ended_at.as_deref().map(|at| zone.show_text(at)).unwrap_or_default());
        }
        QueryTime::InPhase => row.extend(in_phase(view)),
        QueryTime::At(_) => {
            row.push(zone.show_text(&view.observed_at));
            row.push(view.then.as_ref().map(|then| then.known.clone()).unwrap_or_default());
        }
    }
    row.push(of(|event| event.message.clone()));
    if wide {
        row.extend([
            view.object.name.clone(),
            of(|event| event.count.to_string()),
            event.map(|event| time(event.first_ms)).unwrap_or_default(),
            of(|event| event.from.clone()),
            view.source.clone(),
            view.resource_version.clone(),
            view.object.uid.clone(),
        ]);
    }
    row
}

fn event_subject(event: &EventView) -> String {
    format!("{}/{}", event.about.kind.to_lowercase(), event.about.name)
}

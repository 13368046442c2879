//! `kubewitness timeline`: the states of one object, oldest first, the Events about it, and who was told of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, bail};
use kubewitness_core::State;
use kubewitness_core::views::{EventView, Gone, ObjectQuery, ObjectView, ReportView, TimelineView};

use super::client::{Client, parameters};
use super::live::poll;
use super::object_name::{ObjectName, is_uid, namespace};
use crate::cli::{TimelineArgs, Zone};
use crate::commands::print::{self, Table};
use crate::commands::{Ended, Usage};

/// Objects of one name, whose namespaces are named. More help nobody.
const ELSEWHERE: usize = 10;

pub async fn timeline(args: TimelineArgs) -> Ended {
    let named = ObjectName::only(&args.object)?;
    let client = Client::reach(&args.query.reach).await?;
    let namespace = namespace(args.namespace.as_deref(), &args.query.reach).await?;
    poll(args.watch, async || {
        let view = story(&client, &named, &namespace, args.limit).await?;
        if view.states.is_empty() {
            bail!(nothing(&client, &named, &namespace).await?);
        }
        print::shown(args.query.output, &view, text)
    })
    .await
}

fn text(view: &TimelineView, wide: bool) -> String {
    let mut text = states_table(&view.states, wide);
    if !view.related.is_empty() {
        text.push('\n');
        text.push_str(&states_table(&view.related, wide));
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

/// What was witnessed of an object, oldest first; nothing if nothing was.
pub(super) async fn story(
    client: &Client,
    named: &ObjectName,
    namespace: &str,
    limit: usize,
) -> Result<TimelineView> {
    let mut query = named.timeline(namespace, limit);
    let view: TimelineView = client.get("api/v1/timeline", &query).await?;
    if !view.states.is_empty() || query.namespace.take().is_none() {
        return Ok(view);
    }
    // As kubectl has it, a namespace says nothing about an object that is in none.
    let mut view: TimelineView = client.get("api/v1/timeline", &query).await?;
    view.states.retain(|state| state.object.namespace.is_empty());
    if view.states.is_empty() {
        view = TimelineView::default();
    }
    Ok(view)
}

/// What is said where nothing was witnessed of an object. A word that names none is refused, and so is a kind that
/// nobody watches. Where the object is in other namespaces, they are named.
pub(super) async fn nothing(client: &Client, named: &ObjectName, namespace: &str) -> Result<String> {
    let told = named.told(namespace);
    let ObjectName::Object { kind, name } = named else {
        return match named {
            ObjectName::Uid(word) if !is_uid(word) => Err(Usage::error(format!(
                "nothing was witnessed of {word}, which is no uid as API servers make them: write KIND/NAME, such as \
                 job/{word}"
            ))),
            _ => Ok(format!("nothing was witnessed of {told}")),
        };
    };
    let (kind, name) = (Some(kind.clone()), Some(name.clone()));
    let asked = ObjectQuery { kind, name, gone: Gone::Too, ..ObjectQuery::default() };
    let found = client.list::<ObjectView>("api/v1/objects", &parameters(&asked), ELSEWHERE).await?.rows;
    let places: BTreeSet<_> = found.into_iter().map(|view| view.object.namespace).collect();
    Ok(format!("nothing was witnessed of {told}{}", elsewhere(&places)))
}

fn elsewhere(places: &BTreeSet<String>) -> String {
    let Some(first) = places.first() else {
        return ", and nothing of an object of that name in another namespace or in none".to_owned();
    };
    let places = places.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    format!(". An object of that name is in {places}: add -n {first}")
}

/// As `kubectl get events` has it, with the time in place of the age.
fn events_table(events: &[EventView], wide: bool) -> String {
    let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"];
    if wide {
        header.extend(["FROM", "FIRST SEEN", "SEQ"]);
    }
    let mut table = Table::new(&header).spare(&["COUNT", "TYPE"]).whole(wide);
    for event in events {
        let repeated = event.repeated();
        let mut row = vec![
            Zone::here().show(event.last_ms),
            event.kind.clone(),
            event.reason.clone(),
            format!("{}/{}", event.about.kind.to_lowercase(), event.about.name),
            if repeated.is_empty() { event.count.to_string() } else { repeated },
            event.message.replace('\n', " "),
        ];
        if wide {
            row.extend([event.from.clone(), Zone::here().show(event.first_ms), event.seq.to_string()]);
        }
        table.row(row);
    }
    table.render()
}

/// Who was told, and what became of each message.
fn reports_table(reports: &[ReportView], wide: bool) -> String {
    let mut header = vec!["TOLD AT", "TO", "RESULT", "MESSAGE", "WHY"];
    if wide {
        header.extend(["VIA", "PLUGIN", "UID"]);
    }
    let mut table = Table::new(&header).whole(wide);
    for report in reports {
        let ReportView { plugin, uid, at_ms, to, via, result, title, why } = report.clone();
        let mut row = vec![Zone::here().show(at_ms), to, result, title, why];
        if wide {
            row.extend([via, plugin, uid]);
        }
        table.row(row);
    }
    table.render()
}

fn states_table(states: &[Arc<State>], wide: bool) -> String {
    let mut header = vec!["SEQ", "OBSERVED", "OBJECT", "CHANGE", "VERSION", "PHASE", "REASON", "MESSAGE"];
    let spare = &["VERSION", "CHANGE", "MESSAGE", "REASON"];
    if wide {
        header.extend(["ATTEMPT", "READY", "EXIT", "SOURCE", "UID"]);
    }
    let mut table = Table::new(&header).spare(spare).whole(wide);
    for state in states {
        let (object, status) = (&state.object, &state.status);
        let mut row = vec![
            state.seq.to_string(),
            Zone::here().show(state.observed_ms),
            format!("{}/{}", object.kind, object.name),
            if state.late {
                format!("{} (late)", state.change.as_str())
            } else {
                state.change.as_str().into()
            },
            state.resource_version.to_string(),
            status.phase.clone(),
            status.reason.clone(),
            match wide {
                true => status.message.clone(),
                false => status.message.chars().take(80).collect::<String>().replace('\n', " "),
            },
        ];
        if wide {
            row.extend([
                status.attempt.to_string(),
                format!("{}/{}", status.ready, status.total),
                status.exit_code.map(|code| code.to_string()).unwrap_or_default(),
                state.source.to_string(),
                object.uid.clone(),
            ]);
        }
        table.row(row);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use kubewitness_core::ObjectRef;

    use super::*;
    use crate::commands::api::testing;

    #[tokio::test]
    async fn where_nothing_was_witnessed_of_a_name_its_other_namespaces_are_told() {
        let client = testing::client(|asked| {
            assert!(asked.contains("name=train-7") && asked.contains("gone=true"), "{asked}");
            let in_team = ObjectView {
                object: ObjectRef { namespace: "team-speech".into(), ..ObjectRef::default() },
                ..ObjectView::default()
            };
            serde_json::to_value([in_team]).unwrap()
        });
        let named = ObjectName::Object { kind: "job".into(), name: "train-7".into() };
        let told = nothing(&client.await, &named, "default").await.unwrap();
        assert!(
            told.contains(
                "in namespace default. An object of that name is in team-speech: add -n team-speech"
            )
        );
        let client = testing::client(|_| serde_json::json!([])).await;
        let told = nothing(&client, &named, "default").await.unwrap();
        assert!(told.contains("in another namespace or in none"), "{told}");
    }

    #[tokio::test]
    async fn a_name_without_its_kind_is_refused() {
        let client = testing::client(|_| serde_json::json!([])).await;
        let told = nothing(&client, &ObjectName::Uid("train-7".into()), "default").await.unwrap_err();
        assert!(told.is::<Usage>() && told.to_string().contains("job/train-7"), "{told}");
        let uid = ObjectName::Uid("0f31c8e2-8b1f-4a52-9a55-0d8f7f6f2b10".into());
        assert!(nothing(&client, &uid, "default").await.is_ok(), "its object may be yet to come");
    }
}

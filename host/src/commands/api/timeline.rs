//! `kubewitness timeline`: the states of one object, oldest first.

use std::sync::Arc;

use anyhow::{Result, bail};
use kubewitness_core::views::{TimelineQuery, TimelineView};
use kubewitness_core::{State, calendar};

use super::client::Client;
use crate::cli::TimelineArgs;
use crate::commands::print::{self, Table};
use crate::commands::{End, Ended, Usage};

pub async fn timeline(args: TimelineArgs) -> Ended {
    let client = Client::reach(&args.query.reach).await?;
    let mut query = timeline_query(&args)?;
    let mut view: TimelineView = client.get("api/v1/timeline", &query).await?;
    let place = query.namespace.replace(String::new());
    if view.states.is_empty() && place.is_some() {
        // As kubectl has it, a namespace says nothing about an object that is in none.
        view = client.get("api/v1/timeline", &query).await?;
        view.states.retain(|state| state.object.namespace.is_empty());
    }
    if view.states.is_empty() {
        let place = place.map(|place| format!(" in namespace {place}, nor without one")).unwrap_or_default();
        bail!("nothing was witnessed of {}{place}", args.object);
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
            namespace: Some(args.namespace.clone().unwrap_or_else(|| "default".into())),
            name: Some(name.into()),
            limit,
            uid: None,
        }),
        None if !args.object.is_empty() => {
            Ok(TimelineQuery { uid: Some(args.object.clone()), limit, ..TimelineQuery::default() })
        }
        _ => {
            let object = &args.object;
            Err(Usage::error(format!(
                "`{object}` names no object: write KIND/NAME, such as job/train-7, or a uid"
            )))
        }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(object: &str) -> Result<TimelineQuery> {
        let Command::Timeline(args) = Cli::parse_from(["kubewitness", "timeline", object]).command else {
            unreachable!("the command is `timeline`")
        };
        timeline_query(&args)
    }

    #[test]
    fn an_object_is_named_by_kind_and_name_or_by_uid() {
        assert_eq!(parsed("job/train").unwrap().name.as_deref(), Some("train"));
        assert_eq!(parsed("8a3c-uid").unwrap().uid.as_deref(), Some("8a3c-uid"));
        assert!(parsed("job/").unwrap_err().to_string().contains("KIND/NAME"));
    }
}

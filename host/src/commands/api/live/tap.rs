//! `kubewitness tap`: states as lines of JSON as they are journaled, until Ctrl-C or until its reader leaves.
//!
//! Each line has its position with the mark of its state. A bare number can't tell a journal from an older copy
//! that has grown past it, so its states would be skipped without a word.

use std::cell::RefCell;

use anyhow::{Result, bail};
use kubewitness_core::selector::LabelSelector;
use kubewitness_core::views::ObjectQuery;
use kubewitness_core::{State, kinds};
use serde_json::Value;

use super::stream::{LiveStates, StreamEvent};
use super::{must_be_witnessed, once_open};
use crate::cli::TapArgs;
use crate::commands::api::client::ApiClient;
use crate::commands::api::object_name::ObjectName;
use crate::commands::print::{self, clean_line, escaped_json, note};
use crate::commands::{CommandEnd, CommandResult, UsageError};
use crate::process::signals;

pub async fn run_tap(args: TapArgs) -> CommandResult {
    let chosen = TapFilter::new(&args)?;
    let client = ApiClient::reach_controller(&args.reach).await?;
    let printed = RefCell::new(None);
    let ended = tokio::select! {
        ended = print::until_reader_leaves(follow_stream(&client, &chosen, args.after.as_deref(), &printed)) => {
            ended.map(|end| (end, false))
        }
        // Somebody who ends the command has read what was printed. A reader that left may have read less.
        asked = signals::asked_to_end() => asked.map(|()| (CommandEnd::Fine, true)),
    };
    let has_read_all = ended.as_ref().map_or(true, |(_, is_asked)| *is_asked);
    if let Some(position) = printed.take().filter(|_| has_read_all) {
        note!("kubewitness: to go on after the last line: --after {position}");
    }
    ended.map(|(end, _)| end)
}

/// `printed` is the position of the last line that was printed.
async fn follow_stream(
    client: &ApiClient,
    chosen: &TapFilter,
    after: Option<&str>,
    printed: &RefCell<Option<String>>,
) -> CommandResult {
    let mut live = once_open(async || {
        must_be_witnessed(client, chosen.object_query()).await?;
        LiveStates::open(client, after).await
    })
    .await?;
    loop {
        match live.next().await? {
            StreamEvent::State(state, json) => {
                if chosen.fits_state(&state) && chosen.has_labels(client, &state).await? {
                    let position = live.position().unwrap_or_default();
                    print::line_of_many(&format!("{}\n", escaped_json(&with_position(&json, position))))?;
                    printed.replace(Some(position.to_owned()));
                }
            }
            StreamEvent::Causes => {}
            StreamEvent::Replaced(newest) => bail!(
                "the journal, whose newest position is {newest}, has not the position after which this command is to go on: \
                 the journal was replaced, or the position is wrong. Begin anew with --after 0"
            ),
        }
    }
}

/// The state's JSON with its position as a last field. The rest stays as the controller has sent it.
fn with_position(json: &str, position: &str) -> String {
    match json.trim_end().strip_suffix('}') {
        Some(fields) => format!("{fields},\"position\":{}}}", Value::from(position)),
        None => json.to_owned(),
    }
}

/// The conditions for shown states. All given ones must hold.
struct TapFilter {
    kind: Option<String>,
    object: Option<ObjectName>,
    namespace: Option<String>,
    source: Option<String>,
    labels: LabelSelector,
}

impl TapFilter {
    fn new(args: &TapArgs) -> Result<Self> {
        let (kind, object) = match args.object.as_slice() {
            [] => (None, None),
            [kind] if !kind.contains('/') && !kind.is_empty() => {
                ((!kind.eq_ignore_ascii_case("all")).then(|| kind.clone()), None)
            }
            words => (None, Some(ObjectName::parse_only(words)?)),
        };
        let text = args.selector.as_deref().unwrap_or_default();
        let labels = LabelSelector::parse(text)
            .map_err(|error| UsageError::error(format!("`{text}` is not a label selector: {error}")))?;
        Ok(Self { kind, object, namespace: args.namespace.clone(), source: args.source.clone(), labels })
    }

    fn object_query(&self) -> ObjectQuery {
        let kind = match &self.object {
            Some(ObjectName::Object { kind, .. }) => Some(kind.clone()),
            _ => self.kind.clone(),
        };
        let (source, namespace) = (self.source.clone(), self.namespace.clone());
        ObjectQuery { kind, source, namespace, ..ObjectQuery::default() }
    }

    fn fits_state(&self, state: &State) -> bool {
        let object = &state.object;
        let is_named = |named: &ObjectName| match named {
            ObjectName::Uid(uid) => object.uid == *uid,
            ObjectName::Object { kind, name } => {
                object.name == *name && kinds::is_kind(&object.group, &object.kind, kind)
            }
        };
        self.kind.as_ref().is_none_or(|kind| kinds::is_kind(&object.group, &object.kind, kind))
            && self.object.as_ref().is_none_or(is_named)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == object.namespace)
            && self.source.as_ref().is_none_or(|source| **source == *state.source)
    }

    /// The stream has no labels, so they are read from the state's document.
    async fn has_labels(&self, client: &ApiClient, state: &State) -> Result<bool> {
        if self.labels.is_empty() {
            return Ok(true);
        }
        match client.fetch_bytes(&format!("api/v1/states/{}/document", state.seq)).await {
            Ok(bytes) => Ok(self.matches_labels(&serde_json::from_slice(&bytes)?)),
            // An unnecessary state is better than a missing one.
            Err(error) => {
                let seq = state.seq;
                note!(
                    "kubewitness: the labels at {seq} can't be read, so it is shown: {}",
                    clean_line(&format!("{error:#}"))
                );
                Ok(true)
            }
        }
    }

    fn matches_labels(&self, document: &Value) -> bool {
        let labels = &document["metadata"]["labels"];
        self.labels.matches(|key| labels[key].as_str())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kubewitness_core::Change;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::api::testing;

    fn chosen(line: &str) -> Result<TapFilter> {
        let line = format!("kubewitness tap {line}");
        let Command::Tap(args) = Cli::parse_from(line.split_whitespace()).command else {
            unreachable!("the command is `tap`")
        };
        TapFilter::new(&args)
    }

    #[test]
    fn states_are_chosen_by_what_they_are_of() {
        let state = testing::state(1, Change::Present);
        for (line, fits) in [
            ("", true),
            ("all -A", true),
            ("jobs", true),
            ("job/x -n a --source jobs", true),
            ("job x", true),
            ("pods", false),
            ("job/y", false),
            ("jobs -n b", false),
            ("--source other", false),
        ] {
            assert_eq!(chosen(line).unwrap().fits_state(&state), fits, "{line}");
        }
        for wrong in ["job/", "jobs -l a=b=c"] {
            assert!(chosen(wrong).err().is_some_and(|error| error.is::<UsageError>()), "{wrong}");
        }
    }

    #[test]
    fn a_line_is_the_state_with_the_position_after_which_to_go_on() {
        let sent = serde_json::to_string(&testing::state(7, Change::Present)).unwrap();
        let mut line: Value = serde_json::from_str(&with_position(&sent, "7-0a1b2c3d4e5f")).unwrap();
        assert_eq!(line.as_object_mut().unwrap().remove("position"), Some(json!("7-0a1b2c3d4e5f")));
        assert_eq!(line, serde_json::from_str::<Value>(&sent).unwrap());
    }

    #[test]
    fn labels_are_those_of_the_state_itself() {
        let chosen = chosen("-l team=a,!old").unwrap();
        assert!(chosen.matches_labels(&json!({"metadata": {"labels": {"team": "a"}}})));
        assert!(!chosen.matches_labels(&json!({"metadata": {"labels": {"team": "a", "old": ""}}})));
        assert!(!chosen.matches_labels(&json!({"metadata": {}})));
    }
}

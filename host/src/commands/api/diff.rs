//! `kubewitness diff`: what changed between two states of one object, as a unified diff of their documents in YAML.

use std::sync::Arc;

use anyhow::{Result, bail};
use kubewitness_core::{Change, Seq, State};
use serde_json::Value;

use super::client::ApiClient;
use super::object_name::{ObjectName, fetch_story, namespace_or_context, nothing_witnessed_text};
use crate::cli::{DiffArgs, ZoneArg};
use crate::commands::print::{self, line_diff, note};
use crate::commands::{CommandEnd, CommandResult, UsageError};

/// How many states of one object are searched: ten answers of the API.
const STATES: usize = 100_000;
/// Enough to find the last two.
const NEWEST: usize = 100;

pub async fn run_diff(args: DiffArgs) -> CommandResult {
    let (named, rest) = ObjectName::read(&args.object)?;
    let wanted = parse_positions(rest)?;
    let client = ApiClient::reach_controller(&args.reach).await?;
    let limit = if wanted.is_empty() { NEWEST } else { STATES };
    let namespace = namespace_or_context(args.namespace.as_deref(), &args.reach).await?;
    let mut states = fetch_story(&client, &named, &namespace, limit).await?.states;
    if states.is_empty() {
        bail!(nothing_witnessed_text(&client, &named, &namespace).await?);
    }
    let label = named.label_in(&namespace);
    if wanted.is_empty() {
        leave_out_unseen_end(&client, &mut states, &label).await?;
    }
    let [old, new] = choose_states(&states, &wanted, &label)?;
    let managed = args.show_managed_fields;
    let (before, after) =
        (state_yaml(&client, old, managed).await?, state_yaml(&client, new, managed).await?);
    if before == after {
        let apart = if managed { "" } else { ", apart from managedFields" };
        note!("the documents at {} and {} are the same{apart}", old.seq, new.seq);
        return Ok(CommandEnd::Fine);
    }
    let titles = [state_title(old), state_title(new)];
    print::text(&line_diff::unified_diff(&titles, &before, &after, print::is_coloured()))?;
    Ok(CommandEnd::Fine)
}

/// A deletion that a relist found has no document, so the last two states before it are compared.
async fn leave_out_unseen_end(client: &ApiClient, states: &mut Vec<Arc<State>>, label: &str) -> Result<()> {
    let Ok([_, new]) = choose_states(states, &[], label) else { return Ok(()) };
    let seq = new.seq;
    if new.change == Change::Gone && fetch_document(client, seq).await?.is_empty() {
        note!("the deletion of {label} at {seq} has no document: nobody has seen its last content");
        states.retain(|state| state.seq != seq);
    }
    Ok(())
}

pub(super) async fn fetch_document(client: &ApiClient, seq: Seq) -> Result<Vec<u8>> {
    Ok(client.fetch_bytes(&format!("api/v1/states/{seq}/document")).await?.to_vec())
}

fn parse_positions(words: &[String]) -> Result<Vec<Seq>> {
    let usage = || {
        let list = "`kubewitness timeline` lists the positions of an object's states";
        UsageError::error(format!("after the object, write no position, one or two, such as 12 15: {list}"))
    };
    if words.len() > 2 {
        return Err(usage());
    }
    words.iter().map(|word| word.parse().map_err(|_| usage())).collect()
}

/// The last two states, or a named one and its predecessor, or two named ones.
fn choose_states<'a>(states: &'a [Arc<State>], wanted: &[Seq], label: &str) -> Result<[&'a State; 2]> {
    let with_document = |state: &&Arc<State>| state.change != Change::Gap;
    let find = |seq: Seq| {
        let list = "`kubewitness timeline` lists the positions of its states";
        match states.iter().filter(with_document).find(|state| state.seq == seq) {
            Some(state) => Ok(&**state),
            None => bail!("no state of {label} has the position {seq}: {list}"),
        }
    };
    let before = |new: &'a State| {
        let of_it =
            |state: &&Arc<State>| !state.late && state.object.uid == new.object.uid && state.seq < new.seq;
        match states.iter().filter(with_document).filter(of_it).max_by_key(|state| state.seq) {
            Some(old) => Ok([&**old, new]),
            None => {
                bail!(
                    "the state at {} is the first one of {label}: there is none to compare it with",
                    new.seq
                )
            }
        }
    };
    match wanted {
        [old, new] => Ok([find(*old)?, find(*new)?]),
        [new, ..] => before(find(*new)?),
        [] => {
            let in_order = states.iter().filter(with_document).filter(|state| !state.late);
            match in_order.max_by_key(|state| state.seq) {
                Some(newest) => before(newest),
                None => bail!("no state of {label} has a document, only gaps are known"),
            }
        }
    }
}

async fn state_yaml(client: &ApiClient, state: &State, managed_fields: bool) -> Result<String> {
    let bytes = fetch_document(client, state.seq).await?;
    if bytes.is_empty() {
        bail!(
            "the deletion at {} has no document: it was found by comparing a list with the journal. Compare states before it",
            state.seq
        );
    }
    let mut document: Value = serde_json::from_slice(&bytes)?;
    if let (false, Some(metadata)) = (managed_fields, document["metadata"].as_object_mut()) {
        metadata.remove("managedFields");
    }
    print::yaml(&document)
}

fn state_title(state: &State) -> String {
    let (object, phase) = (&state.object, &state.status.phase);
    let at = ZoneArg::local_zone().show_time(state.observed_ms);
    format!("{}/{}  position {}, {at}, {phase}", object.kind, object.name, state.seq)
}

#[cfg(test)]
mod tests {
    use kubewitness_core::ObjectRef;

    use super::*;
    use crate::commands::api::testing;

    fn state(seq: Seq, uid: &str, change: Change) -> Arc<State> {
        let state = testing::state(seq, change);
        let object = ObjectRef { uid: uid.into(), ..(*state.object).clone() };
        Arc::new(State { object: object.into(), ..state })
    }

    fn chosen(states: &[Arc<State>], wanted: &[Seq]) -> Result<[Seq; 2]> {
        choose_states(states, wanted, "job/x").map(|two| two.map(|state| state.seq))
    }

    #[test]
    fn the_last_two_states_are_compared_or_those_that_are_named() {
        let mut late = (*state(9, "b", Change::Present)).clone();
        late.late = true;
        let states = [
            state(1, "a", Change::Present),
            state(2, "a", Change::Gone),
            state(4, "b", Change::Present),
            state(5, "b", Change::Gap),
            state(7, "b", Change::Present),
            late.into(),
        ];
        assert_eq!(chosen(&states, &[]).unwrap(), [4, 7], "gaps and late states are not the last ones");
        assert_eq!(chosen(&states, &[2]).unwrap(), [1, 2]);
        assert_eq!(chosen(&states, &[1, 9]).unwrap(), [1, 9]);
        assert_eq!(chosen(&states, &[7, 1]).unwrap(), [7, 1]);
        for (wrong, expected) in
            [(&[4][..], "first one of job/x"), (&[5, 7], "position 5"), (&[3, 7], "position 3")]
        {
            let error = chosen(&states, wrong).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse_positions(&words("12 15")).unwrap(), [12, 15]);
        assert!(parse_positions(&words("1 2 3")).is_err() && parse_positions(&words("x")).is_err());
    }

    #[tokio::test]
    async fn a_deletion_that_nobody_saw_leaves_the_last_two_versions_to_compare() {
        let states = || {
            vec![state(3, "a", Change::Present), state(5, "a", Change::Present), state(9, "a", Change::Gone)]
        };
        let seqs = async |client: &ApiClient| {
            let mut states = states();
            leave_out_unseen_end(client, &mut states, "job/x").await.unwrap();
            chosen(&states, &[]).unwrap()
        };
        let document = serde_json::json!({"metadata": {"name": "x"}});
        let seen = testing::client(move |_| document.clone()).await;
        assert_eq!(seqs(&seen).await, [5, 9]);
        let unseen = testing::client(|_| Value::Null).await;
        assert_eq!(seqs(&unseen).await, [3, 5]);
        let gone = states();
        let error = state_yaml(&unseen, &gone[2], false).await.unwrap_err().to_string();
        assert!(error.contains("the deletion at 9 has no document"), "{error}");
    }

    #[test]
    fn a_state_is_titled_with_its_position_time_and_phase() {
        let title = state_title(&state(4, "b", Change::Present));
        assert_eq!(title, format!("Job/x  position 4, {}, Running", ZoneArg::local_zone().show_time(0)));
    }
}

//! `kubewitness plugin replay`: what a plugin does with the states of a journal, or what two versions of it
//! do.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use kubewitness_core::config::{Mode, PluginSpec};
use kubewitness_core::{Seq, State};
use kubewitness_filter::CelFilter;
use kubewitness_journal::{ExportQuery, JournalLocation, OpeningProgress, read_states};

use super::run::to_try;
use super::trial::{self, HandedCall, PluginTrial, RecordedState, StandIns};
use super::{compare, subject};
use crate::cli::ReplayPluginArgs;
use crate::commands::journal::{host_of, must_be_known, place_hint, requested_states};
use crate::commands::print::note;
use crate::commands::print::progress::{self, ProgressUnit};
use crate::commands::{CommandEnd, CommandResult, print};
use crate::journal_place::journal_place;

/// The size of documents in memory at once.
const DOCUMENTS_BYTES: usize = 256 << 20;

pub async fn replay(args: ReplayPluginArgs) -> CommandResult {
    let place = journal_place(&args.at.journal, &args.at.data)?;
    let (subject, replies) = to_try(&args.tried).await?;
    let other = match &args.against {
        Some(path) => Some(subject::version_beside(&subject, path, args.tried.config.as_deref()).await?),
        None => None,
    };
    let query = requested_states(args.states, true);
    let found = find(&place, &query, &subject.spec, args.limit as usize).await?;
    let is_nothing = found.states.is_empty();
    if is_nothing {
        must_be_known(&place, &args.at.data, &query).await?;
        note!(
            "kubewitness: no state was handed over: look at the flags that choose states, and at the plugin's subscriptions"
        );
    }
    let redaction = host_of(&args.at.data)?.map(|host| host.redaction);
    let trial = |spec: &PluginSpec| {
        let recorded = StandIns::from_journal(found.states.clone());
        anyhow::Ok(PluginTrial {
            stand_ins: match args.tick {
                Some(after) => recorded.then_tick(spec, after.0)?,
                None => recorded,
            },
            replies: replies.clone(),
            redaction: redaction.clone(),
            is_measured: false,
        })
    };
    let tried = trial::run_trial(&subject, trial(&subject.spec)?).await?;
    if let Some(other) = other {
        let other = trial::run_trial(&other, trial(&subject.spec)?).await?;
        let end = compare::print_comparison(&args.output, tried, other, &found.undelivered_text())?;
        return Ok(if is_nothing { CommandEnd::Warned } else { end });
    }
    print::print_value(args.output, &tried.handed, |handed| {
        let each: String = handed.iter().map(|handed| handed.text() + "\n").collect();
        format!("{each}{}{}", summary_text(handed), found.undelivered_text())
    })?;
    Ok(match tried.handed.iter().all(HandedCall::is_done) {
        _ if is_nothing => CommandEnd::Warned,
        true => CommandEnd::Fine,
        false => CommandEnd::Failed,
    })
}

#[derive(Default)]
struct ReplayedStates {
    states: Vec<RecordedState>,
    bytes: usize,
    /// How many the subscription's mode and filter leave out.
    left_out: usize,
    /// Set if more states exist after this position and the limit is reached.
    more_after: Option<Seq>,
}

impl ReplayedStates {
    fn take(&mut self, state: &Arc<State>, document: Bytes, limit: usize) -> ControlFlow<()> {
        self.bytes += document.len();
        if self.states.len() == limit || self.bytes > DOCUMENTS_BYTES {
            self.more_after = self.states.last().map(|(state, _)| state.seq);
            return ControlFlow::Break(());
        }
        self.states.push((state.clone(), document));
        ControlFlow::Continue(())
    }

    /// The states that were not delivered, and why.
    fn undelivered_text(&self) -> String {
        let mut text = match self.left_out {
            0 => String::new(),
            left_out => format!("states that the subscription leaves out: {left_out}\n"),
        };
        if let Some(seq) = self.more_after {
            text.push_str(&format!(
                "There are more states: go on with `--after {seq}`, or give a larger --limit.\n"
            ));
        }
        text
    }
}

/// The states of the plugin's subscriptions. A component without a manifest gets all.
async fn find(
    place: &JournalLocation,
    query: &ExportQuery,
    spec: &PluginSpec,
    limit: usize,
) -> Result<ReplayedStates> {
    let wants = subscription_answer(spec)?;
    let (progress, mut found) = (OpeningProgress::default(), ReplayedStates::default());
    let take = |state: &Arc<State>, document: Option<Bytes>| {
        let document = document.unwrap_or_default();
        match wants(state, &document) {
            Some(true) => return found.take(state, document, limit),
            Some(false) => found.left_out += 1,
            None => {}
        }
        ControlFlow::Continue(())
    };
    let reading = read_states(place, query, &progress, take);
    let read = progress::with_progress("reading", ProgressUnit::States, || progress.now(), reading).await;
    read.with_context(|| place_hint("reading", place))?;
    Ok(found)
}

/// The answer of a subscription to a state; `None` without a subscription to its source.
type SubscriptionAnswer = Box<dyn Fn(&State, &[u8]) -> Option<bool> + Send + Sync>;

/// A state that the filter can't judge is delivered, as by the controller.
fn subscription_answer(spec: &PluginSpec) -> Result<SubscriptionAnswer> {
    if spec.subscribe.is_empty() {
        return Ok(Box::new(|_, _| Some(true)));
    }
    let compiled = spec.subscribe.iter().map(|subscribe| {
        let filter = subscribe.filter.as_deref().map(CelFilter::compile_filter).transpose();
        let filter = filter.map_err(|fault| anyhow!("the filter of `{}` {fault}", subscribe.source))?;
        anyhow::Ok((subscribe.source.clone(), subscribe.mode, filter))
    });
    let subscriptions = compiled.collect::<Result<Vec<_>>>()?;
    Ok(Box::new(move |state, document| {
        let (_, mode, filter) = subscriptions.iter().find(|(source, ..)| **source == *state.source)?;
        let fits = *mode != Mode::Transitions || state.is_transition();
        let document = Some(document).filter(|document| !document.is_empty());
        Some(fits && filter.as_ref().is_none_or(|filter| filter.wants_state(state, document).unwrap_or(true)))
    }))
}

fn summary_text(handed: &[HandedCall]) -> String {
    let effects: usize = handed.iter().map(|handed| handed.effects.len()).sum();
    let (ticks, states): (Vec<_>, Vec<_>) = handed.iter().partition(|handed| handed.is_tick());
    let done = states.iter().filter(|handed| handed.is_done()).count();
    let tick = match ticks.as_slice() {
        [] => "",
        [tick, ..] if tick.is_done() => "the tick after them: done\n",
        [..] => "the tick after them: not done\n",
    };
    format!(
        "states handed over: {}, done: {done}, not done: {}\n\
         {tick}calls with an effect, held back: {effects}. Nothing was sent, and nothing is kept.\n",
        states.len(),
        states.len() - done,
    )
}

#[cfg(test)]
mod tests {
    use kubewitness_core::{Change, ObjectRef, StateId, Status, Version};
    use serde_json::json;

    use super::*;

    fn spec(subscribe: &serde_json::Value) -> PluginSpec {
        serde_json::from_value(json!({"module": {"file": "p.wasm"}, "subscribe": subscribe})).unwrap()
    }

    fn state(source: &str, phase: &str, before: Option<&str>) -> State {
        let object = ObjectRef { kind: "Job".into(), name: "a".into(), ..ObjectRef::default() };
        let status = |phase: &str| Arc::new(Status { phase: phase.into(), ..Status::default() });
        let version = Version::new("1");
        State {
            id: StateId::of(source, 0, &object, Change::Present, &version, None),
            seq: 1,
            source: source.into(),
            epoch: 0,
            change: Change::Present,
            owner: None,
            object: Arc::new(object),
            resource_version: version,
            status: status(phase),
            previous: before.map(status),
            observed_ms: 1,
            late: false,
            quotes_none_under: None,
        }
    }

    #[test]
    fn a_replay_hands_over_what_the_subscription_wants() {
        let subscribe = json!([
            {"source": "jobs", "mode": "transitions"},
            {"source": "pods", "filter": "object.spec.nodeName == 'a'"},
        ]);
        let wants = subscription_answer(&spec(&subscribe)).unwrap();
        assert_eq!(wants(&state("jobs", "Running", Some("Pending")), b"{}"), Some(true));
        assert_eq!(wants(&state("jobs", "Running", Some("Running")), b"{}"), Some(false));
        assert_eq!(wants(&state("nodes", "Running", None), b"{}"), None, "it has no subscription");
        assert_eq!(wants(&state("pods", "Running", None), br#"{"spec":{"nodeName":"a"}}"#), Some(true));
        assert_eq!(wants(&state("pods", "Running", None), br#"{"spec":{"nodeName":"b"}}"#), Some(false));
        assert_eq!(wants(&state("pods", "Running", None), b"{}"), Some(true), "the filter can't judge it");
    }

    #[test]
    fn a_replay_takes_no_more_states_and_bytes_than_its_bounds() {
        let one = Arc::new(state("jobs", "Running", None));
        let mut found = ReplayedStates::default();
        assert!(found.take(&one, Bytes::new(), 2).is_continue());
        assert!(found.take(&one, Bytes::new(), 2).is_continue());
        assert!(found.take(&one, Bytes::new(), 2).is_break());
        assert_eq!((found.states.len(), found.more_after), (2, Some(1)));
        let mut found = ReplayedStates { bytes: DOCUMENTS_BYTES, ..ReplayedStates::default() };
        assert!(found.take(&one, Bytes::from_static(b"{}"), 2).is_break() && found.states.is_empty());
    }

    #[test]
    fn where_there_are_more_states_the_last_line_says_how_to_go_on() {
        assert_eq!(ReplayedStates::default().undelivered_text(), "");
        let found = ReplayedStates { left_out: 3, more_after: Some(17), ..ReplayedStates::default() };
        assert!(
            found.undelivered_text().contains("leaves out: 3")
                && found.undelivered_text().contains("`--after 17`")
        );
    }
}

//! `kubewitness wait`: waits for the end of one object, and says by its exit code how it ended.
//!
//! The stream opens before the story is requested, so no end falls between them. If it breaks, it resumes at
//! its position, so no end is missed meanwhile.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use kubewitness_core::status::phase;
use kubewitness_core::{Change, Seq, State};
use tokio::time::{Instant, timeout_at};

use super::once_open;
use super::stream::{LiveStates, RETRIES, RETRY_AFTER, StreamEvent};
use crate::cli::WaitArgs;
use crate::commands::api::client::{ApiClient, is_away};
use crate::commands::api::object_name::{
    ObjectName, fetch_story, namespace_or_context, nothing_witnessed_text,
};
use crate::commands::print::{self, clean_line, note};
use crate::commands::{CommandEnd, CommandResult};

/// The newest states suffice to know the object's phase. A few may be late and don't count.
const STATES: usize = 100;
/// The phases that are an end for every kind. The reason of a deletion has the phase before it.
const ENDS: [&str; 3] = [phase::SUCCEEDED, phase::FAILED, phase::CANCELLED];

/// The first state of an existing object arrives within seconds, unless nothing watches it.
const SEEN_WITHIN: Duration = Duration::from_secs(120);

pub async fn run_wait(args: WaitArgs) -> CommandResult {
    wait_until(args, None).await
}

/// Waits for an object that was created a moment ago.
pub async fn wait_for_new(args: WaitArgs) -> CommandResult {
    wait_until(args, Some(Instant::now() + SEEN_WITHIN)).await
}

async fn wait_until(args: WaitArgs, seen_by: Option<Instant>) -> CommandResult {
    let named = ObjectName::parse_only(&args.object)?;
    let client = ApiClient::reach_controller(&args.reach).await?;
    let namespace = namespace_or_context(args.namespace.as_deref(), &args.reach).await?;
    let mut waited = WaitProgress { seen_by, ..WaitProgress::new(named, namespace) };
    let over = {
        let waiting = waited.await_end(&client);
        match args.timeout {
            Some(timeout) => tokio::time::timeout(timeout.0, waiting).await.ok(),
            None => Some(waiting.await),
        }
    };
    match over.transpose()? {
        Some(phase) => {
            print::text(&format!("{}\n", clean_line(&phase)))?;
            Ok(if phase == phase::SUCCEEDED { CommandEnd::Fine } else { CommandEnd::Failed })
        }
        None => timed_out(&waited, args.timeout.map(|timeout| timeout.0).unwrap_or_default()),
    }
}

fn timed_out(waited: &WaitProgress, timeout: Duration) -> CommandResult {
    let (object, after) = (waited.object_label(), print::age_text(timeout.as_secs_f64()));
    match &waited.phase {
        Some(phase) => {
            print::text(&format!("{}\n", clean_line(phase)))?;
            note!("kubewitness: {object} has not ended within {after}: a longer --timeout waits on");
        }
        None => note!(
            "kubewitness: within {after}, nothing was witnessed of {object}: look at its kind, name and namespace"
        ),
    }
    Ok(CommandEnd::TimedOut)
}

/// The facts about the object so far.
struct WaitProgress {
    named: ObjectName,
    namespace: String,
    /// The newest examined position.
    seen: Seq,
    phase: Option<String>,
    /// The deadline for the first state of an object that exists but was not witnessed yet.
    seen_by: Option<Instant>,
}

impl WaitProgress {
    fn new(named: ObjectName, namespace: String) -> Self {
        Self { named, namespace, seen: 0, phase: None, seen_by: None }
    }

    fn object_label(&self) -> String {
        clean_line(&self.named.label_in(&self.namespace)).into_owned()
    }

    fn unseen_error(&self) -> anyhow::Error {
        anyhow!(
            "{} is created, and its first state was not witnessed within {}: `kubewitness status` says what the sources \
             watch and what holds them up",
            self.object_label(),
            print::age_text(SEEN_WITHIN.as_secs_f64())
        )
    }

    /// Returns the phase in which it ended.
    async fn await_end(&mut self, client: &ApiClient) -> Result<String> {
        let (mut live, over) = self.begin_waiting(client).await?;
        if let Some(phase) = over {
            return Ok(phase);
        }
        loop {
            let heard = match self.seen_by.filter(|_| self.phase.is_none()) {
                Some(by) => timeout_at(by, live.next()).await.map_err(|_| self.unseen_error())?,
                None => live.next().await,
            };
            let over = match heard? {
                StreamEvent::State(state, _) if self.named.is_object(&state.object, &self.namespace) => {
                    self.take_state(&state)
                }
                StreamEvent::State(..) | StreamEvent::Causes => None,
                StreamEvent::Replaced(_) => {
                    // Positions of another journal can't be compared.
                    self.seen = 0;
                    once_open(async || self.look_at_story(client).await).await?
                }
            };
            if let Some(phase) = over {
                return Ok(phase);
            }
        }
    }

    /// Opens the stream, then looks. If the controller goes away in between, the stream is opened again
    /// first.
    async fn begin_waiting<'c>(&mut self, client: &'c ApiClient) -> Result<(LiveStates<'c>, Option<String>)> {
        let mut tries = 0;
        loop {
            let begun = match LiveStates::open(client, None).await {
                Ok(live) => self.look_at_story(client).await.map(|over| (live, over)),
                Err(error) => Err(error),
            };
            match begun {
                Err(error) if is_away(&error) && tries < RETRIES => {
                    tries += 1;
                    tokio::time::sleep(RETRY_AFTER).await;
                    // If the pod can't be found yet, the next try reports that.
                    client.find_again().await.ok();
                }
                begun => return begun,
            }
        }
    }

    async fn look_at_story(&mut self, client: &ApiClient) -> Result<Option<String>> {
        let view = fetch_story(client, &self.named, &self.namespace, STATES).await?;
        let Some(newest) = newest_state(&view.states) else {
            let nothing = nothing_witnessed_text(client, &self.named, &self.namespace).await?;
            note!("kubewitness: {}; this command waits for it to appear", clean_line(&nothing));
            return Ok(None);
        };
        Ok(self.take_state(newest))
    }

    fn take_state(&mut self, state: &State) -> Option<String> {
        if state.late || state.change == Change::Gap || state.seq <= self.seen {
            return None;
        }
        self.seen = state.seq;
        let phase = &state.status.phase;
        let is_news = self.phase.as_ref() != Some(phase);
        self.phase = Some(phase.clone());
        let over = end_phase(state);
        if over.is_none() && is_news && io::stderr().is_terminal() {
            note!("waiting for {} to end: it is {}", self.object_label(), clean_line(phase));
        }
        if state.change == Change::Left {
            note!(
                "kubewitness: {} is no longer in its source, which does not show its end",
                clean_line(&self.object_label())
            );
        }
        over
    }
}

fn newest_state(states: &[Arc<State>]) -> Option<&State> {
    let counted = states.iter().filter(|state| !state.late && state.change != Change::Gap);
    counted.max_by_key(|state| state.seq).map(|state| &**state)
}

/// The phase in which an object ended; `None` while it runs. An object that was cleaned up after its end did
/// not fail because of that, so the phase before the deletion counts.
fn end_phase(state: &State) -> Option<String> {
    let status = &state.status;
    match state.change {
        Change::Gone => {
            let was_over = match &state.previous {
                Some(previous) => previous.terminal,
                None => ENDS.contains(&status.reason.as_str()),
            };
            Some(if was_over { status.reason.clone() } else { phase::DELETED.into() })
        }
        Change::Present if status.terminal => Some(status.phase.clone()),
        Change::Present | Change::Left | Change::Gap => None,
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::Status;
    use kubewitness_core::status::StatusRules;

    use super::*;
    use crate::commands::api::testing;

    fn state(seq: Seq, change: Change, phase: &str, terminal: bool) -> State {
        let status = Status { phase: phase.into(), terminal, ..Status::default() };
        let status = if change == Change::Gone { StatusRules::deleted_status(&status) } else { status };
        State { status: status.into(), ..testing::state(seq, change) }
    }

    #[test]
    fn an_object_that_was_cleaned_up_ended_as_it_did_before() {
        for (change, phase, terminal, ended) in [
            (Change::Present, "Running", false, None),
            (Change::Present, "Succeeded", true, Some("Succeeded")),
            (Change::Present, "Cancelled", true, Some("Cancelled")),
            (Change::Gone, "Succeeded", true, Some("Succeeded")),
            (Change::Gone, "Failed", true, Some("Failed")),
            (Change::Gone, "Running", false, Some("Deleted")),
            (Change::Left, "Succeeded", true, None),
        ] {
            assert_eq!(end_phase(&state(1, change, phase, terminal)).as_deref(), ended, "{change:?} {phase}");
        }
    }

    #[test]
    fn a_state_that_comes_late_or_again_ends_nothing() {
        let named = ObjectName::Object { kind: "job".into(), name: "x".into() };
        let mut waited = WaitProgress::new(named, "a".into());
        assert_eq!(waited.take_state(&state(7, Change::Present, "Running", false)), None);
        let mut late = state(8, Change::Present, "Failed", true);
        late.late = true;
        assert_eq!(waited.take_state(&late), None);
        assert_eq!(waited.take_state(&state(6, Change::Present, "Failed", true)), None);
        assert_eq!(waited.phase.as_deref(), Some("Running"));
        assert_eq!(
            waited.take_state(&state(9, Change::Present, "Succeeded", true)).as_deref(),
            Some("Succeeded")
        );
        let states =
            [state(7, Change::Gone, "Failed", true), state(9, Change::Present, "Running", false), late]
                .map(Arc::new);
        assert_eq!(
            newest_state(&states).map(|state| state.seq),
            Some(9),
            "a new object under an old name counts"
        );
    }
}

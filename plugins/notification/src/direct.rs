//! Without `channels`: posts each transition at once to the destination `people`, with the operator's JSON
//! template. Each state has its own request and verdict. If the template contains the cause of a bad end,
//! such a state is retried until its cause is known: its receiver gets one message, with the cause.

use std::collections::BTreeSet;

use kubewitness_sdk::http::{self, Request};
use kubewitness_sdk::{Change, Error, FieldError, State, Status, Verdict, clock, log};

use crate::answer::{self, SendAnswer};
use crate::config::Config;
use crate::facts::outcomes::{self, CauseState};
use crate::facts::{self, Facts};
use crate::mutes::StoredMutes;
use crate::report::{self, Report};
use crate::template;

/// The name of the destination in the manifest, where the operator gives its address.
pub const DESTINATION: &str = "people";
pub const KEY: &str = "idempotency-key";
/// The pause and the number of retries until a cause is known. The host looks for it after two seconds.
const CAUSE_AFTER_MS: u64 = 3_000;
const CAUSE_TRIES: u32 = 2;

pub fn check(config: &Config) -> Vec<FieldError> {
    template::check("template", &config.template, &[])
}

pub fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
    let (pointers, says_why) = (template::pointers(&config.template), template::says_why(&config.template));
    let mut down: Option<Verdict> = None;
    let mut reports = Vec::new();
    let mutes = match StoredMutes::read() {
        // Without the grant of `kv`, only the manifest can mute.
        Err(Error::Denied(_)) => StoredMutes::default(),
        Err(error) => return vec![Verdict::retry(error.text()); states.len()],
        Ok(mutes) => mutes,
    };
    let verdict = |state| {
        if !is_news(state) || !is_wanted(config, state) {
            return Verdict::Done;
        }
        let facts = facts::plain_facts(state);
        if let Some(by) = mutes.muted_by(&facts, "", DESTINATION) {
            reports.push(report(config, &facts, ("muted", &by)));
            return Verdict::Done;
        }
        // All states have the same destination. If it does not answer one request, the others are not tried.
        if let Some(down) = &down {
            return down.clone();
        }
        let request = match request(config, &pointers, state, says_why) {
            Ok(Some(request)) => Ok(request),
            Ok(None) => return Verdict::retry_after(CAUSE_AFTER_MS, "its cause is being looked for"),
            Err(error) => Err(error),
        };
        let answer = match request.and_then(|request| http::send(DESTINATION, &request)) {
            Ok(response) => answer::of_status(&response),
            Err(error) => {
                let lasting =
                    matches!(error, Error::Unavailable(_) | Error::Timeout(_) | Error::RateLimited(_));
                let answer = SendAnswer::from(error);
                down = lasting.then(|| answer.clone().into());
                answer
            }
        };
        reports.push(report(config, &facts, Report::result(&answer)));
        answer.into()
    };
    let verdicts = states.iter().map(verdict).collect();
    match report::keep_reports(&reports) {
        // Without the grant of `kv`, no results are shown.
        Ok(()) | Err(Error::Denied(_)) => {}
        Err(error) => log::warn(report::UNLISTED, &[("why", &error.text())]),
    }
    verdicts
}

fn report(config: &Config, facts: &Facts, what: (&'static str, &str)) -> Report {
    Report::of(config, facts, DESTINATION, what, report::title(facts), clock::now_ms())
}

/// Whether a state is a transition. The subscription may select every state or only transitions. A resync is
/// never news, even if its state was once a transition.
pub fn is_news(state: &State) -> bool {
    if state.is_resync() {
        return false;
    }
    let shown_part = |status: &Status| {
        (status.phase.clone(), status.reason.clone(), status.attempt, status.exit_code, status.terminal)
    };
    match state.change {
        Change::Present => {
            state.previous.as_ref().is_none_or(|previous| shown_part(previous) != shown_part(&state.status))
        }
        Change::Gone => true,
        // The object continues, or its state is unknown. Neither is a transition of its status.
        Change::Left | Change::Gap => false,
    }
}

fn is_wanted(config: &Config, state: &State) -> bool {
    config.phases.is_empty() || config.phases.iter().any(|wanted| wanted == facts::phase(state))
}

/// `None` if the cause will be known soon.
fn request(
    config: &Config,
    pointers: &BTreeSet<String>,
    state: &State,
    says_why: bool,
) -> Result<Option<Request>, Error> {
    let mut facts = facts::facts_of(state, pointers)?;
    if says_why
        && outcomes::add(&mut facts) == CauseState::Pending
        && state.attempt <= CAUSE_TRIES
        && clock::now_ms().saturating_sub(state.observed_ms) < outcomes::PATIENCE_MS
    {
        return Ok(None);
    }
    let body = template::fill(&config.template, &facts);
    let body = serde_json::to_vec(&body).map_err(|error| Error::Invalid(error.to_string()))?;
    let mut headers = vec![
        ("content-type".to_string(), "application/json".to_string()),
        (KEY.to_string(), state.id.clone()),
    ];
    headers.extend(config.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    Ok(Some(Request { method: "POST".to_string(), path: config.path.clone(), headers, body }))
}

//! The object's state at a past moment, and how certain it is.

use std::sync::Arc;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::kinds::is_event;
use kubewitness_core::{Change, State as Witnessed, calendar};
use maud::{Markup, html};

use crate::answer::{Problem, time};
use crate::pages::parts::{encode, render_phase_badge, render_time};

/// A field for a time, and the answer if one was given.
pub(super) fn render_moment_field(
    states: &[Arc<Witnessed>],
    asked: Option<&str>,
    uid: &str,
) -> Result<Markup, Problem> {
    let at_ms = asked.map(|text| {
        let moment = calendar::parse_rfc3339_ms(&time::normalize_typed_time(text));
        moment.ok_or_else(|| {
            Problem::invalid_request(
                format!("`{text}` is no time."),
                "Write it like 2026-11-24 03:00, in UTC.",
            )
        })
    });
    let at_ms = at_ms.transpose()?;
    if at_ms.is_some_and(|at_ms| at_ms > SystemClock::default().now_ms()) {
        let message = format!("`{}` is in the future.", asked.unwrap_or_default());
        return Err(Problem::invalid_request(
            message,
            "Take a time that has passed; times are UTC unless they name a zone.",
        ));
    }
    Ok(html! {
        form.filters.moment method="get" action={ "/objects/" (encode(uid)) } {
            label { span { "As it was at (UTC)" } input name="at" data-utc value=[asked] placeholder="2026-11-24 03:00" autocomplete="off"; }
            button { "Look" }
        }
        @if let Some(at_ms) = at_ms { (render_moment_answer(states, at_ms)) }
    })
}

fn is_in_turn(state: &Witnessed) -> bool {
    state.change != Change::Gap && !state.late
}

fn render_moment_answer(states: &[Arc<Witnessed>], at_ms: u64) -> Markup {
    let found = states.iter().rposition(|state| is_in_turn(state) && state.observed_ms <= at_ms);
    let Some(index) = found else {
        return html! {
            p.notice role="status" { "No state from before " (render_time(at_ms)) " is on this page. It was not there yet, retention took its states, or they are older than those of the page." }
        };
    };
    let state = &states[index];
    let next = states[index + 1..].iter().position(|state| is_in_turn(state)).map(|after| index + 1 + after);
    let between = &states[index + 1..next.unwrap_or(states.len())];
    let is_missing = between.iter().any(|state| state.change == Change::Gap);
    let is_late = states[index + 1..].iter().any(|found| {
        let is_before = |next: usize| states[next].resource_version.is_newer_than(&found.resource_version);
        found.late
            && found.resource_version.is_newer_than(&state.resource_version)
            && next.is_none_or(is_before)
    });
    html! {
        p.done role="status" {
            "At " (render_time(at_ms)) " it was "
            @match state.change {
                Change::Gone => { "gone, since " (render_time(state.observed_ms)) ". " }
                Change::Left => { "no longer watched, since " (render_time(state.observed_ms)) ". " }
                Change::Present | Change::Gap => {
                    @if is_event(&state.object.group, &state.object.kind) { "there" } @else { (render_phase_badge(&state.status.phase)) }
                    ", as observed at " (render_time(state.observed_ms)) ". "
                }
            }
            a href={ "/states/" (state.seq) } { "Its document then" }
        }
        @if is_missing || is_late {
            p.notice role="status" {
                "Between " (render_time(state.observed_ms)) " and " @match next { Some(next) => (render_time(states[next].observed_ms)), None => "now" }
                @if is_missing { " versions are missing" } @else { " versions were read back later" }
                ": it may have had one of them."
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use kubewitness_core::{ObjectRef, StateId, Status, Version};

    use super::*;

    pub(in crate::pages::object) fn state(
        second: u64,
        version: &str,
        change: Change,
        late: bool,
    ) -> Arc<Witnessed> {
        Arc::new(Witnessed {
            id: StateId::parse("x"),
            seq: second,
            source: "jobs".into(),
            epoch: 0,
            change,
            object: Arc::new(ObjectRef::default()),
            owner: None,
            resource_version: Version::new(version),
            status: Arc::new(Status { phase: "Running".into(), ..Status::default() }),
            previous: None,
            observed_ms: second * 1000,
            late,
            quotes_none_under: None,
        })
    }

    #[test]
    fn a_moment_is_told_with_what_is_missing_around_it() {
        let states = [
            state(10, "1", Change::Present, false),
            state(20, "5", Change::Gap, false),
            state(21, "5", Change::Present, false),
            state(30, "9", Change::Present, false),
            state(40, "7", Change::Present, true),
            state(50, "", Change::Gone, false),
        ];
        let told = |second: u64| render_moment_answer(&states, second * 1000).into_string();
        assert!(told(5).contains("No state from before"));
        assert!(told(15).contains("/states/10") && told(15).contains("versions are missing"));
        assert!(told(25).contains("/states/21") && told(25).contains("were read back later"));
        assert!(told(35).contains("/states/30") && !told(35).contains("may have had"), "{}", told(35));
        assert!(told(60).contains("gone, since"));
        assert!(render_moment_field(&states, Some("soon"), "u").is_err());
    }
}

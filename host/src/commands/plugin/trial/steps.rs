//! The order of a trial: states, and ticks between them. In a file of objects, a document `tick: next` or
//! `tick: 2026-01-01T08:00:00Z` is a tick.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::State;
use kubewitness_core::calendar;
use kubewitness_core::config::{PluginSpec, TickSpec};
use serde_json::Value;

/// The word for the next moment of the schedule.
pub const NEXT: &str = "next";

pub enum TrialStep {
    State(Arc<State>),
    Tick { due_ms: u64, timeout: Duration },
}

impl TrialStep {
    pub fn at_ms(&self) -> u64 {
        match self {
            Self::State(state) => state.observed_ms,
            Self::Tick { due_ms, .. } => *due_ms,
        }
    }
}

/// In the form of a file.
#[cfg(test)]
pub fn next_tick() -> crate::commands::object_files::ObservedObject {
    crate::commands::object_files::ObservedObject {
        object: serde_json::json!({"tick": NEXT}),
        is_gone: false,
    }
}

/// The time of a tick, if the document is one.
pub fn tick_of(document: &Value) -> Option<&Value> {
    document.as_object().filter(|document| document.len() == 1)?.get("tick")
}

/// A tick after `now_ms`, at a moment of the manifest's schedule.
pub fn tick_step(spec: &PluginSpec, when: &Value, now_ms: u64) -> Result<TrialStep> {
    let Some(tick) = spec.tick else {
        bail!(
            "there is a tick, and the plugin is never called on a schedule: export `ticker`, and add `spec.tick` to the \
             manifest, such as `tick: {{every: 30s}}`"
        );
    };
    let next = first_multiple_after(tick, now_ms);
    let due_ms = match when.as_str() {
        Some(NEXT) => next,
        moment => moment.and_then(calendar::parse_rfc3339_ms).with_context(|| {
            format!("`tick: {when}`: write `tick: {NEXT}`, or a moment such as `tick: 2026-01-01T08:00:00Z`")
        })?,
    };
    let time_text = |ms| calendar::format_rfc3339(ms);
    ensure!(
        due_ms > now_ms && first_multiple_after(tick, due_ms - 1) == due_ms,
        "the schedule `every: {}` has no tick at {} after {}: the next is at {}, which is `tick: {NEXT}`",
        tick.every,
        time_text(due_ms),
        time_text(now_ms),
        time_text(next),
    );
    Ok(TrialStep::Tick { due_ms, timeout: tick.timeout_or_default() })
}

/// The first multiple of the pause after a time, as in the controller.
fn first_multiple_after(tick: TickSpec, now_ms: u64) -> u64 {
    let every = u64::try_from(tick.every.0.as_millis()).unwrap_or(u64::MAX).max(1);
    (now_ms / every).saturating_add(1).saturating_mul(every)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_767_225_600_500;

    fn spec(tick: &Value) -> PluginSpec {
        serde_json::from_value(json!({"module": {"file": "p.wasm"}, "subscribe": [], "tick": tick})).unwrap()
    }

    fn due(when: &Value) -> Result<String> {
        match tick_step(&spec(&json!({"every": "30s"})), when, NOW)? {
            TrialStep::Tick { due_ms, .. } => Ok(calendar::format_rfc3339(due_ms)),
            TrialStep::State(_) => bail!("it is no tick"),
        }
    }

    #[test]
    fn a_tick_is_at_the_next_moment_of_the_schedule_or_at_one_that_is_named() {
        assert_eq!(due(&json!("next")).unwrap(), "2026-01-01T00:00:30.000Z");
        assert_eq!(due(&json!("2026-01-01T08:00:00Z")).unwrap(), "2026-01-01T08:00:00.000Z");
    }

    #[test]
    fn a_moment_that_the_schedule_does_not_have_is_refused_with_the_next_one() {
        for (when, why) in [
            (json!("2026-01-01T08:00:10Z"), "`every: 30s` has no tick at 2026-01-01T08:00:10.000Z"),
            (json!("2026-01-01T00:00:00Z"), "the next is at 2026-01-01T00:00:30.000Z"),
            (json!("tomorrow"), "write `tick: next`"),
            (json!(7), "write `tick: next`"),
        ] {
            let error = due(&when).unwrap_err().to_string();
            assert!(error.contains(why), "{when}: {error}");
        }
        let error = tick_step(&spec(&Value::Null), &json!("next"), NOW).err().unwrap().to_string();
        assert!(error.contains("add `spec.tick` to the manifest"), "{error}");
    }

    #[test]
    fn an_object_with_other_fields_is_no_tick() {
        assert_eq!(tick_of(&json!({"tick": "next"})), Some(&json!("next")));
        assert_eq!(tick_of(&json!({"tick": "next", "kind": "Job"})), None);
        assert_eq!(tick_of(&json!(["tick"])), None);
        assert_eq!(tick_of(&next_tick().object), Some(&json!("next")));
    }
}

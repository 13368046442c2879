//! Logs each job that comes to a phase of your choice.

use kubewitness_sdk::{Change, FieldError, Plugin, State, Verdict, log};

/// `spec.config` of the manifest.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    phase: String,
}

struct Shout;

impl Plugin for Shout {
    const NAME: &'static str = "{{name}}";
    type Config = Config;

    fn check(config: &Config) -> Vec<FieldError> {
        if config.phase.is_empty() { vec![FieldError::new("phase", "is empty")] } else { vec![] }
    }

    /// One verdict for each state, in the same order.
    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        for state in states {
            if state.change == Change::Present && state.status.phase == config.phase {
                log::warn("a job needs you", &[("job", &state.object.name), ("why", &state.status.reason)]);
            }
        }
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Shout);

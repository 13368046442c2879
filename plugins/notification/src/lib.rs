//! Posts JSON to a destination at each transition of an object's status, so that the person who waits for a
//! job hears of it. The operator writes the template of the JSON.
//!
//! It needs the grant `http: [{name: people, …}]`. Each state has its own request and verdict. The request
//! carries the state's id as `Idempotency-Key`, so that a receiver can recognize a repeat.

mod answer;
mod template;

use std::collections::BTreeMap;

use kubewitness_sdk::http::{self, Request};
use kubewitness_sdk::{About, Change, Error, FieldError, Plugin, State, Verdict};
use serde::Deserialize;
use serde_json::Value;

/// The plugin's name for its destination. The operator says where that is.
const DESTINATION: &str = "people";
const KEY: &str = "idempotency-key";
/// The headers that the plugin sets itself.
const OWN_HEADERS: [&str; 2] = [KEY, "content-type"];

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A path below the destination's address.
    path: String,
    template: Value,
    /// Only these phases; all if it is empty.
    phases: Vec<String>,
    headers: BTreeMap<String, String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            path: String::new(),
            template: template::standard(),
            phases: Vec::new(),
            headers: BTreeMap::new(),
        }
    }
}

pub struct Notification;

impl Plugin for Notification {
    const NAME: &'static str = "notification";
    type Config = Config;

    fn about() -> About {
        About {
            config_schema: include_str!("config.schema.json"),
            needs: vec![format!("http:{DESTINATION}")],
        }
    }

    fn check(config: &Config) -> Vec<FieldError> {
        let mut faults = template::check(&config.template);
        let own = |name: &&String| OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str());
        for name in config.headers.keys().filter(own) {
            faults.push(FieldError::new(format!("headers.{name}"), "is set by the plugin itself"));
        }
        if config.path.split('/').any(|segment| segment == "..") {
            faults.push(FieldError::new("path", "leaves the destination"));
        }
        faults
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        let mut down: Option<Verdict> = None;
        let verdict = |state| {
            if !is_news(config, state) {
                return Verdict::Done;
            }
            // All states have the same destination. If it did not answer one request, the others need not
            // wait for it.
            if let Some(down) = &down {
                return down.clone();
            }
            match send(config, state) {
                Ok(response) => answer::verdict(&response),
                Err(error) => {
                    let lasting =
                        matches!(error, Error::Unavailable(_) | Error::Timeout(_) | Error::RateLimited(_));
                    let verdict = Verdict::from(error);
                    down = lasting.then(|| verdict.clone());
                    verdict
                }
            }
        };
        states.iter().map(verdict).collect()
    }
}

kubewitness_sdk::export!(Notification);

/// Whether a state is a transition. The subscription may have every state or only transitions. A resync is
/// never news, even if its state was once a transition.
fn is_news(config: &Config, state: &State) -> bool {
    if state.is_resync() {
        return false;
    }
    let told = |status: &kubewitness_sdk::Status| {
        (status.phase.clone(), status.reason.clone(), status.attempt, status.exit_code, status.terminal)
    };
    let changed = match state.change {
        Change::Present => {
            state.previous.as_ref().is_none_or(|previous| told(previous) != told(&state.status))
        }
        Change::Gone => true,
        // The object goes on, or nothing is known. Neither is a transition of its status.
        Change::Left | Change::Gap => false,
    };
    let phase = template::phase(state);
    changed && (config.phases.is_empty() || config.phases.iter().any(|wanted| wanted == phase))
}

fn send(config: &Config, state: &State) -> Result<http::Response, Error> {
    let body = template::fill(&config.template, state);
    let body = serde_json::to_vec(&body).map_err(|error| Error::Invalid(error.to_string()))?;
    let mut headers = vec![
        ("content-type".to_string(), "application/json".to_string()),
        (KEY.to_string(), state.id.clone()),
    ];
    headers.extend(config.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    http::send(DESTINATION, &Request { method: "POST".to_string(), path: config.path.clone(), headers, body })
}

#[cfg(test)]
mod tests;

//! Writes one e-mail about the jobs that failed since the last one, on the schedule of the manifest.
//!
//! A failure is noted in `kv` when its state arrives. A tick writes the message and removes the notes. Both
//! commit together with the call, so a crash loses no failure. It may send a message twice, with the same id.

use kubewitness_sdk::mail::{self, Message};
use kubewitness_sdk::{About, Change, Error, FieldError, Plugin, State, Ticking, Verdict, kv, log};
use serde::{Deserialize, Serialize};

/// The most failures in one message. Further ones follow in the next one.
const MOST: u32 = 200;
/// The prefix of the notes' keys.
const NOTES: &str = "failed/";
const SERVER: &str = "people";

/// `spec.config` of the manifest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    to: Vec<String>,
}

/// The facts about a job in the message.
#[derive(Serialize, Deserialize)]
struct Failure {
    job: String,
    why: String,
}

struct Digest;

impl Plugin for Digest {
    const NAME: &'static str = "digest";
    type Config = Config;

    fn about() -> About {
        let needs = ["kv", "mail:people", "tick"];
        About { needs: needs.map(str::to_string).to_vec(), ..About::default() }
    }

    fn check(config: &Config) -> Vec<FieldError> {
        if config.to.is_empty() { vec![FieldError::new("to", "names nobody to write to")] } else { vec![] }
    }

    fn handle(_: &Config, states: &[State]) -> Vec<Verdict> {
        let noted = |state| note(state).map_or_else(Verdict::from, |()| Verdict::Done);
        states.iter().map(noted).collect()
    }
}

impl Ticking for Digest {
    fn tick(config: &Config, due_ms: u64) -> Result<(), String> {
        let keys = kv::keys(NOTES, MOST)?;
        if keys.is_empty() {
            return Ok(());
        }
        let mut failures = Vec::with_capacity(keys.len());
        for key in &keys {
            failures.extend(kv::get(key)?.and_then(|note| serde_json::from_slice(&note).ok()));
        }
        for refused in mail::send(SERVER, &message(config, &failures, due_ms))? {
            log::warn("not delivered", &[("to", &refused.recipient), ("why", &refused.reason)]);
        }
        for key in &keys {
            kv::delete(key)?;
        }
        Ok(())
    }
}

kubewitness_sdk::export!(Digest, tick);

fn note(state: &State) -> Result<(), Error> {
    if state.change != Change::Present || state.status.phase != "Failed" {
        return Ok(());
    }
    let job = format!("{}/{}", state.object.namespace, state.object.name);
    let why = if state.status.message.is_empty() { &state.status.reason } else { &state.status.message };
    let note = Failure { job, why: why.clone() };
    let note = serde_json::to_vec(&note).map_err(|error| Error::Invalid(error.to_string()))?;
    kv::set(&format!("{NOTES}{}", state.object.uid), &note)
}

fn message(config: &Config, failures: &[Failure], due_ms: u64) -> Message {
    let lines = failures.iter().map(|Failure { job, why }| format!("{job}: {why}\n"));
    let number = failures.len();
    let jobs = if number == 1 { "1 job has failed".to_string() } else { format!("{number} jobs have failed") };
    let id = format!("digest/{due_ms}");
    Message { to: config.to.clone(), subject: jobs, text: lines.collect(), html: None, id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_line_for_each_job_and_the_same_id_for_a_repeat() {
        let config = Config { to: vec!["a@example.com".to_string()] };
        let failure = Failure { job: "team/train".to_string(), why: "out of memory".to_string() };
        let message = message(&config, &[failure], 7);
        assert_eq!((message.subject.as_str(), message.id.as_str()), ("1 job has failed", "digest/7"));
        assert_eq!(message.text, "team/train: out of memory\n");
    }
}

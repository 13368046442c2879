//! A guest that executes a test's commands: the `status.message` of each state is a command. Its result goes
//! to the log as `command` and `answer`. One programmable guest replaces a separate component for each test,
//! which would have to be compiled.
//!
//! It is for tests only, and is not shipped. It imports every capability, and its own checks take their
//! faults from the configuration.

mod capabilities;
mod harm;

use kubewitness_sdk::{About, Change, FieldError, ObjectRef, Plugin, State, Status, Ticking, Verdict, log};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    /// The faults that `check` returns.
    #[serde(default)]
    faults: Vec<Fault>,
    /// The command for states without one.
    #[serde(default)]
    command: String,
    /// The commands of a tick.
    #[serde(default)]
    tick: Vec<String>,
}

#[derive(Deserialize)]
struct Fault {
    path: String,
    message: String,
}

struct Probe;

impl Plugin for Probe {
    const NAME: &'static str = "probe";
    type Config = Config;

    fn about() -> About {
        About {
            config_schema: r#"{"type":"object"}"#,
            needs: vec!["kv".to_string(), "sql:main".to_string()],
            may_need: vec!["outcomes".to_string()],
            ..About::default()
        }
    }

    fn check(config: &Config) -> Vec<FieldError> {
        config.faults.iter().map(|fault| FieldError::new(&fault.path, &fault.message)).collect()
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(states.len());
        for state in states {
            let command =
                if state.status.message.is_empty() { &config.command } else { &state.status.message };
            match command.as_str() {
                "missing" => {}
                _ => verdicts.push(obey_command(command, state)),
            }
        }
        verdicts
    }
}

impl Ticking for Probe {
    /// Executes its commands as if for a state of this moment; `fail WHY` ends it.
    fn tick(config: &Config, due_ms: u64) -> Result<(), String> {
        for command in &config.tick {
            if let Some(why) = command.strip_prefix("fail ") {
                return Err(why.to_string());
            }
            obey_command(command, &tick_occasion(due_ms));
        }
        Ok(())
    }
}

kubewitness_sdk::export!(Probe, tick);

/// Stands for a state in a tick.
fn tick_occasion(due_ms: u64) -> State {
    let object = ObjectRef {
        group: String::new(),
        version: String::new(),
        kind: "Tick".to_string(),
        namespace: String::new(),
        name: "tick".to_string(),
        uid: String::new(),
    };
    let status = Status {
        phase: String::new(),
        reason: String::new(),
        message: String::new(),
        terminal: false,
        attempt: 0,
        ready: 0,
        total: 0,
        exit_code: None,
    };
    State {
        id: format!("tick/{due_ms}"),
        seq: 0,
        source: String::new(),
        change: Change::Present,
        object,
        owner: None,
        resource_version: String::new(),
        status,
        previous: None,
        observed_ms: due_ms,
        attempt: 1,
        extra: Vec::new(),
    }
}

/// Runs a command. Its first word is the command's name.
fn obey_command(command: &str, state: &State) -> Verdict {
    let mut words = command.split(' ');
    let name = words.next().unwrap_or_default();
    let words: Vec<&str> = words.collect();
    match (name, words.as_slice()) {
        ("" | "done", _) => return Verdict::Done,
        ("retry", [reason]) => return Verdict::retry(*reason),
        ("retry", [reason, after]) => return Verdict::retry_after(number(after), *reason),
        ("reject", [reason]) => return Verdict::reject(*reason),
        ("other", [word]) => return Verdict::Other((*word).to_string()),
        _ => {}
    }
    let answer = harm::obey_command(name, &words)
        .or_else(|| capabilities::obey_command(name, &words, state))
        .unwrap_or_else(|| format!("no such command: {command}"));
    log::info("probe", &[("command", command), ("answer", &answer)]);
    Verdict::Done
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_sdk::testing;

    #[test]
    fn verdicts_are_as_commanded() {
        let state = testing::state(1, "a", "Running");
        assert_eq!(obey_command("done", &state), Verdict::Done);
        assert_eq!(obey_command("retry busy 50", &state), Verdict::retry_after(50, "busy"));
        assert_eq!(obey_command("reject broken", &state), Verdict::reject("broken"));
    }
}

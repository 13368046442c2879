//! A guest that misbehaves on request, for tests of the host. The `status.message` of each state is a
//! command. Its result goes to the log as `command` and `answer`.
//!
//! It imports every capability, and its own checks take their faults from the configuration.

mod capabilities;
mod harm;

use kubewitness_sdk::{About, FieldError, Plugin, State, Verdict, log};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    /// The faults that `check` returns.
    #[serde(default)]
    faults: Vec<Fault>,
    /// The command for states without one.
    #[serde(default)]
    command: String,
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
        harm::hangs_in("describe");
        About { config_schema: r#"{"type":"object"}"#, needs: vec!["kv".to_string(), "sql:main".to_string()] }
    }

    fn check(config: &Config) -> Vec<FieldError> {
        harm::hangs_in("check");
        config.faults.iter().map(|fault| FieldError::new(&fault.path, &fault.message)).collect()
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(states.len());
        for state in states {
            let command =
                if state.status.message.is_empty() { &config.command } else { &state.status.message };
            match command.as_str() {
                "missing" => {}
                "double" => verdicts.extend([Verdict::Done, Verdict::Done]),
                _ => verdicts.push(obey(command, state)),
            }
        }
        verdicts
    }
}

kubewitness_sdk::export!(Probe);

/// Runs a command. Its first word is the command's name.
fn obey(command: &str, state: &State) -> Verdict {
    let mut words = command.split(' ');
    let name = words.next().unwrap_or_default();
    let words: Vec<&str> = words.collect();
    match (name, words.as_slice()) {
        ("" | "done", _) => return Verdict::Done,
        ("retry", [reason]) => return Verdict::retry(*reason),
        ("retry", [reason, after]) => return Verdict::retry_after(number(after), *reason),
        ("reject", [reason]) => return Verdict::reject(*reason),
        ("reject-giant", [mebibytes]) => {
            return Verdict::reject("x".repeat((number(mebibytes) << 20) as usize));
        }
        ("other", [word]) => return Verdict::Other((*word).to_string()),
        _ => {}
    }
    let answer = harm::obey(name, &words)
        .or_else(|| capabilities::obey(name, &words, state))
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
        assert_eq!(obey("done", &state), Verdict::Done);
        assert_eq!(obey("retry busy 50", &state), Verdict::retry_after(50, "busy"));
        assert_eq!(obey("reject broken", &state), Verdict::reject("broken"));
    }
}

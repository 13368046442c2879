//! A guest that sends the messages in its configuration, for each state and in each tick.
//!
//! Tests of the mail capability need a plugin that sends exactly what the test says, to any server and in any
//! number; the notification plugin decides by its own rules. The host's answer to each message goes to the
//! log as `server` and `answer`, where a test can read it.

/// The plugin of the tutorial. It is here so that the tutorial's code compiles, and not in the SDK, which is built outside of
/// this repository, too.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/tutorial.md")]
mod tutorial {}

use kubewitness_sdk::mail::{self, Message};
use kubewitness_sdk::{Error, Plugin, State, Ticking, Verdict, log};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    messages: Vec<Letter>,
}

#[derive(Deserialize)]
struct Letter {
    server: String,
    to: Vec<String>,
    #[serde(default)]
    subject: String,
    /// How long the text is.
    #[serde(default)]
    bytes: usize,
}

struct Mailer;

impl Plugin for Mailer {
    const NAME: &'static str = "mailer";
    type Config = Config;

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        for state in states {
            write(config, &state.object.name, &state.id);
        }
        vec![Verdict::Done; states.len()]
    }
}

impl Ticking for Mailer {
    fn tick(config: &Config, due_ms: u64) -> Result<(), String> {
        write(config, "tick", &format!("tick/{due_ms}"));
        Ok(())
    }
}

kubewitness_sdk::export!(Mailer, tick);

fn write(config: &Config, about: &str, id: &str) {
    for Letter { server, to, subject, bytes } in &config.messages {
        let message = Message {
            to: to.clone(),
            subject: format!("{about}{subject}"),
            text: "x".repeat(*bytes),
            html: None,
            id: id.to_string(),
        };
        let answer = answer_text(mail::send(server, &message));
        log::info("mailer", &[("server", server), ("answer", &answer)]);
    }
}

fn answer_text(answer: Result<Vec<mail::Refusal>, Error>) -> String {
    let refusals = match answer {
        Ok(refusals) => refusals,
        Err(error) => return error.text(),
    };
    let each = refusals.iter().map(|it| {
        let when = if it.permanent { "for good" } else { "for now" };
        format!("{} {when}: {}", it.recipient, it.reason)
    });
    format!("refused: [{}]", each.collect::<Vec<_>>().join(", "))
}

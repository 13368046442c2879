//! Notifies the people who wait for a job of its outcome.
//!
//! A message for every state would flood people after an outage, and sending inside a call would delay all
//! states for one slow channel. So with `channels`, a call only notes the news, and a tick sends it
//! ([`telling`]): through Slack, Feishu, DingTalk, WeCom, e-mail, Alertmanager, CloudEvents or any webhook,
//! as rarely as possible. A message is remembered until each recipient has it or it is given up, and its
//! result is reported. Without `channels` each transition is posted as JSON to the destination `people`
//! ([`direct`]).

mod answer;
mod channels;
mod check;
mod config;
mod decide;
mod direct;
mod facts;
mod stored;
mod telling;
mod template;

use kubewitness_sdk::{About, FieldError, Plugin, State, Ticking, Verdict};
use stored::{mutes, report};

pub use config::Config;

pub struct Notification;

impl Plugin for Notification {
    const NAME: &'static str = "notification";
    type Config = Config;

    fn about() -> About {
        About {
            config_schema: include_str!(concat!(env!("OUT_DIR"), "/schema.json")),
            needs_with: vec![("channels", vec!["kv".into(), "tick".into()])],
            needs_without: vec![("channels", vec![format!("http:{}", direct::DESTINATION)])],
            may_need: vec!["mail".into(), "kv".into(), "outcomes".into()],
            ..About::default()
        }
    }

    fn check(config: &Config) -> Vec<FieldError> {
        check::check(config)
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        if config.is_direct() { direct::handle(config, states) } else { telling::handle(config, states) }
    }
}

impl Ticking for Notification {
    fn tick(config: &Config, _: u64) -> Result<(), String> {
        telling::tick(config)
    }
}

kubewitness_sdk::export!(Notification, tick);

#[cfg(test)]
mod tests;

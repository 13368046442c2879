//! The effects of a plugin in a trial, and the answers to them.

use kubewitness_core::ports::MailRefusal;
use ring::digest::{Context, Digest, SHA256};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The answer to a request or a message: each takes the next one of its own kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TrialReply {
    Http(HttpReply),
    Mail(MailReply),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpReply {
    pub status: u16,
    #[serde(default)]
    pub body: String,
}

/// The recipients that the mail server refuses. It accepts the message for the others.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailReply {
    pub refused: Vec<RefusedReply>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedReply {
    pub recipient: String,
    #[serde(default)]
    pub permanent: bool,
    #[serde(default)]
    pub reason: String,
}

impl From<RefusedReply> for MailRefusal {
    fn from(RefusedReply { recipient, permanent, reason }: RefusedReply) -> Self {
        Self { recipient, is_permanent: permanent, reason }
    }
}

/// One call that had an effect, or would have had one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrialEffect {
    pub call: &'static str,
    /// The plugin's name for the target (a database, a destination, a ledger, a key), or the level of a log
    /// line.
    pub to: String,
    #[serde(flatten)]
    pub what: Map<String, Value>,
    /// Why the controller refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The effects of one call. All are counted, and the first are kept.
pub struct NotedEffects {
    pub effects: Vec<TrialEffect>,
    pub count: usize,
    /// The size of all effects, as JSON.
    pub bytes: usize,
    digest: Context,
}

impl Default for NotedEffects {
    fn default() -> Self {
        Self { effects: Vec::new(), count: 0, bytes: 0, digest: Context::new(&SHA256) }
    }
}

impl NotedEffects {
    /// `most` is the number of bytes that are kept.
    pub fn add(&mut self, effect: TrialEffect, most: usize) {
        // A map of JSON values is always JSON.
        let text = serde_json::to_vec(&effect).unwrap_or_default();
        self.digest.update(&text);
        self.digest.update(b"\n");
        self.count += 1;
        self.bytes += text.len();
        if self.bytes <= most {
            self.effects.push(effect);
        }
    }

    /// Equal for the same effects in the same order, however many.
    pub fn digest(&self) -> Digest {
        self.digest.clone().finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(calls: &[&'static str], most: usize) -> NotedEffects {
        let mut noted = NotedEffects::default();
        for call in calls {
            let effect = TrialEffect { call, to: "a".into(), what: Map::new(), refused: None };
            noted.add(effect, most);
        }
        noted
    }

    #[test]
    fn the_first_effects_are_kept_and_all_are_compared() {
        let (one, other) = (noted(&["log", "kv.set"], 30), noted(&["log", "kv.get"], 30));
        assert_eq!((one.effects.len(), one.count), (1, 2));
        assert_eq!(one.effects, other.effects);
        assert_ne!(one.digest().as_ref(), other.digest().as_ref());
        assert_eq!(one.digest().as_ref(), noted(&["log", "kv.set"], 1000).digest().as_ref());
    }
}

//! The mutes that people set in the portal. The host keeps the list, and shows it under a key of `kv`.

use kubewitness_sdk::{Error, kv};
use serde_json::Value;

use crate::facts::{self, Facts, text};

const KEY: &str = "kubewitness.dev/mutes";

/// A mute has the `uid` of an object or a `namespace`; without either it applies to everything. It applies to
/// the recipient `to`, or without it to all. `who` and `at` are its author and its time. The mutes stay JSON:
/// a type of their own would add 5 KB to the component.
#[derive(Debug, Default)]
pub struct StoredMutes(Vec<Value>);

impl StoredMutes {
    pub fn read() -> Result<Self, Error> {
        let Some(bytes) = kv::get(KEY)? else { return Ok(Self::default()) };
        match facts::read(&bytes) {
            Ok(Value::Array(mutes)) => Ok(Self(mutes)),
            _ => Err(Error::Other("the list of mutes can't be read".to_string())),
        }
    }

    /// The mute that applies to these facts for the recipient: of their object, its owner, or the object of
    /// the group (see [`crate::decide::message_group`]).
    pub fn muted_by(&self, facts: &Facts, group: &str, to: &str) -> Option<String> {
        let of = |name| text(facts, name);
        let covers = |mute: &&Value| match text_field(mute, "uid") {
            "" => ["", of("namespace")].contains(&text_field(mute, "namespace")),
            uid => uid == of("uid") || uid == of("ownerUid") || group.ends_with(&format!("/{uid}")),
        };
        let mut mutes = self.0.iter().filter(|mute| ["", to].contains(&text_field(mute, "to")));
        mutes
            .find(covers)
            .map(|mute| format!("{} muted it at {}", text_field(mute, "who"), text_field(mute, "at")))
    }
}

fn text_field<'m>(mute: &'m Value, name: &str) -> &'m str {
    mute[name].as_str().unwrap_or_default()
}

//! People's mutes from the portal. The host keeps the list, and shows it under a key of `kv`.

use kubewitness_sdk::{Error, kv};
use serde_json::Value;

use crate::facts::{self, Facts, text};

const KEY: &str = "kubewitness.dev/mutes";

/// Each has `uid` of an object, or else a `namespace`, or else none of them and is of everything; the recipient `to`, or
/// none and is of all; `who` and `at`. They stay JSON: a type of their own costs 5 KB of the component.
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

    /// Who has muted what these facts are of for the recipient, or the owner of it, or the object that is told of: see
    /// [`crate::decide::told_group`].
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

//! What people have muted in the portal. The host keeps the list, and shows it under a key of `kv`.

use kubewitness_sdk::{Error, kv};
use serde::Deserialize;

use crate::facts::{self, Facts, text};

const KEY: &str = "kubewitness.dev/mutes";

#[derive(Debug, Default)]
pub struct Mutes(Vec<Mute>);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mute {
    /// An object; empty: all of the namespace, or everything.
    uid: String,
    namespace: String,
    /// One recipient; empty: all of them.
    to: String,
    who: String,
    at: String,
}

impl Mutes {
    pub fn read() -> Result<Self, Error> {
        let Some(bytes) = kv::get(KEY)? else { return Ok(Self::default()) };
        facts::read(&bytes).map(Self).map_err(|why| Error::Other(format!("the mutes can't be read: {why}")))
    }

    /// Who has muted what these facts are of for the recipient, or the owner of it.
    pub fn by(&self, facts: &Facts, to: &str) -> Option<String> {
        let of = |name| text(facts, name);
        let covers = |mute: &&Mute| match mute.uid.as_str() {
            "" => mute.namespace.is_empty() || mute.namespace == of("namespace"),
            uid => uid == of("uid") || uid == of("ownerUid"),
        };
        let mut mutes = self.0.iter().filter(|mute| mute.to.is_empty() || mute.to == to);
        mutes.find(covers).map(|mute| format!("{} muted it at {}", mute.who, mute.at))
    }
}

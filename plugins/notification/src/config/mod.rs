//! The settings under `spec.config`.
//!
//! A wrong channel would be noticed only when a message fails to arrive. So the schema of these types is
//! embedded in the component, and the host checks a manifest before the plugin runs; `check` finds the rest.
//! Defaults are chosen so that people get few messages. This module calls no capability.

mod hours;
mod kind;
#[cfg(test)]
mod schema;
mod span;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::template;

pub use hours::Hours;
pub use kind::Kind;
pub use span::Span;

/// The configuration of the plugin `notification`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Without `channels`: a path below the address of the destination `people`.
    pub path: String,
    /// Without `channels`: the JSON that is posted. Placeholders such as `{{phase}}` are replaced in its
    /// strings. A string that is only a placeholder becomes the value with its type.
    pub template: Value,
    /// The phases that are reported. By default Succeeded, Failed, Cancelled, Preempted and Deleted; without
    /// `channels` every phase.
    pub phases: Vec<String>,
    /// Without `channels`: headers of the request.
    pub headers: BTreeMap<String, String>,
    /// The services that carry messages to people and programs.
    pub channels: Vec<Channel>,
    /// The recipients of each outcome. By default every channel without addresses gets every outcome.
    pub routes: Option<Vec<Route>>,
    /// Settings of each namespace, by its name.
    pub namespaces: BTreeMap<String, Namespace>,
    /// Whether all messages are muted.
    pub mute: bool,
    /// The address of the portal, for links in messages.
    pub portal: String,
    /// The title of a message, with placeholders. By default the object and its phase.
    pub title: Option<String>,
    /// The text of a message, with placeholders. By default the cause, the exit code, the attempt and the
    /// duration.
    pub text: Option<String>,
    /// How long further states of an object are awaited before the last one is reported.
    pub settle: Span,
    /// How long the same outcome of the same object is not reported again, however often it recurs.
    pub repeat: Span,
    /// Whether the same outcome is reported again for each attempt of the object.
    pub each_attempt: bool,
    /// The greatest age of news. Older news is counted, but not reported.
    pub oldest: Span,
    /// Hours in which people get no messages. They get them at the end of these hours.
    pub quiet: Option<Quiet>,
    /// Limits after which people get one message about many objects.
    pub digest: Digest,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            path: String::new(),
            template: template::standard(),
            phases: Vec::new(),
            headers: BTreeMap::new(),
            channels: Vec::new(),
            routes: None,
            namespaces: BTreeMap::new(),
            mute: false,
            portal: String::new(),
            title: None,
            text: None,
            settle: Span::seconds(10),
            repeat: Span::seconds(6 * 3600),
            each_attempt: false,
            oldest: Span::seconds(3600),
            quiet: None,
            digest: Digest::default(),
        }
    }
}

/// A service that carries messages to people or programs.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Channel {
    /// The name that routes and annotations use.
    pub name: String,
    /// The service.
    pub kind: Kind,
    /// The name of the grant of `http`, or for e-mail of `mail`. By default the channel's name.
    #[serde(default)]
    pub grant: String,
    /// A path below the destination's address.
    #[serde(default)]
    pub path: String,
    /// For `webhook`: headers of the request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// For `webhook`: the JSON that is posted. By default all known facts.
    #[serde(default)]
    pub template: Option<Value>,
    /// For `cloudevents`: the attribute `source` of the events. By default `kubewitness`.
    #[serde(default)]
    pub source: String,
    /// Whether the annotation of an object may name this channel.
    #[serde(default = "yes")]
    pub annotation: bool,
}

impl Channel {
    pub fn granted_name(&self) -> &str {
        if self.grant.is_empty() { &self.name } else { &self.grant }
    }
}

fn is_address(text: &str) -> bool {
    text.split_once('@').is_some_and(|(person, domain)| !person.is_empty() && !domain.is_empty())
}

fn yes() -> bool {
    true
}

/// A rule that gives states to recipients. A missing field matches every state.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The recipients: a channel's name, or for e-mail the name, a colon and an address.
    pub to: Vec<String>,
    /// Kinds of objects. An object that is reported with its owner, such as a Job's Pod, is reported by
    /// itself only if its kind is named.
    pub kinds: Vec<String>,
    /// Namespaces. A `*` at the end matches any ending.
    pub namespaces: Vec<String>,
    /// Owners, as `Kind/name`. A `*` at the end matches any ending.
    pub owners: Vec<String>,
    /// Labels that the object has.
    pub labels: BTreeMap<String, String>,
    /// Phases. By default those of the whole configuration.
    pub phases: Vec<String>,
    /// Changes: `present`, `gone`.
    pub changes: Vec<String>,
    /// The hours of the route. The time of observation of a state counts.
    pub hours: Option<Hours>,
}

/// Settings for the objects of a namespace.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Namespace {
    /// The recipients of outcomes, unless the object's own annotation names others.
    pub to: Vec<String>,
    /// Whether messages about its objects are muted.
    pub mute: bool,
}

/// Hours in which people get no messages.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Quiet {
    /// The hours.
    pub hours: Hours,
    /// Phases that are reported at once even in these hours.
    #[serde(default)]
    pub except: Vec<String>,
}

/// Limits after which people get one message about many objects.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Digest {
    /// The most messages to one recipient within `every`. Further ones are combined into one.
    #[cfg_attr(test, schemars(range(max = 4_294_967_295_u32)))]
    pub above: u32,
    /// The time after a digest until the next message.
    pub every: Span,
}

impl Default for Digest {
    fn default() -> Self {
        Self { above: 10, every: Span::seconds(600) }
    }
}

impl Config {
    pub fn is_direct(&self) -> bool {
        self.channels.is_empty()
    }

    /// The channel and the address of a recipient.
    pub fn find_recipient<'a>(&'a self, text: &'a str) -> Result<(&'a Channel, &'a str), String> {
        let (name, address) = text.split_once(':').unwrap_or((text, ""));
        let Some(channel) = self.channels.iter().find(|channel| channel.name == name) else {
            let known: Vec<_> = self.channels.iter().map(|channel| channel.name.as_str()).collect();
            return Err(format!("`{name}` is no channel; there are {}", known.join(", ")));
        };
        match (channel.kind.has_addresses(), address) {
            (true, "") => Err(format!("names no address: write `{name}:ada@example.com`")),
            (true, address) if !is_address(address) => Err(format!("`{address}` is no address of e-mail")),
            (false, address) if !address.is_empty() => {
                Err(format!("`{name}` takes no address: write `{name}` alone"))
            }
            _ => Ok((channel, address)),
        }
    }

    /// Whether a recipient is one or several people.
    pub fn is_for_people(&self, recipient: &str) -> bool {
        self.find_recipient(recipient).is_ok_and(|(channel, _)| channel.kind.is_for_people())
    }

    /// Whether a message waits until quiet hours end. A program gets it at any hour.
    pub fn is_held(&self, recipient: &str, phase: &str, now_ms: u64) -> bool {
        self.is_quiet(phase, now_ms) && self.is_for_people(recipient)
    }

    /// Whether people get no messages about this phase now.
    pub fn is_quiet(&self, phase: &str, now_ms: u64) -> bool {
        self.quiet.as_ref().is_some_and(|quiet| {
            quiet.hours.contains(now_ms) && !quiet.except.iter().any(|except| except == phase)
        })
    }

    /// The JSON Pointers into documents that titles, texts and templates use.
    pub fn pointers(&self) -> BTreeSet<String> {
        let texts = [&self.title, &self.text].into_iter().flatten().cloned().map(Value::String);
        let templates = self.channels.iter().filter_map(|channel| channel.template.clone());
        let mut all = BTreeSet::new();
        all.extend(texts.chain(templates).flat_map(|template| template::pointers(&template)));
        all
    }
}

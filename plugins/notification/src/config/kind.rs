//! The field `kind` of a channel: the services that it can speak to.

use serde::Deserialize;

/// The service that a channel speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An incoming webhook of Slack, or of a compatible service, such as Mattermost.
    Slack,
    /// A custom bot of Feishu.
    Feishu,
    /// A custom bot of Lark, which is compatible with Feishu's.
    Lark,
    /// A custom robot of DingTalk.
    DingTalk,
    /// A group's robot of WeCom.
    WeCom,
    /// Prometheus' Alertmanager.
    Alertmanager,
    /// A receiver of CloudEvents, as structured JSON.
    CloudEvents,
    /// Any receiver of JSON.
    Webhook,
    /// A granted mail server.
    Email,
}

impl Kind {
    /// Whether people read the messages. They get a digest when there are too many; a program gets each
    /// message.
    pub fn is_for_people(self) -> bool {
        !matches!(self, Self::Alertmanager | Self::CloudEvents | Self::Webhook)
    }

    /// Whether a recipient names an address within the channel, as in `mail:ada@example.com`.
    pub fn has_addresses(self) -> bool {
        self == Self::Email
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::CloudEvents => "application/cloudevents+json",
            _ => "application/json",
        }
    }
}

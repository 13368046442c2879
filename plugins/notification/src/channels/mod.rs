//! Channels: each makes the request of its service from the common kind of message, and interprets the
//! answer.
//!
//! Services differ in more than the body: some report a failure in a 200, some resolve an earlier message,
//! some want mail. Templates alone could not express that, so a channel is code, and `webhook` has templates
//! for any other receiver.
//!
//! A new channel is a file here with `body` and `answer`, a line in `config::Kind`, and its lines in the two
//! tables below. A channel decides nothing about recipients, and reads neither `kv` nor the clock.

mod alertmanager;
mod cloudevents;
mod dingtalk;
mod email;
mod feishu;
mod slack;
pub mod webhook;
mod wecom;

use kubewitness_sdk::Error;
use kubewitness_sdk::http::{self, Request, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::{self, SendAnswer};
use crate::config::{Channel, Kind};
use crate::facts::Facts;

/// The kind of news that a message brings. Channels colour it, or call it firing and resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    Good,
    Bad,
    Neutral,
}

/// The content of a message, in no channel's form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Repeats of the message have the same id.
    pub id: String,
    pub title: String,
    /// The lines of the text.
    pub text: String,
    /// The address of the portal's page, or empty.
    pub link: String,
    pub tone: Tone,
    /// When it happened, in milliseconds since 1970.
    pub at_ms: u64,
    pub facts: Facts,
}

/// Sends one message to one recipient.
pub fn send(channel: &Channel, address: &str, message: &Message) -> SendAnswer {
    if channel.kind == Kind::Email {
        return email::send(channel, address, message);
    }
    let sent = serde_json::to_vec(&body(channel, message)).map(|body| request(channel, message, body));
    match sent.map(|request| http::send(channel.granted_name(), &request)) {
        Ok(Ok(response)) => judge_answer(channel.kind, &response),
        // Neither answer changes with a repeat.
        Ok(Err(Error::TooLarge(why))) => SendAnswer::Refused(format!(
            "{why}: if it is the answer, the receiver may have taken the message"
        )),
        Ok(Err(error)) => error.into(),
        Err(error) => SendAnswer::Refused(error.to_string()),
    }
}

fn body(channel: &Channel, message: &Message) -> Value {
    match channel.kind {
        Kind::Slack => slack::body(message),
        Kind::Feishu | Kind::Lark => feishu::body(message),
        Kind::DingTalk => dingtalk::body(message),
        Kind::WeCom => wecom::body(message),
        Kind::Alertmanager => alertmanager::body(message),
        Kind::CloudEvents => cloudevents::body(&channel.source, message),
        Kind::Webhook => webhook::body(channel.template.as_ref(), message),
        // E-mail is not sent by a request.
        Kind::Email => Value::Null,
    }
}

fn judge_answer(kind: Kind, response: &Response) -> SendAnswer {
    match kind {
        Kind::Feishu | Kind::Lark => feishu::answer(response),
        Kind::DingTalk => dingtalk::answer(response),
        Kind::WeCom => wecom::answer(response),
        Kind::Slack => slack::answer(response),
        Kind::Alertmanager | Kind::CloudEvents | Kind::Webhook | Kind::Email => answer::of_status(response),
    }
}

fn request(channel: &Channel, message: &Message, body: Vec<u8>) -> Request {
    let mut headers = vec![
        ("content-type".to_string(), channel.kind.content_type().to_string()),
        (crate::direct::KEY.to_string(), message.id.clone()),
    ];
    headers.extend(channel.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let path = match (channel.kind, channel.path.as_str()) {
        (Kind::Alertmanager, "") => alertmanager::PATH,
        (_, path) => path,
    };
    Request { method: "POST".to_string(), path: path.to_string(), headers, body }
}

/// Escapes Markdown in services that know no escape: an object's texts can't make a link, an image or a
/// heading. The characters are replaced by their wide forms, which look the same. Such services make a link
/// of a bare address all the same, which shows where it leads.
fn without_markdown(text: &str) -> String {
    let wide = |c| match c {
        '[' => '［',
        ']' => '］',
        '<' => '〈',
        '>' => '〉',
        '`' => 'ˋ',
        '*' => '＊',
        '#' => '＃',
        c => c,
    };
    text.chars().map(wide).collect()
}

/// Shortens the text so that `escape` of it has at most this many bytes. The last line explains how to mute,
/// and is kept.
fn escaped(text: &str, most: usize, escape: fn(&str) -> String) -> String {
    let Some((body, last)) = text.rsplit_once('\n') else { return cut(text, most, escape) };
    let last = cut(last, most / 2, escape);
    format!("{}\n{last}", cut(body, most.saturating_sub(last.len() + 1), escape))
}

fn cut(text: &str, most: usize, escape: fn(&str) -> String) -> String {
    let whole = escape(text);
    if whole.len() <= most {
        return whole;
    }
    let mut left = most.saturating_sub("…".len());
    let pieces = text.chars().map(|c| escape(c.encode_utf8(&mut [0; 4])));
    let fitting = pieces.take_while(|piece| left.checked_sub(piece.len()).map(|rest| left = rest).is_some());
    fitting.collect::<String>() + "…"
}

/// The texts and the link, for services that know plain text only.
fn plain_text(message: &Message) -> String {
    let link = if message.link.is_empty() { String::new() } else { format!("\n{}", message.link) };
    format!("{}{link}", message.text)
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// A message with everything that a channel has to escape.
    pub fn sample() -> Message {
        Message {
            id: "jobs/0/batch/Job/uid-train/7".into(),
            title: "Job vision/train: Failed".into(),
            text: "OOMKilled: <2 of 8> pods & *all*\nExit code 137".into(),
            link: "https://kw.example.com/objects/uid-train?state=7".into(),
            tone: Tone::Bad,
            at_ms: 1_798_761_599_000,
            facts: serde_json::from_value(json!({
                "kind": "Job", "namespace": "vision", "name": "train", "uid": "uid-train", "phase": "Failed",
                "source": "jobs", "exitCode": 137, "reason": "OOMKilled",
            }))
            .unwrap(),
        }
    }

    pub fn assert_no_own_link(body: fn(&Message) -> Value) {
        let text =
            "[log in](https://evil.example) ![](https://evil.example/x) [log] [1]\n[1]: https://evil.example";
        let title = "[a](https://evil.example)".into();
        let shown = body(&Message { title, text: text.into(), ..sample() })["markdown"].to_string();
        assert!(shown.contains("［log in］(https://evil.example)"), "{shown}");
        assert_eq!(
            (shown.matches('[').count(), shown.matches(']').count()),
            (1, 1),
            "the portal's own: {shown}"
        );
        assert!(shown.contains("[Open in the portal](https://kw.example.com"), "{shown}");
    }

    pub fn answered(status: u16, body: &str) -> Response {
        Response { status, headers: vec![], body: body.into() }
    }

    #[test]
    fn a_request_has_the_message_s_id_its_type_and_the_channel_s_path() {
        let channel = |text: &str| serde_json::from_str::<Channel>(text).unwrap();
        let events =
            channel(r#"{"name": "e", "kind": "cloudevents", "path": "in", "headers": {"x-team": "ai"}}"#);
        let sent = request(&events, &sample(), b"{}".to_vec());
        assert_eq!((sent.method.as_str(), sent.path.as_str()), ("POST", "in"));
        let expected = [
            ("content-type", "application/cloudevents+json"),
            ("idempotency-key", "jobs/0/batch/Job/uid-train/7"),
            ("x-team", "ai"),
        ];
        assert_eq!(sent.headers, expected.map(|(name, value)| (name.to_string(), value.to_string())));
        let alerts = request(&channel(r#"{"name": "a", "kind": "alertmanager"}"#), &sample(), vec![]);
        assert_eq!(alerts.path, "api/v2/alerts");
    }
}

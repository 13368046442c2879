//! Slack: an incoming webhook. Its address is the secret. It answers 200 and `ok`, a 4xx with a word, or 429.

use serde_json::{Value, json};

use super::{Message, Tone};
use crate::facts::clip;

/// The most that a header and a section of Slack take, in characters; a byte is never more than one.
const TITLE_BYTES: usize = 150;
const TEXT_BYTES: usize = 3000;

pub fn body(message: &Message) -> Value {
    let mark = match message.tone {
        Tone::Good => "✅ ",
        Tone::Bad => "❌ ",
        Tone::Neutral => "",
    };
    let mut text = escape(&message.text);
    if !message.link.is_empty() {
        text = format!("{}\n<{}|Open in the portal>", clip(&text, TEXT_BYTES / 2), escape(&message.link));
    }
    json!({
        // What a notification on a phone shows.
        "text": escape(&format!("{mark}{}", message.title)),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": clip(&format!("{mark}{}", message.title), TITLE_BYTES)}},
            {"type": "section", "text": {"type": "mrkdwn", "text": clip(&text, TEXT_BYTES)}},
        ],
    })
}

/// What would be a link or a mention is shown as it is.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::sample;

    #[test]
    fn the_body_is_a_header_and_a_section_without_mentions() {
        let expected = json!({
            "text": "❌ Job vision/train: Failed",
            "blocks": [
                {"type": "header", "text": {"type": "plain_text", "text": "❌ Job vision/train: Failed"}},
                {"type": "section", "text": {"type": "mrkdwn", "text": "OOMKilled: &lt;2 of 8&gt; pods &amp; *all*\nExit code 137\n<https://kw.example.com/objects/uid-train?state=7|Open in the portal>"}},
            ],
        });
        assert_eq!(body(&sample()), expected);
        let loud = Message { text: "<!channel>".into(), link: String::new(), ..sample() };
        assert_eq!(body(&loud)["blocks"][1]["text"]["text"], "&lt;!channel&gt;");
    }

    #[test]
    fn long_texts_are_cut_and_the_link_stays() {
        let long = Message { title: "t".repeat(500), text: "x".repeat(9000), ..sample() };
        let body = body(&long);
        assert!(body["blocks"][0]["text"]["text"].as_str().unwrap().len() <= TITLE_BYTES);
        let text = body["blocks"][1]["text"]["text"].as_str().unwrap();
        assert!(text.len() <= TEXT_BYTES && text.ends_with("|Open in the portal>"), "{text}");
    }
}

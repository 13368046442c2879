//! Slack: an incoming webhook. Its address is the secret. It answers 200 and `ok`, a 4xx with a word, or 429.

use kubewitness_sdk::http::Response;
use serde_json::{Value, json};

use super::{Message, Tone, escaped};
use crate::answer::{self, SendAnswer};
use crate::facts::clip_text;

/// The limits of a header and of a section in Slack, in characters. A text has at least as many bytes as
/// characters.
const TITLE_BYTES: usize = 150;
const TEXT_BYTES: usize = 3000;

pub fn body(message: &Message) -> Value {
    let mark = match message.tone {
        Tone::Good => "✅ ",
        Tone::Bad => "❌ ",
        Tone::Neutral => "",
    };
    let link = match message.link.is_empty() {
        true => String::new(),
        false => format!("\n<{}|Open in the portal>", escape(&message.link)),
    };
    let text = escaped(&message.text, TEXT_BYTES.saturating_sub(link.len()), escape) + &link;
    json!({
        // The text of the notification on a phone.
        "text": escape(&format!("{mark}{}", message.title)),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": clip_text(&format!("{mark}{}", message.title), TITLE_BYTES)}},
            // Text that looks like an address, a channel or a name stays text.
            {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": true}},
        ],
    })
}

/// Another page with 200 comes from something else, such as a proxy that asks for a login.
pub fn answer(response: &Response) -> SendAnswer {
    match answer::of_status(response) {
        SendAnswer::Taken if response.body.trim_ascii_start().starts_with(b"<") => SendAnswer::Refused(
            "the destination answered a page and not `ok`: look at its address".to_string(),
        ),
        other => other,
    }
}

/// Escapes the characters that begin a link or a mention.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::{answered, sample};

    #[test]
    fn a_page_with_200_is_no_success() {
        assert_eq!(answer(&answered(200, "ok")), SendAnswer::Taken);
        let page = answer(&answered(200, "\n<!doctype html><title>Sign in</title>"));
        assert!(matches!(page, SendAnswer::Refused(why) if why.contains("look at its address")));
    }

    #[test]
    fn the_body_is_a_header_and_a_section_without_mentions() {
        let expected = json!({
            "text": "❌ Job vision/train: Failed",
            "blocks": [
                {"type": "header", "text": {"type": "plain_text", "text": "❌ Job vision/train: Failed"}},
                {"type": "section", "text": {"type": "mrkdwn", "text": "OOMKilled: &lt;2 of 8&gt; pods &amp; *all*\nExit code 137\n<https://kw.example.com/objects/uid-train?state=7|Open in the portal>", "verbatim": true}},
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
        let long = Message { text: format!("{}\nTo hear no more of it", "<".repeat(2000)), ..sample() };
        let text = super::body(&long)["blocks"][1]["text"]["text"].as_str().unwrap().to_string();
        assert!(text.contains("&lt;…\nTo hear no more of it\n<https://kw"), "no sign is cut in half: {text}");
        assert!(text.len() <= TEXT_BYTES && text.replace("&lt;", "").find('&').is_none(), "{text}");
    }
}

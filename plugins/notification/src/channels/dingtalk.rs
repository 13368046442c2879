//! DingTalk: a custom robot. The host adds `timestamp` and `sign` to the address if the destination's scheme
//! is `dingtalk`. A failure is an `errcode` in the body of a 200.

use kubewitness_sdk::http::Response;
use serde_json::{Value, json};

use super::{Message, escaped, without_markdown};
use crate::answer::{self, SendAnswer};

/// A request of a robot has at most 20,000 bytes.
const TEXT_BYTES: usize = 8 << 10;

/// The codes after which a message is sent again: the server is busy, or gets too many messages a minute,
/// which has two codes. 310000 is a wrong signature, address or keyword, which a repeat does not change.
const AGAIN: [i64; 3] = [-1, 130_101, 410_100];

pub fn body(message: &Message) -> Value {
    let title = without_markdown(&message.title);
    let mut text = format!("#### {title}");
    for line in escaped(&message.text, TEXT_BYTES, without_markdown).lines() {
        // Its Markdown needs an empty line between paragraphs.
        text.push_str("\n\n");
        text.push_str(line);
    }
    if !message.link.is_empty() {
        text.push_str(&format!("\n\n[Open in the portal]({})", message.link));
    }
    json!({"msgtype": "markdown", "markdown": {"title": title, "text": text}})
}

pub fn answer(response: &Response) -> SendAnswer {
    answer::of_code(response, &[("errcode", "errmsg")], &AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::{answered, assert_no_own_link, sample};

    #[test]
    fn a_link_of_an_object_s_own_is_none() {
        assert_no_own_link(body);
    }

    #[test]
    fn the_body_is_markdown_with_a_paragraph_for_each_line() {
        let expected = json!({"msgtype": "markdown", "markdown": {
            "title": "Job vision/train: Failed",
            "text": "#### Job vision/train: Failed\n\nOOMKilled: 〈2 of 8〉 pods & ＊all＊\n\nExit code 137\n\n[Open in the portal](https://kw.example.com/objects/uid-train?state=7)",
        }});
        assert_eq!(body(&sample()), expected);
    }

    #[test]
    fn too_many_is_tried_again_and_a_wrong_signature_is_not() {
        assert_eq!(answer(&answered(200, r#"{"errcode":0,"errmsg":"ok"}"#)), SendAnswer::Taken);
        for code in AGAIN {
            let body = format!(r#"{{"errcode":{code},"errmsg":"send too fast"}}"#);
            assert!(matches!(answer(&answered(200, &body)), SendAnswer::Later { .. }), "{code}");
        }
        let unsigned = r#"{"errcode":310000,"errmsg":"sign not match"}"#;
        assert!(
            matches!(answer(&answered(200, unsigned)), SendAnswer::Refused(why) if why.contains("sign not match"))
        );
    }
}

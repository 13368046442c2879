//! WeCom: the robot of a group. Its address is the secret. A failure is an `errcode` in the body of a 200.

use kubewitness_sdk::http::Response;
use serde_json::{Value, json};

use super::{Message, Tone, escaped, without_markdown};
use crate::answer::{self, SendAnswer};

/// A Markdown message has at most 4,096 bytes; the title and the link need some of them.
const TEXT_BYTES: usize = 2600;
const TITLE_BYTES: usize = 600;

/// The codes after which a message is sent again: a busy server, too many messages a minute, and too many at
/// once. 93000 is a wrong address.
const AGAIN: [i64; 3] = [-1, 45009, 45033];

pub fn body(message: &Message) -> Value {
    let colour = match message.tone {
        Tone::Good => "info",
        Tone::Bad => "warning",
        Tone::Neutral => "comment",
    };
    let title = escaped(&message.title, TITLE_BYTES, without_markdown);
    let text = escaped(&message.text, TEXT_BYTES, without_markdown);
    let mut content = format!("<font color=\"{colour}\">**{title}**</font>\n{text}");
    if !message.link.is_empty() {
        content.push_str(&format!("\n[Open in the portal]({})", message.link));
    }
    json!({"msgtype": "markdown", "markdown": {"content": content}})
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
    fn the_body_is_markdown_in_the_message_s_colour() {
        let expected = json!({"msgtype": "markdown", "markdown": {
            "content": "<font color=\"warning\">**Job vision/train: Failed**</font>\nOOMKilled: 〈2 of 8〉 pods & ＊all＊\nExit code 137\n[Open in the portal](https://kw.example.com/objects/uid-train?state=7)",
        }});
        assert_eq!(body(&sample()), expected);
    }

    #[test]
    fn the_longest_message_fits() {
        let long = Message { title: "ü".repeat(900), text: "<".repeat(9000), ..sample() };
        for text in [long.text.replace('<', "ü"), long.text.clone(), format!("{}\nmute", "[".repeat(9000))] {
            let body = body(&Message { text, ..long.clone() });
            assert!(body["markdown"]["content"].as_str().unwrap().len() <= 4096);
        }
    }

    #[test]
    fn too_many_is_tried_again_and_a_wrong_address_is_not() {
        assert_eq!(answer(&answered(200, r#"{"errcode":0,"errmsg":"ok"}"#)), SendAnswer::Taken);
        let limited = r#"{"errcode":45009,"errmsg":"api freq out of limit"}"#;
        assert!(matches!(answer(&answered(200, limited)), SendAnswer::Later { .. }));
        let wrong = r#"{"errcode":93000,"errmsg":"invalid webhook url"}"#;
        assert!(matches!(answer(&answered(200, wrong)), SendAnswer::Refused(why) if why.contains("93000")));
    }
}

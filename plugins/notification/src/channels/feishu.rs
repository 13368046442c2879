//! Feishu and Lark: a custom bot. The host adds `timestamp` and `sign` to the body if the destination's
//! scheme is `feishu`. A failure is a `code` in the body of a 200.

use kubewitness_sdk::http::Response;
use serde_json::{Value, json};

use super::Message;
use crate::answer::{self, SendAnswer};
use crate::facts::clip_text;

/// A request of a bot has at most 20 KB.
const TEXT_BYTES: usize = 8 << 10;

/// The codes after which a message is sent again: too many messages, or a busy server. An operator has to
/// correct everything else: 19021 is a wrong signature, 19022 a wrong address, 19024 a missing keyword.
const AGAIN: [i64; 2] = [11232, 1500];

pub fn body(message: &Message) -> Value {
    let mut lines: Vec<Value> = clip_text(&message.text, TEXT_BYTES)
        .lines()
        .map(|line| json!([{"tag": "text", "text": line}]))
        .collect();
    if !message.link.is_empty() {
        lines.push(json!([{"tag": "a", "text": "Open in the portal", "href": message.link}]));
    }
    json!({
        "msg_type": "post",
        "content": {"post": {"en_us": {"title": message.title, "content": lines}}},
    })
}

pub fn answer(response: &Response) -> SendAnswer {
    // Older bots answer in the second form.
    answer::of_code(response, &[("code", "msg"), ("StatusCode", "StatusMessage")], &AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::{answered, sample};

    #[test]
    fn the_body_is_a_post_with_a_line_each() {
        let expected = json!({
            "msg_type": "post",
            "content": {"post": {"en_us": {"title": "Job vision/train: Failed", "content": [
                [{"tag": "text", "text": "OOMKilled: <2 of 8> pods & *all*"}],
                [{"tag": "text", "text": "Exit code 137"}],
                [{"tag": "a", "text": "Open in the portal", "href": "https://kw.example.com/objects/uid-train?state=7"}],
            ]}}},
        });
        assert_eq!(body(&sample()), expected);
    }

    #[test]
    fn too_many_is_tried_again_and_a_wrong_signature_is_not() {
        assert_eq!(
            answer(&answered(200, r#"{"StatusCode":0,"StatusMessage":"success"}"#)),
            SendAnswer::Taken
        );
        assert_eq!(answer(&answered(200, r#"{"code":0,"data":{},"msg":"success"}"#)), SendAnswer::Taken);
        let limited =
            r#"{"code":11232,"msg":"frequency limited psm[lark.oapi.app_platform_runtime]appID[1500]"}"#;
        assert!(matches!(answer(&answered(200, limited)), SendAnswer::Later { .. }));
        let unsigned =
            r#"{"code":19021,"msg":"sign match fail or timestamp is not within one hour from current time"}"#;
        assert!(
            matches!(answer(&answered(200, unsigned)), SendAnswer::Refused(why) if why.contains("code 19021: sign match fail"))
        );
    }
}

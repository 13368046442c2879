//! Interprets a destination's answer: delivered, refused, or to be retried.

use kubewitness_sdk::http::Response;
use kubewitness_sdk::{Error, Verdict};
use serde_json::Value;

use crate::facts;

/// The size of the kept part of a refusal's body, for people who look for the reason.
const BODY_BYTES: usize = 300;
/// The longest pause that a destination may ask for.
const LONGEST_MS: u64 = 3_600_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendAnswer {
    Taken,
    /// A later try may succeed: the request was too slow, too early or one of too many, or the server has a
    /// fault.
    Later {
        after_ms: Option<u64>,
        why: String,
    },
    /// The same, but only for this address: the server accepts messages for others.
    AddressLater(String),
    /// A repeat would be refused as well.
    Refused(String),
}

impl From<SendAnswer> for Verdict {
    fn from(answer: SendAnswer) -> Self {
        match answer {
            SendAnswer::Taken => Self::Done,
            SendAnswer::Later { after_ms: Some(after_ms), why } => Self::retry_after(after_ms, why),
            SendAnswer::Later { after_ms: None, why } | SendAnswer::AddressLater(why) => Self::retry(why),
            SendAnswer::Refused(why) => Self::reject(why),
        }
    }
}

impl From<Error> for SendAnswer {
    fn from(error: Error) -> Self {
        match error {
            Error::RateLimited(after_ms) => {
                Self::Later { after_ms: Some(after_ms), why: "rate limited".to_string() }
            }
            // A repeat does not change a missing grant, such as for an address in a domain that the operator
            // did not name.
            Error::Invalid(_) | Error::TooLarge(_) | Error::Denied(_) => Self::Refused(error.text()),
            Error::Unavailable(_) | Error::Timeout(_) | Error::Other(_) => {
                Self::Later { after_ms: None, why: error.text() }
            }
        }
    }
}

pub fn of_status(response: &Response) -> SendAnswer {
    let status = response.status;
    match status {
        200..=299 => SendAnswer::Taken,
        408 | 425 | 429 | 500..=599 => SendAnswer::Later {
            after_ms: retry_after(response),
            why: format!("the destination answered {status}"),
        },
        300..=399 => {
            SendAnswer::Refused(format!("the destination answered {status}: redirects are not followed"))
        }
        _ => SendAnswer::Refused(format!("the destination answered {status}: {}", excerpt(&response.body))),
    }
}

/// The answer of a server that reports failures in the JSON body of a 200. The code 0 means success; a
/// message with a code of `again` is sent again. `fields` are the names of the code and of its text, in the
/// order of preference.
pub fn of_code(response: &Response, fields: &[(&str, &str)], again: &[i64]) -> SendAnswer {
    let status = of_status(response);
    if status != SendAnswer::Taken {
        return status;
    }
    let body: Value = facts::read(&response.body).unwrap_or(Value::Null);
    let code = fields.iter().find_map(|(code, text)| Some((body[*code].as_i64()?, &body[*text])));
    match code {
        Some((0, _)) => SendAnswer::Taken,
        Some((code, text)) => {
            let text = excerpt(text.as_str().unwrap_or("without a reason").as_bytes());
            let why = format!("the destination answered code {code}: {text}");
            match again.contains(&code) {
                true => SendAnswer::Later { after_ms: None, why },
                false => SendAnswer::Refused(why),
            }
        }
        None => SendAnswer::Refused(format!("the destination answered no code: {}", excerpt(&response.body))),
    }
}

/// Reads seconds. If the header has a date, the usual pauses apply.
fn retry_after(response: &Response) -> Option<u64> {
    let (_, value) = response.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))?;
    let seconds: u64 = value.trim().parse().ok()?;
    Some(seconds.saturating_mul(1000).min(LONGEST_MS))
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let end = text.floor_char_boundary(BODY_BYTES);
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> SendAnswer {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        of_status(&Response { status, headers, body: body.as_bytes().to_vec() })
    }

    #[test]
    fn any_success_is_done() {
        for status in [200, 201, 202, 204] {
            assert_eq!(answer(status, &[], ""), SendAnswer::Taken);
        }
    }

    #[test]
    fn what_time_can_mend_is_tried_again_when_the_destination_says() {
        for status in [408, 425, 429, 500, 502, 503] {
            assert!(matches!(answer(status, &[], ""), SendAnswer::Later { after_ms: None, .. }), "{status}");
        }
        let after = |value| match answer(429, &[("Retry-After", value)], "") {
            SendAnswer::Later { after_ms, .. } => after_ms,
            _ => panic!("no retry"),
        };
        assert_eq!(after("7"), Some(7000));
        assert_eq!(after("999999999999"), Some(LONGEST_MS));
        assert_eq!(after("Fri, 20 Nov 2026 12:00:00 GMT"), None);
    }

    #[test]
    fn a_refusal_is_kept_with_what_the_destination_said() {
        let SendAnswer::Refused(reason) = answer(400, &[], "no such\nchannel") else {
            panic!("no rejection")
        };
        assert_eq!(reason, "the destination answered 400: no such channel");
        assert!(matches!(answer(302, &[], ""), SendAnswer::Refused(reason) if reason.contains("redirects")));
    }

    #[test]
    fn a_code_in_the_body_of_a_200_decides() {
        let of = |body: &str| {
            let response = Response { status: 200, headers: vec![], body: body.into() };
            of_code(&response, &[("code", "msg"), ("StatusCode", "StatusMessage")], &[7])
        };
        assert_eq!(of(r#"{"code": 0, "msg": "success"}"#), SendAnswer::Taken);
        assert_eq!(of(r#"{"StatusCode": 0}"#), SendAnswer::Taken);
        assert!(matches!(of(r#"{"code": 7, "msg": "slow down"}"#), SendAnswer::Later { .. }));
        let refused = SendAnswer::Refused("the destination answered code 9: sign match fail".into());
        assert_eq!(of(r#"{"code": 9, "msg": "sign match fail"}"#), refused);
        for odd in ["", "ok", "[]", r#"{"code": "0"}"#] {
            assert!(matches!(of(odd), SendAnswer::Refused(why) if why.contains("no code")), "{odd}");
        }
    }

    #[test]
    fn an_answer_is_the_verdict_of_a_state_and_an_error_is_an_answer() {
        assert_eq!(Verdict::from(SendAnswer::Taken), Verdict::Done);
        assert_eq!(Verdict::from(SendAnswer::Refused("no".into())), Verdict::reject("no"));
        let limited = SendAnswer::from(Error::RateLimited(70));
        assert_eq!(Verdict::from(limited), Verdict::retry_after(70, "rate limited"));
        assert!(matches!(SendAnswer::from(Error::Invalid("x".into())), SendAnswer::Refused(_)));
        assert!(matches!(SendAnswer::from(Error::Denied("x".into())), SendAnswer::Refused(_)));
        let away = Verdict::from(SendAnswer::from(Error::Unavailable("down".into())));
        assert_eq!(away, Verdict::retry("unavailable: down"));
    }
}

//! What a destination's answer means for a message.

use kubewitness_sdk::http::Response;
use kubewitness_sdk::{Error, Verdict};
use serde_json::Value;

use crate::facts;

/// How much of a refusal's body is kept for the person who looks for the reason.
const BODY_BYTES: usize = 300;
/// The longest pause that a destination may ask for.
const LONGEST_MS: u64 = 3_600_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Taken,
    /// Time cures it: too slow, too early, too often, or the server's own trouble.
    Later {
        after_ms: Option<u64>,
        why: String,
    },
    /// The same, for one address alone: the server takes messages for others.
    AddressLater(String),
    /// A repeat is refused as well.
    Refused(String),
}

impl From<Answer> for Verdict {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Taken => Self::Done,
            Answer::Later { after_ms: Some(after_ms), why } => Self::retry_after(after_ms, why),
            Answer::Later { after_ms: None, why } | Answer::AddressLater(why) => Self::retry(why),
            Answer::Refused(why) => Self::reject(why),
        }
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        match error {
            Error::RateLimited(after_ms) => {
                Self::Later { after_ms: Some(after_ms), why: "rate limited".to_string() }
            }
            // What was not granted, such as an address in a domain that the operator did not name, stays so.
            Error::Invalid(_) | Error::TooLarge(_) | Error::Denied(_) => Self::Refused(error.text()),
            Error::Unavailable(_) | Error::Timeout(_) | Error::Other(_) => {
                Self::Later { after_ms: None, why: error.text() }
            }
        }
    }
}

pub fn of_status(response: &Response) -> Answer {
    let status = response.status;
    match status {
        200..=299 => Answer::Taken,
        408 | 425 | 429 | 500..=599 => Answer::Later {
            after_ms: retry_after(response),
            why: format!("the destination answered {status}"),
        },
        300..=399 => {
            Answer::Refused(format!("the destination answered {status}: redirects are not followed"))
        }
        _ => Answer::Refused(format!("the destination answered {status}: {}", excerpt(&response.body))),
    }
}

/// The answer of a server that reports failure in the JSON body of a 200: 0 is success, and `again` are the codes that
/// time cures. `fields` are the names of the code and of its text, in the order of preference.
pub fn of_code(response: &Response, fields: &[(&str, &str)], again: &[i64]) -> Answer {
    let status = of_status(response);
    if status != Answer::Taken {
        return status;
    }
    let body: Value = facts::read(&response.body).unwrap_or(Value::Null);
    let code = fields.iter().find_map(|(code, text)| Some((body[*code].as_i64()?, &body[*text])));
    match code {
        Some((0, _)) => Answer::Taken,
        Some((code, text)) => {
            let text = excerpt(text.as_str().unwrap_or("without a reason").as_bytes());
            let why = format!("the destination answered code {code}: {text}");
            match again.contains(&code) {
                true => Answer::Later { after_ms: None, why },
                false => Answer::Refused(why),
            }
        }
        None => Answer::Refused(format!("the destination answered no code: {}", excerpt(&response.body))),
    }
}

/// Reads seconds. A date is left to the back-off.
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

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        of_status(&Response { status, headers, body: body.as_bytes().to_vec() })
    }

    #[test]
    fn any_success_is_done() {
        for status in [200, 201, 202, 204] {
            assert_eq!(answer(status, &[], ""), Answer::Taken);
        }
    }

    #[test]
    fn what_time_can_mend_is_tried_again_when_the_destination_says() {
        for status in [408, 425, 429, 500, 502, 503] {
            assert!(matches!(answer(status, &[], ""), Answer::Later { after_ms: None, .. }), "{status}");
        }
        let after = |value| match answer(429, &[("Retry-After", value)], "") {
            Answer::Later { after_ms, .. } => after_ms,
            _ => panic!("no retry"),
        };
        assert_eq!(after("7"), Some(7000));
        assert_eq!(after("999999999999"), Some(LONGEST_MS));
        assert_eq!(after("Fri, 20 Nov 2026 12:00:00 GMT"), None);
    }

    #[test]
    fn a_refusal_is_kept_with_what_the_destination_said() {
        let Answer::Refused(reason) = answer(400, &[], "no such\nchannel") else { panic!("no rejection") };
        assert_eq!(reason, "the destination answered 400: no such channel");
        assert!(matches!(answer(302, &[], ""), Answer::Refused(reason) if reason.contains("redirects")));
    }

    #[test]
    fn a_code_in_the_body_of_a_200_decides() {
        let of = |body: &str| {
            let response = Response { status: 200, headers: vec![], body: body.into() };
            of_code(&response, &[("code", "msg"), ("StatusCode", "StatusMessage")], &[7])
        };
        assert_eq!(of(r#"{"code": 0, "msg": "success"}"#), Answer::Taken);
        assert_eq!(of(r#"{"StatusCode": 0}"#), Answer::Taken);
        assert!(matches!(of(r#"{"code": 7, "msg": "slow down"}"#), Answer::Later { .. }));
        let refused = Answer::Refused("the destination answered code 9: sign match fail".into());
        assert_eq!(of(r#"{"code": 9, "msg": "sign match fail"}"#), refused);
        for odd in ["", "ok", "[]", r#"{"code": "0"}"#] {
            assert!(matches!(of(odd), Answer::Refused(why) if why.contains("no code")), "{odd}");
        }
    }

    #[test]
    fn an_answer_is_the_verdict_of_a_state_and_an_error_is_an_answer() {
        assert_eq!(Verdict::from(Answer::Taken), Verdict::Done);
        assert_eq!(Verdict::from(Answer::Refused("no".into())), Verdict::reject("no"));
        let limited = Answer::from(Error::RateLimited(70));
        assert_eq!(Verdict::from(limited), Verdict::retry_after(70, "rate limited"));
        assert!(matches!(Answer::from(Error::Invalid("x".into())), Answer::Refused(_)));
        assert!(matches!(Answer::from(Error::Denied("x".into())), Answer::Refused(_)));
        let away = Verdict::from(Answer::from(Error::Unavailable("down".into())));
        assert_eq!(away, Verdict::retry("unavailable: down"));
    }
}

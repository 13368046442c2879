//! Turns a destination's answer into a verdict.

use kubewitness_sdk::Verdict;
use kubewitness_sdk::http::Response;

/// How much of a refusal's body is kept for the person who looks at the dead letter.
const BODY_BYTES: usize = 300;
/// The longest pause that a destination may ask for.
const LONGEST_MS: u64 = 3_600_000;

pub fn verdict(response: &Response) -> Verdict {
    let status = response.status;
    match status {
        200..=299 => Verdict::Done,
        // Time cures these: too slow, too early, too often, or the server's own trouble.
        408 | 425 | 429 | 500..=599 => {
            let reason = format!("the destination answered {status}");
            match retry_after(response) {
                Some(after_ms) => Verdict::retry_after(after_ms, reason),
                None => Verdict::retry(reason),
            }
        }
        300..=399 => {
            Verdict::reject(format!("the destination answered {status}: redirects are not followed"))
        }
        _ => Verdict::reject(format!("the destination answered {status}: {}", excerpt(&response.body))),
    }
}

/// Reads seconds. A date is left to the host's own back-off.
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

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Verdict {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        verdict(&Response { status, headers, body: body.as_bytes().to_vec() })
    }

    #[test]
    fn any_success_is_done() {
        for status in [200, 201, 202, 204] {
            assert_eq!(answer(status, &[], ""), Verdict::Done);
        }
    }

    #[test]
    fn what_time_can_mend_is_tried_again_when_the_destination_says() {
        for status in [408, 425, 429, 500, 502, 503] {
            assert!(
                matches!(answer(status, &[], ""), Verdict::Retry(retry) if retry.after_ms.is_none()),
                "{status}"
            );
        }
        let after = |value| match answer(429, &[("Retry-After", value)], "") {
            Verdict::Retry(retry) => retry.after_ms,
            _ => panic!("no retry"),
        };
        assert_eq!(after("7"), Some(7000));
        assert_eq!(after("999999999999"), Some(LONGEST_MS));
        assert_eq!(after("Fri, 20 Nov 2026 12:00:00 GMT"), None);
    }

    #[test]
    fn a_refusal_is_kept_with_what_the_destination_said() {
        let Verdict::Reject(reason) = answer(400, &[], "no such\nchannel") else { panic!("no rejection") };
        assert_eq!(reason, "the destination answered 400: no such channel");
        assert!(matches!(answer(302, &[], ""), Verdict::Reject(reason) if reason.contains("redirects")));
    }
}

//! DingTalk: `timestamp` and `sign` in the query. The key of the signature is the secret, and the message is
//! `MILLISECONDS\nSECRET`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{OutgoingRequest, hmac_sha256};

pub fn sign_request(secret: &str, now_ms: u64, request: &mut OutgoingRequest) {
    let signature = compute_signature(secret, now_ms);
    request
        .url
        .query_pairs_mut()
        .append_pair("timestamp", &now_ms.to_string())
        .append_pair("sign", &signature);
}

fn compute_signature(secret: &str, now_ms: u64) -> String {
    STANDARD.encode(hmac_sha256(secret.as_bytes(), format!("{now_ms}\n{secret}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use reqwest::Url;
    use reqwest::header::HeaderMap;

    use super::*;

    #[test]
    fn the_query_has_the_time_and_the_signature_encoded() {
        let mut url = Url::parse("https://x/robot/send?access_token=abc").unwrap();
        let (mut headers, mut body) = (HeaderMap::new(), Vec::new());
        let mut request = OutgoingRequest { url: &mut url, headers: &mut headers, body: &mut body };
        sign_request("this is secret", 1_577_262_236_757, &mut request);
        let expected = "https://x/robot/send?access_token=abc&timestamp=1577262236757&sign=hmPWwU%2B7lVdm3ZZz0r9tSfx0L4Q26jWOZr9%2BGs6EZQM%3D";
        assert_eq!(url.as_str(), expected);
    }
}

//! Feishu and Lark: `timestamp` and `sign` in the body. The key of the signature is `SECONDS\nSECRET`, and the message is
//! empty.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_core::ports::GrantError;
use serde_json::{Map, Value};

use super::{OutgoingRequest, hmac_sha256};

pub fn sign_request(secret: &str, seconds: u64, request: &mut OutgoingRequest) -> Result<(), GrantError> {
    let mut body: Map<String, Value> = serde_json::from_slice(request.body).map_err(|_| {
        GrantError::Invalid("the destination signs a JSON object, and the body is none".to_owned())
    })?;
    body.insert("timestamp".into(), seconds.to_string().into());
    body.insert("sign".into(), compute_signature(secret, seconds).into());
    *request.body = serde_json::to_vec(&body).map_err(|error| GrantError::Invalid(error.to_string()))?;
    Ok(())
}

fn compute_signature(secret: &str, seconds: u64) -> String {
    STANDARD.encode(hmac_sha256(format!("{seconds}\n{secret}").as_bytes(), b""))
}

#[cfg(test)]
mod tests {
    use reqwest::Url;
    use reqwest::header::HeaderMap;

    use super::*;

    fn signed(body: &str) -> Result<Value, GrantError> {
        let (mut url, mut headers) = (Url::parse("https://x/hook").unwrap(), HeaderMap::new());
        let mut body = body.as_bytes().to_vec();
        let mut request = OutgoingRequest { url: &mut url, headers: &mut headers, body: &mut body };
        sign_request("demo", 1_599_360_473, &mut request)?;
        Ok(serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn the_body_has_the_time_and_the_signature_of_nothing() {
        let body = signed(r#"{"msg_type": "text", "sign": "forged"}"#).unwrap();
        let expected = serde_json::json!({
            "msg_type": "text", "timestamp": "1599360473", "sign": "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8=",
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn a_body_that_is_no_object_cannot_be_signed() {
        for body in ["", "[]", "no"] {
            assert!(matches!(signed(body), Err(GrantError::Invalid(why)) if why.contains("JSON object")));
        }
    }
}

//! Any receiver: `t=SECONDS,v1=HEX` in a header, where HEX is the HMAC-SHA256 of `SECONDS.BODY`.

use kubewitness_core::ports::GrantError;
use reqwest::header::{HeaderName, HeaderValue};

use super::{OutgoingRequest, hmac_sha256};

pub fn sign_request(
    secret: &str,
    header: &str,
    seconds: u64,
    request: &mut OutgoingRequest,
) -> Result<(), GrantError> {
    let wrong = || GrantError::Other("the signature can't be sent as a header".to_owned());
    let name = HeaderName::try_from(header).map_err(|_| wrong())?;
    let value =
        HeaderValue::try_from(compute_signature(secret, seconds, request.body)).map_err(|_| wrong())?;
    request.headers.insert(name, value);
    Ok(())
}

fn compute_signature(secret: &str, seconds: u64, body: &[u8]) -> String {
    let mut signed = format!("{seconds}.").into_bytes();
    signed.extend_from_slice(body);
    format!("t={seconds},v1={}", hex::encode(hmac_sha256(secret.as_bytes(), &signed)))
}

#[cfg(test)]
mod tests {
    use reqwest::Url;
    use reqwest::header::HeaderMap;

    use super::*;

    #[test]
    fn the_header_has_the_time_and_the_signature_of_time_and_body() {
        let (mut url, mut headers) = (Url::parse("https://x").unwrap(), HeaderMap::new());
        let mut body = br#"{"a":1}"#.to_vec();
        let mut request = OutgoingRequest { url: &mut url, headers: &mut headers, body: &mut body };
        sign_request("hush", "x-signature", 1_700_000_000, &mut request).unwrap();
        assert_eq!(
            headers["x-signature"],
            "t=1700000000,v1=7cfd1df542c33ab7251748ffdc6e7fed278c63b83d4ece95a4534b0ad465571b"
        );
    }
}

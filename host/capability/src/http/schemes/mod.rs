//! Signs requests by the scheme of their destination.
//!
//! Services disagree on all of it: on the key, the message, the unit of time, and the place of the signature.
//! A plugin could follow each service, but then it would need the secret, which must not leave the host. So
//! the operator names the scheme with the destination, and the host signs the finished request just before it
//! is sent.
//!
//! Each scheme is a file here, and [`OutgoingRequest`] is what it may change. A scheme sends nothing and
//! knows no plugin. Rates are in the settings' own module.

mod dingtalk;
mod feishu;
mod hmac;

use kubewitness_core::config::SigningScheme;
use kubewitness_core::ports::GrantError;
use reqwest::Url;
use reqwest::header::HeaderMap;

use crate::secrets::ResolvedSecret;

/// A request that is about to be sent.
pub struct OutgoingRequest<'a> {
    pub url: &'a mut Url,
    pub headers: &'a mut HeaderMap,
    pub body: &'a mut Vec<u8>,
}

pub fn sign_request(
    scheme: SigningScheme<'_>,
    secret: &ResolvedSecret,
    now_ms: u64,
    request: &mut OutgoingRequest,
) -> Result<(), GrantError> {
    match scheme {
        SigningScheme::Feishu(_) => feishu::sign_request(secret.expose_secret(), now_ms / 1000, request),
        SigningScheme::Dingtalk(_) => {
            dingtalk::sign_request(secret.expose_secret(), now_ms, request);
            Ok(())
        }
        SigningScheme::Hmac(signature) => {
            hmac::sign_request(secret.expose_secret(), &signature.header, now_ms / 1000, request)
        }
        SigningScheme::Slack | SigningScheme::Wecom => Ok(()),
    }
}

fn hmac_sha256(key: &[u8], message: &[u8]) -> ring::hmac::Tag {
    ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key), message)
}

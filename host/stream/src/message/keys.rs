//! Authenticates messages with a key that the carrier and its readers share, to detect what others publish on
//! the subjects of a stream. Without a key nothing is signed, and nothing is checked.

use async_nats::HeaderMap;
use ring::hmac;
use thiserror::Error;

use super::{PART, STOOD};

/// The HMAC-SHA256 of a message, in hex.
const MAC: &str = "Kubewitness-Mac";
/// A shorter key could be guessed from one message.
const KEY_BYTES: usize = 32;
/// The most keys. One key signs; during a rotation, another one is still valid.
const KEYS: usize = 4;

/// The secret's text has another form than that of keys.
#[derive(Debug, Error)]
#[error(
    "it has one key of at least {KEY_BYTES} characters a line, and at most {KEYS} lines: `openssl rand -hex 32` prints \
     one"
)]
pub(crate) struct KeyFormatError;

/// The keys of a stream: the first signs, and a message under any of them is valid.
pub(crate) struct MessageKeys(Vec<hmac::Key>);

impl MessageKeys {
    /// One key for each line.
    pub fn parse_keys(text: &str) -> Result<Self, KeyFormatError> {
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() || lines.len() > KEYS || lines.iter().any(|line| line.len() < KEY_BYTES) {
            return Err(KeyFormatError);
        }
        Ok(Self(lines.iter().map(|line| hmac::Key::new(hmac::HMAC_SHA256, line.as_bytes())).collect()))
    }

    pub fn sign_message(&self, subject: &str, headers: &mut HeaderMap, body: &[u8]) {
        if let Some(key) = self.0.first() {
            let tag = hmac::sign(key, &signed_bytes(subject, headers, body));
            headers.insert(MAC, hex::encode(tag));
        }
    }

    pub fn is_valid(&self, subject: &str, headers: &HeaderMap, body: &[u8]) -> bool {
        let mac = headers.get(MAC).and_then(|mac| hex::decode(mac.as_str()).ok());
        let Some(mac) = mac else { return false };
        let signed = signed_bytes(subject, headers, body);
        self.0.iter().any(|key| hmac::verify(key, &signed, &mac).is_ok())
    }
}

/// The subject names stream, source and partition. Each field is preceded by its length, so that no two messages have
/// the same text.
fn signed_bytes(subject: &str, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let header = |name: &str| headers.get(name).map_or(&b""[..], |value| value.as_str().as_bytes());
    let mut signed = Vec::with_capacity(body.len() + 256);
    for field in [subject.as_bytes(), header(STOOD), header(PART), body] {
        signed.extend_from_slice(&(field.len() as u64).to_le_bytes());
        signed.extend_from_slice(field);
    }
    signed
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff";
    const OLD: &str = "ffeeddccbbaa99887766554433221100";

    fn message(keys: &MessageKeys) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(STOOD, "a1 9 8");
        keys.sign_message("kubewitness.platform.states.jobs.1", &mut headers, b"body");
        headers
    }

    #[test]
    fn a_message_is_valid_as_it_was_signed_and_not_otherwise() {
        let keys = MessageKeys::parse_keys(KEY).unwrap();
        let (subject, headers) = ("kubewitness.platform.states.jobs.1", message(&keys));
        assert!(keys.is_valid(subject, &headers, b"body"));
        assert!(!keys.is_valid(subject, &headers, b"other"));
        assert!(!keys.is_valid("kubewitness.platform.states.jobs.2", &headers, b"body"));
        let with = |name: &'static str, value: &str| {
            let mut headers = headers.clone();
            headers.insert(name, value);
            headers
        };
        for other in
            [with(STOOD, "a1 10 8"), with(PART, "0 2"), with(MAC, "00"), with(MAC, "x"), HeaderMap::new()]
        {
            assert!(!keys.is_valid(subject, &other, b"body"), "{other:?}");
        }
        assert!(!MessageKeys::parse_keys(OLD).unwrap().is_valid(subject, &headers, b"body"));
    }

    #[test]
    fn a_key_is_rotated_by_a_second_line_and_a_short_one_is_refused() {
        let old = MessageKeys::parse_keys(OLD).unwrap();
        let both = MessageKeys::parse_keys(&format!("{KEY}\n{OLD}\n")).unwrap();
        let subject = "kubewitness.platform.states.jobs.1";
        assert!(both.is_valid(subject, &message(&old), b"body"));
        assert!(!old.is_valid(subject, &message(&both), b"body"), "the first key signs");
        for wrong in ["", "short", "\n \n"] {
            assert!(MessageKeys::parse_keys(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! The rules together with the key of the digests, applied to documents. It does no I/O.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::redact::{DIGEST_CHARS, RedactionRules, SecretDigests, WithheldDocument};
use ring::hmac;
use serde_json::{Map, Value};

use super::{RedactionError, RedactionKeyError};

#[derive(Clone)]
pub(super) struct KeyedMap {
    pub rules: Arc<RedactionRules>,
    /// Every digest needs the key. The error says why it is missing.
    pub key: Result<hmac::Key, RedactionKeyError>,
}

impl KeyedMap {
    pub fn redact_document(&self, document: Bytes) -> Result<Bytes, RedactionError> {
        let redacted = self.with_digests(|digest| self.rules.redact_document(&document, digest))?;
        Ok(redacted.map_or(document, Bytes::from))
    }

    pub fn redact_event(&self, event: Bytes, of_object: &SecretDigests) -> Result<Bytes, RedactionError> {
        let redacted = self.with_digests(|digest| self.rules.redact_event(&event, of_object, digest))?;
        Ok(redacted.map_or(event, Bytes::from))
    }

    pub fn redact_settings(
        &self,
        settings: &Map<String, Value>,
    ) -> Result<Map<String, Value>, RedactionError> {
        let unreadable = |error: serde_json::Error| WithheldDocument::from_error(error);
        let text = serde_json::to_vec(settings).map_err(unreadable)?;
        let redacted = self.with_digests(|digest| self.rules.redact_settings(&text, digest))?;
        Ok(redacted
            .map_or_else(|| Ok(settings.clone()), |text| serde_json::from_slice(&text))
            .map_err(unreadable)?)
    }

    fn with_digests(
        &self,
        redact: impl FnOnce(&dyn Fn(&[u8]) -> String) -> Result<Option<Vec<u8>>, WithheldDocument>,
    ) -> Result<Option<Vec<u8>>, RedactionError> {
        let redacted =
            redact(&|value| self.key.as_ref().map(|key| keyed_digest(key, value)).unwrap_or_default())?;
        match (redacted, &self.key) {
            (Some(_), Err(error)) => Err(error.clone().into()),
            (redacted, _) => Ok(redacted),
        }
    }

    pub fn secret_digests(&self, documents: &[Bytes]) -> Result<SecretDigests, RedactionError> {
        let digest = |value: &[u8]| match &self.key {
            Ok(key) => Ok(keyed_digest(key, value)),
            Err(error) => Err(error.clone().into()),
        };
        let mut secrets = SecretDigests::default();
        for document in documents {
            match self.rules.add_secrets(document, digest, &mut secrets) {
                Ok(()) => {}
                Err(RedactionError::Withheld(_)) => return Ok(SecretDigests::hide_all()),
                Err(error @ RedactionError::Key(_)) => return Err(error),
            }
        }
        Ok(secrets)
    }
}

fn keyed_digest(key: &hmac::Key, value: &[u8]) -> String {
    hex::encode(&hmac::sign(key, value).as_ref()[..DIGEST_CHARS / 2])
}

//! Takes secrets out of documents before a plugin or a person is given them. `core` finds them; this adds the key
//! of the digests.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::Seq;
use kubewitness_core::config::{Fault, HostSpec, SecretRef};
use kubewitness_core::files::{self, KEY_BYTES};
use kubewitness_core::ports::{Documents, JournalError};
use kubewitness_core::redact::{Redactor, Withheld};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::secrets;

/// In the data folder, where the settings name no key.
const FILE: &str = "redaction.key";
/// Of a digest: enough that two values of one installation do not share it by chance.
const DIGEST_BYTES: usize = 8;

/// The rules of the host's settings, and the key of the digests.
pub struct Redaction {
    redactor: Redactor,
    key: hmac::Key,
}

impl Redaction {
    pub async fn open(host: &HostSpec, data: &Path) -> Result<Self, Vec<Fault>> {
        let redactor = host.redactor()?;
        let key = match &host.redaction.key_from {
            Some(reference) => key_of(reference).await,
            None => key_in(data).await,
        };
        let key = key.map_err(|message| vec![Fault { field: "spec.redaction.keyFrom".into(), message }])?;
        Ok(Self { redactor, key: hmac::Key::new(hmac::HMAC_SHA256, &key) })
    }

    /// The document with a digest in the place of each secret.
    pub fn redact(&self, document: Bytes) -> Result<Bytes, Withheld> {
        let digest = |value: &[u8]| hex::encode(&hmac::sign(&self.key, value).as_ref()[..DIGEST_BYTES]);
        Ok(self.redactor.redact(&document, digest)?.map_or(document, Bytes::from))
    }
}

async fn key_of(reference: &SecretRef) -> Result<Vec<u8>, String> {
    let secret = secrets::resolve(reference).await?;
    match secret.expose().len() >= KEY_BYTES {
        true => Ok(secret.expose().as_bytes().to_vec()),
        false => {
            Err(format!("the key is shorter than {KEY_BYTES} bytes: make one with `openssl rand -hex 32`"))
        }
    }
}

async fn key_in(data: &Path) -> Result<Vec<u8>, String> {
    let path = data.join(FILE);
    let random =
        |key: &mut [u8]| SystemRandom::new().fill(key).map_err(|_| std::io::Error::other("no random bytes"));
    let asked = path.clone();
    let kept = files::within(&path, files::ANSWER, move || {
        std::fs::create_dir_all(asked.parent().unwrap_or(Path::new(".")))?;
        files::own_key(&asked, random)
    });
    let place = path.display();
    let (key, is_new) = kept.await.map_err(|error| format!("the key in {place} can't be kept: {error}"))?;
    if is_new {
        tracing::info!("the digests of secrets have a new key, in {place}: those of before are others");
    }
    Ok(key.to_vec())
}

/// Documents for one that may not see secrets.
pub struct Redacted {
    pub documents: Arc<dyn Documents>,
    pub redaction: Arc<Redaction>,
}

impl Redacted {
    fn redact(&self, document: Option<Bytes>) -> Result<Option<Bytes>, JournalError> {
        let redact = |document| self.redaction.redact(document);
        document.map(redact).transpose().map_err(|withheld| JournalError::Invalid(withheld.to_string()))
    }
}

#[async_trait]
impl Documents for Redacted {
    async fn document(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.redact(self.documents.document(seq).await?)
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.redact(self.documents.document_before(seq).await?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host(key: &serde_json::Value) -> HostSpec {
        serde_json::from_value(json!({"sources": [], "redaction": {"keyFrom": key}})).unwrap()
    }

    #[tokio::test]
    async fn replicas_with_the_same_key_give_the_same_digests() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let key = folders[0].path().join("key");
        std::fs::write(&key, "k".repeat(32)).unwrap();
        let mut seen = Vec::new();
        for folder in &folders {
            let redaction = Redaction::open(&host(&json!({"file": key})), folder.path()).await.unwrap();
            let secret = Bytes::from_static(br#"{"kind":"Secret","data":{"a":"eA=="}}"#);
            seen.push(redaction.redact(secret).unwrap());
            assert!(!folder.path().join(FILE).exists(), "no key is made where one is named");
        }
        assert_eq!(seen[0], seen[1]);
    }

    #[tokio::test]
    async fn a_short_key_and_one_that_is_not_there_are_told_and_so_is_a_document_that_is_withheld() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "short").unwrap();
        for (key, said) in [(key, "openssl rand -hex 32"), (folder.path().join("none"), "can't be read")] {
            let faults = Redaction::open(&host(&json!({"file": key})), folder.path()).await.err().unwrap();
            assert_eq!(faults[0].field, "spec.redaction.keyFrom");
            assert!(faults[0].message.contains(said), "{faults:?}");
        }
        let redaction = Redaction::open(&HostSpec::default(), folder.path()).await.unwrap();
        assert!(redaction.redact(Bytes::from_static(b"{")).unwrap_err().to_string().contains("withheld"));
    }
}

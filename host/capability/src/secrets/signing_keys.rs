//! Signs with Ed25519 keys that an operator configured. A plugin sees signatures and never the key.

use kubewitness_core::config::KeySpec;
use kubewitness_core::ledger::key_id;
use kubewitness_core::ports::GrantError;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;

use super::{SecretError, resolve_secret};

/// A line of a ledger or a hash is signed, not a file.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Why a key can't be used.
#[derive(Debug, Error)]
pub enum SigningKeyError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("is neither PEM nor base64 of a PKCS#8 key")]
    NoPkcs8,
    #[error("is not an Ed25519 key")]
    NoEd25519,
}

pub struct SigningKey {
    pub spec: KeySpec,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    /// Read once: a rotated key is another key, and needs another name.
    pub async fn load(spec: &KeySpec) -> Result<Self, SigningKeyError> {
        let secret = resolve_secret(&spec.value_from).await?;
        let text = secret.expose_secret().trim();
        let pem = match text.starts_with("-----BEGIN") {
            true => text.to_owned(),
            false => format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"),
        };
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| SigningKeyError::NoPkcs8)?;
        // Keys of other tools often lack their public half; it is derived then.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der())
            .map_err(|_| SigningKeyError::NoEd25519)?;
        Ok(Self { spec: spec.clone(), pair })
    }

    pub fn sign_message(&self, message: &[u8]) -> Result<Vec<u8>, GrantError> {
        if message.len() > MESSAGE_BYTES {
            return Err(GrantError::TooLarge(format!("a message to sign has at most {MESSAGE_BYTES} bytes")));
        }
        Ok(self.pair.sign(message).as_ref().to_vec())
    }

    /// Signs the controller's own statements in a ledger. Their form limits their size.
    pub fn sign_statement(&self, text: &[u8]) -> Vec<u8> {
        self.pair.sign(text).as_ref().to_vec()
    }

    /// The id with which statements refer to the key.
    pub fn id(&self) -> String {
        key_id(self.pair.public_key().as_ref())
    }

    /// The key with which others verify the signatures.
    pub fn public_key(&self) -> Vec<u8> {
        self.pair.public_key().as_ref().to_vec()
    }
}

#[cfg(test)]
impl SigningKey {
    /// The pair is generated and not read from a file, so that no file is checked.
    pub fn fresh() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let value_from = kubewitness_core::config::SecretRef::File("unused".into());
        Self { spec: KeySpec { name: "audit".into(), value_from }, pair }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_core::config::SecretRef;
    use ring::signature::{ED25519, UnparsedPublicKey};

    /// The example key of RFC 8410.
    const KEY: &str = "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC";

    async fn load(text: &str) -> Result<SigningKey, SigningKeyError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, text).unwrap();
        let value_from = SecretRef::File(path.to_str().unwrap().into());
        SigningKey::load(&KeySpec { name: "audit".into(), value_from }).await
    }

    #[tokio::test]
    async fn a_signature_verifies_with_the_public_half() {
        for text in
            [KEY.to_owned(), format!("-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n")]
        {
            let key = load(&text).await.unwrap();
            let signature = key.sign_message(b"line").unwrap();
            UnparsedPublicKey::new(&ED25519, key.public_key()).verify(b"line", &signature).unwrap();
        }
    }

    #[test]
    fn a_message_to_sign_has_no_more_bytes_than_its_bound() {
        let key = SigningKey::fresh();
        assert!(key.sign_message(&vec![7; MESSAGE_BYTES]).is_ok());
        assert!(matches!(key.sign_message(&vec![7; MESSAGE_BYTES + 1]), Err(GrantError::TooLarge(_))));
    }

    #[tokio::test]
    async fn what_is_no_key_is_refused_without_its_text() {
        for text in ["hush-hush", "aHVzaC1odXNo"] {
            let error = load(text).await.err().unwrap().to_string();
            assert!(!error.contains("hush") && !error.contains("aHVz"), "{error}");
        }
    }
}

//! Encryption of Jobs at rest: how the API server is told of it, and how somebody reads what etcd then has.

use anyhow::{Result, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::{Value, json};

/// The key of a cluster that lives for minutes on loopback.
const KEY: [u8; 32] = [7; 32];
const KEY_NAME: &str = "real";
/// Each encrypted value begins with it.
const ENCRYPTED: &[u8] = b"k8s:enc:aesgcm:v1:real:";

/// The first provider writes, and all of them read. So an object stays in its old form until somebody writes it again.
pub(super) fn encryption_configuration(is_encrypted: bool) -> Value {
    let keys = json!([{"name": KEY_NAME, "secret": STANDARD.encode(KEY)}]);
    let mut providers = vec![json!({"aesgcm": {"keys": keys}}), json!({"identity": {}})];
    if !is_encrypted {
        providers.reverse();
    }
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["jobs.batch"], "providers": providers}],
    })
}

/// A value of etcd as it was before it was encrypted. The key of etcd is a part of what is proven.
pub(super) fn decrypted(key: &str, mut value: Vec<u8>) -> Result<Vec<u8>> {
    let Some(rest) = value.strip_prefix(ENCRYPTED) else { return Ok(value) };
    ensure!(rest.len() > NONCE_LEN, "the encrypted value of {key} is too short");
    let (start, refused) = (ENCRYPTED.len() + NONCE_LEN, || anyhow!("the value of {key} can't be decrypted"));
    let nonce = Nonce::try_assume_unique_for_key(&rest[..NONCE_LEN]).map_err(|_| refused())?;
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &KEY).map_err(|_| refused())?);
    let plain = cipher.open_in_place(nonce, Aad::from(key), &mut value[start..]).map_err(|_| refused())?;
    Ok(plain.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encrypted_value_is_read_under_its_own_key_alone() {
        let mut sealed = b"{}".to_vec();
        let nonce = [3; NONCE_LEN];
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &KEY).expect("a key"));
        let unique = Nonce::assume_unique_for_key(nonce);
        cipher.seal_in_place_append_tag(unique, Aad::from("/registry/a"), &mut sealed).expect("sealed");
        let value = [ENCRYPTED, &nonce, &sealed].concat();
        assert_eq!(decrypted("/registry/a", value.clone()).expect("its key"), b"{}");
        decrypted("/registry/b", value).expect_err("another key");
        decrypted("/registry/a", ENCRYPTED.to_vec()).expect_err("nothing in it");
        assert_eq!(decrypted("/registry/a", b"{1}".to_vec()).expect("plain"), b"{1}");
    }
}

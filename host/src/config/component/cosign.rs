//! Signatures by a key of cosign, in its layout of tags: beside the image `sha256:DIGEST` is another one with
//! the tag `sha256-DIGEST.sig`. Each of its layers is a text that names the signed image, with the signature
//! over that text as an annotation. Pure.
//!
//! A sigstore crate was rejected: only one text and one P-256 signature are verified, which `ring` does.
//! Certificates and transparency logs are not used.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub const LAYER: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
pub const ANNOTATION: &str = "dev.cosignproject.cosign/signature";

/// The DER bytes before the point of a P-256 key, the only kind that cosign generates.
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A text, and the signature over it in base64. Kept beside a component, so that it can be verified again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CosignSignature {
    pub payload: String,
    pub signature: String,
}

#[derive(Deserialize)]
struct CosignPayload {
    critical: CosignCritical,
}

#[derive(Deserialize)]
struct CosignCritical {
    image: CosignImage,
}

#[derive(Deserialize)]
struct CosignImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

/// Why an image does not count as signed.
#[derive(Debug, Error)]
pub enum SignatureError {
    #[error("has no signature of cosign, and the host's settings ask for one")]
    Unsigned,
    #[error("a signature is no base64")]
    NoBase64,
    #[error("none of the keys in `modules.signedBy` has made its signature")]
    OtherKey,
    #[error("what is signed is no text of cosign: {0}")]
    OtherText(#[source] serde_json::Error),
    #[error("its signature is one of another image, {0}")]
    OtherImage(String),
    #[error("the host's settings: spec.modules.signedBy[{place}]: {problem}")]
    Key { place: usize, problem: KeyProblem },
}

/// The fault of a key in the host's settings.
#[derive(Debug, Error)]
pub enum KeyProblem {
    #[error("is no public key as PEM: `cosign public-key --key …` prints one")]
    NoPem,
    #[error("is no ECDSA key of P-256, which `cosign generate-key-pair` makes")]
    OtherCurve,
}

/// The tag of an image's signatures.
pub fn signature_tag(digest: &str) -> String {
    format!("sha256-{digest}.sig")
}

/// The index, in `keys`, of the key that signed the image with this digest.
pub fn find_signer(keys: &[String], digest: &str, found: &CosignSignature) -> Result<usize, SignatureError> {
    let signature = STANDARD.decode(found.signature.trim()).map_err(|_| SignatureError::NoBase64)?;
    let keys: Result<Vec<_>, _> = keys.iter().enumerate().map(|(place, key)| key_point(place, key)).collect();
    let by = |key: &Vec<u8>| {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key);
        key.verify(found.payload.as_bytes(), &signature).is_ok()
    };
    let signer = keys?.iter().position(by).ok_or(SignatureError::OtherKey)?;
    // Only now is the author of the text known.
    let payload: CosignPayload = serde_json::from_str(&found.payload).map_err(SignatureError::OtherText)?;
    match payload.critical.image.digest == format!("sha256:{digest}") {
        true => Ok(signer),
        false => Err(SignatureError::OtherImage(payload.critical.image.digest)),
    }
}

/// The point of a public key.
fn key_point(place: usize, key: &str) -> Result<Vec<u8>, SignatureError> {
    let refused = |problem| SignatureError::Key { place, problem };
    let key =
        SubjectPublicKeyInfoDer::from_pem_slice(key.as_bytes()).map_err(|_| refused(KeyProblem::NoPem))?;
    let point = key.as_ref().strip_prefix(&P256).filter(|point| point.len() == 65);
    point.map(<[u8]>::to_vec).ok_or_else(|| refused(KeyProblem::OtherCurve))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    /// Key, text and signature were made with `openssl ecparam` and `openssl dgst -sha256 -sign`, in the
    /// format of cosign.
    const KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEywCAFTzHTFOmChcFotY3r+M/BABc\n\
        CkehsVHo8iuCuf5EfOtxjYj/gAJeFsfx8aqcOH5HQw2JWkdHBYkdz/Nvbg==\n-----END PUBLIC KEY-----\n";
    const OTHER_CURVE: &str = "-----BEGIN PUBLIC KEY-----\n\
        MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEyRYWMf4CAQjLtmzEWYH6XllD7dRyfjRu\n\
        rUCm6FTwKbJQ5PUrFBgIIgVj55JuqGnWZNvYUfRoqKTl5558rqr07IpTOBKIOnbu\n\
        Oauz1ZWyjENghsu4FWHZrNdFEpdHo3ul\n-----END PUBLIC KEY-----\n";

    fn made() -> CosignSignature {
        let payload = r#"{"critical":{"identity":{"docker-reference":"registry.example.com/team/plugin"},"image":{"docker-manifest-digest":"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},"type":"cosign container image signature"},"optional":null}"#;
        let signature = "MEUCIQCUass+A2r2Fk9GBFiSiB/k2SESVPCUizdl3oMf6d/GUwIgbQ8nJXzQgOQmD4ic+wMidMlabV2ODMa0XUq9O1uZVqc=";
        CosignSignature { payload: payload.into(), signature: signature.into() }
    }

    #[test]
    fn what_the_key_has_signed_is_known_by_its_place() {
        assert_eq!(find_signer(&[KEY.into()], DIGEST, &made()).unwrap(), 0);
        assert_eq!(signature_tag(DIGEST), format!("sha256-{DIGEST}.sig"));
    }

    #[test]
    fn another_text_image_or_key_is_refused_with_the_reason() {
        let keys = [KEY.to_owned()];
        let error_of = |keys: &[String], digest: &str, found: CosignSignature| {
            find_signer(keys, digest, &found).unwrap_err().to_string()
        };
        let other = "00".repeat(32);
        assert!(error_of(&keys, &other, made()).contains("of another image"));
        let changed = CosignSignature { payload: made().payload.replace("9f86", "0000"), ..made() };
        assert!(error_of(&keys, DIGEST, changed).contains("none of the keys"));
        let broken = CosignSignature { signature: "%".into(), ..made() };
        assert!(error_of(&keys, DIGEST, broken).contains("no base64"));
        for (key, why) in [(OTHER_CURVE, "P-256"), ("garbage", "PEM")] {
            let error_of = error_of(&[key.into()], DIGEST, made());
            assert!(error_of.contains("spec.modules.signedBy[0]") && error_of.contains(why), "{error_of}");
        }
        assert!(error_of(&[], DIGEST, made()).contains("none of the keys"));
    }
}

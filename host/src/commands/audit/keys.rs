//! Keys of ledgers: public ones for verification, and new pairs.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_core::files;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};

use super::merkle::sha256;
use super::statements::PublicKeys;

/// A PEM with one key has some hundred bytes.
const FILE_BYTES: u64 = 64 << 10;
/// The DER before the 32 bytes of a public key (RFC 8410).
const PUBLIC: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The DER before the 32 bytes of a private key.
const PRIVATE: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// The id with which statements refer to a key.
pub fn id(public: &[u8]) -> String {
    hex::encode(&sha256(&[public])[..8])
}

pub fn encode_pem(label: &str, begin: &[u8], key: &[u8]) -> String {
    let text = STANDARD.encode([begin, key].concat());
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

pub fn public_pem(public: &[u8]) -> String {
    encode_pem("PUBLIC KEY", &PUBLIC, public)
}

/// The public keys of these files. A private key gives its public part.
pub fn read_all(paths: &[PathBuf]) -> Result<PublicKeys> {
    let read = |path: &PathBuf| read(path).map(|public| (id(&public), public));
    paths.iter().map(read).collect()
}

pub fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = files::open_command_input(path).and_then(|file| files::read_from(file, FILE_BYTES));
    let bytes = bytes.with_context(|| format!("reading the key {}", path.display()))?;
    let text = String::from_utf8(bytes).ok();
    let public = text.as_deref().and_then(of_text);
    public.with_context(|| {
        format!(
            "{} holds no Ed25519 key: give a PEM, or base64, of a public key (SPKI) or a private key (PKCS#8)",
            path.display()
        )
    })
}

fn of_text(text: &str) -> Option<Vec<u8>> {
    let body: String = text.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
    let der = STANDARD.decode(body).ok()?;
    if let Some(public) = der.strip_prefix(&PUBLIC).filter(|public| public.len() == 32) {
        return Some(public.to_vec());
    }
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).ok()?;
    Some(pair.public_key().as_ref().to_vec())
}

/// Writes a new private key that only its owner can read, and returns the public part. An existing file is
/// not overwritten.
pub fn make_key_file(path: &Path) -> Result<Vec<u8>> {
    let mut seed = [0; 32];
    if SystemRandom::new().fill(&mut seed).is_err() {
        bail!("the machine has no randomness");
    }
    let pair =
        Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| anyhow::anyhow!("the seed is no key"))?;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file =
        file.with_context(|| format!("making {}: name a file that is not there yet", path.display()))?;
    file.write_all(encode_pem("PRIVATE KEY", &PRIVATE, &seed).as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(pair.public_key().as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_its_owners_alone_and_is_read_back_in_each_form() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (private, public) = (folder.path().join("key"), folder.path().join("key.pub"));
        let made = make_key_file(&private).unwrap();
        assert_eq!(std::fs::metadata(&private).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&public, public_pem(&made)).unwrap();
        assert_eq!((read(&private).unwrap(), read(&public).unwrap()), (made.clone(), made.clone()));
        let bare: String = public_pem(&made).lines().filter(|line| !line.starts_with('-')).collect();
        std::fs::write(&public, bare).unwrap();
        assert_eq!(read_all(&[private.clone(), public]).unwrap(), PublicKeys::from([(id(&made), made)]));
        assert!(make_key_file(&private).unwrap_err().to_string().contains("not there yet"));
    }

    #[test]
    fn what_is_no_key_is_refused_with_what_to_give() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for text in ["", "hush", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("no Ed25519 key") && !error.contains("hush"), "{error}");
        }
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read(&path).is_err());
    }
}

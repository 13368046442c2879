//! The key that encrypts people's sessions: from a file of the operator, or generated once in the data
//! folder.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kubewitness_core::files::{self, KeyOrigin};
use kubewitness_portal::SESSION_KEY_BYTES;
use ring::rand::{SecureRandom, SystemRandom};
use tracing::warn;

pub type SessionKey = [u8; SESSION_KEY_BYTES];

/// The name of the file in the data folder.
const FILE: &str = "session.key";
/// Hex digits with a newline, and room for white space.
const BYTES: u64 = 4096;

pub async fn of_file(file: &Path) -> Result<SessionKey> {
    let path = file.to_owned();
    let read = files::run_within_limit(file, files::ANSWER, move || parse(&files::read(&path, BYTES)?)).await;
    read.with_context(|| format!("reading the session key from {}", file.display()))
}

/// The key of this data folder. It is generated if it is missing.
pub async fn of_data(data: &Path) -> Result<SessionKey> {
    let folder = data.to_owned();
    let kept = files::run_within_limit(data, files::ANSWER, move || {
        std::fs::create_dir_all(&folder)?;
        let random =
            |key: &mut [u8]| SystemRandom::new().fill(key).map_err(|_| io::Error::other("no random bytes"));
        files::own_key(&folder.join(FILE), random)
    });
    let place = data.join(FILE);
    let kept = kept.await.with_context(|| format!("keeping the session key in {}", place.display()));
    let (key, origin) = kept?;
    if origin == KeyOrigin::MadeAnew {
        warn!(
            "{} was damaged or open to others: the controller has made a new key, and everybody has to sign in again",
            place.display()
        );
    }
    Ok(key)
}

/// A key for this process only.
pub fn random() -> Result<SessionKey> {
    let mut key = [0; SESSION_KEY_BYTES];
    match SystemRandom::new().fill(&mut key) {
        Ok(()) => Ok(key),
        Err(_) => bail!("the machine has no random numbers for the session key"),
    }
}

/// Accepts the output of `head -c 32 /dev/urandom` and of `openssl rand -hex 32`.
fn parse(bytes: &[u8]) -> io::Result<SessionKey> {
    if let Ok(key) = bytes.try_into() {
        return Ok(key);
    }
    let mut key = [0; SESSION_KEY_BYTES];
    hex::decode_to_slice(bytes.trim_ascii(), &mut key).map(|()| key).map_err(|_| {
        io::Error::other(format!(
            "it is neither {SESSION_KEY_BYTES} random bytes nor {} hex digits: make one with `openssl rand -hex \
             {SESSION_KEY_BYTES}`",
            2 * SESSION_KEY_BYTES
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_key_is_bytes_or_hex_digits_as_a_shell_leaves_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        for text in [vec![7; 32], format!("{}\n", "07".repeat(32)).into_bytes()] {
            fs::write(&file, text).unwrap();
            assert_eq!(of_file(&file).await.unwrap(), [7; 32]);
        }
        for text in [vec![], vec![7; 31], b"g".repeat(64)] {
            fs::write(&file, text).unwrap();
            let error = format!("{:#}", of_file(&file).await.unwrap_err());
            assert!(error.contains("openssl rand -hex 32") && error.contains("key"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_folder_keeps_its_key_and_no_other_user_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let first = of_data(&data).await.unwrap();
        assert_ne!(first, [0; 32]);
        assert_eq!(of_data(&data).await.unwrap(), first);
        let path = data.join(FILE);
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        assert_eq!(of_data(&data).await.unwrap(), first, "a volume's group is the pod's own");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let second = of_data(&data).await.unwrap();
        assert_ne!(second, first);
        assert_eq!(mode(), 0o600);
        fs::write(&path, "short").unwrap();
        assert_ne!(of_data(&data).await.unwrap(), second);
    }
}

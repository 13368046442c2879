//! Resolves references to secrets at the moment of use.
//!
//! The configuration is stored, shown and logged, so it contains only references. A mounted file changes when
//! somebody rotates the secret. A value read at the start would become outdated, and would stay in memory; so
//! senders resolve the reference each time.
//!
//! Invariant: a value is never logged, never part of an error, and never passed to a plugin.

pub(crate) mod redaction;
pub(crate) mod signing_keys;

use std::path::PathBuf;
use std::{fmt, io};

use kubewitness_core::config::SecretRef;
use kubewitness_core::files;
use thiserror::Error;

/// Keys and tokens are short. A larger file is a mistake.
const SECRET_BYTES: u64 = 64 * 1024;

/// A resolved secret. It has no `Display`, and its `Debug` shows nothing.
pub struct ResolvedSecret(String);

impl ResolvedSecret {
    pub fn expose_secret(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
impl ResolvedSecret {
    pub fn of_test(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for ResolvedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a reference has no value.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("the environment has no readable variable `{0}`")]
    Variable(String),
    #[error("the file `{path}` can't be read: {source}")]
    File { path: String, source: io::Error },
    #[error("the secret is empty")]
    Empty,
}

/// Reads the value of a reference. Mounted files are replaced when a secret is rotated, so senders read it
/// each time, and wait for it at most [`files::ANSWER`]. Trailing newlines belong to the editor, not to the
/// secret.
pub async fn resolve_secret(reference: &SecretRef) -> Result<ResolvedSecret, SecretError> {
    let value = match reference {
        SecretRef::Env(name) => std::env::var(name).map_err(|_| SecretError::Variable(name.clone()))?,
        SecretRef::File(path) => {
            read(path).await.map_err(|source| SecretError::File { path: path.clone(), source })?
        }
    };
    let value = value.trim_end_matches(['\r', '\n']);
    if value.is_empty() {
        return Err(SecretError::Empty);
    }
    Ok(ResolvedSecret(value.to_owned()))
}

async fn read(path: &str) -> io::Result<String> {
    let path = PathBuf::from(path);
    files::run_within_limit(&path.clone(), files::ANSWER, move || files::text(&path, SECRET_BYTES)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_without_its_last_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "hush\n").unwrap();
        let secret = resolve_secret(&SecretRef::File(path.to_str().unwrap().into())).await.unwrap();
        assert_eq!(secret.expose_secret(), "hush");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    async fn refusal(reference: SecretRef) -> String {
        resolve_secret(&reference).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn what_cannot_be_resolved_is_named_without_a_value() {
        let error = refusal(SecretRef::Env("KUBEWITNESS_TEST_NO_SUCH".into())).await;
        assert!(error.contains("KUBEWITNESS_TEST_NO_SUCH"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty");
        let of_path = || SecretRef::File(path.to_str().unwrap().into());
        std::fs::write(&path, "\n").unwrap();
        assert!(refusal(of_path()).await.contains("empty"));
        std::fs::write(&path, "x".repeat(SECRET_BYTES as usize + 1)).unwrap();
        assert!(refusal(of_path()).await.contains("larger than 64 KiB"));
    }

    #[tokio::test]
    async fn a_pipe_or_a_device_is_no_secret_and_nobody_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let message = refusal(SecretRef::File(path.to_str().unwrap().into())).await;
        assert!(message.contains("pipe` can't be read: it is a pipe"), "{message}");
        assert!(refusal(SecretRef::File("/dev/zero".into())).await.contains("it is a device"));
    }
}

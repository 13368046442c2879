//! Secrets: references in the configuration, values only here and only for the moment of use.
//! A value is never logged, never part of an error, and never handed to a plugin.

use std::fmt;
use std::io::Read;

use kubewitness_core::config::SecretRef;

/// Keys and tokens are small; a larger file is a mistake.
const SECRET_BYTES: u64 = 64 * 1024;

/// A resolved secret. It has no `Display`, and its `Debug` says nothing.
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Reads the value behind a reference. Mounted files are replaced when a secret is rotated, so
/// those who send it read it each time. Trailing line ends belong to the editor, not the secret.
pub fn resolve(reference: &SecretRef) -> Result<Secret, String> {
    let value = match reference {
        SecretRef::Env(name) => {
            std::env::var(name).map_err(|_| format!("the environment has no readable variable `{name}`"))?
        }
        SecretRef::File(path) => {
            read(path).map_err(|error| format!("the file `{path}` can't be read: {error}"))?
        }
    };
    let value = value.trim_end_matches(['\r', '\n']);
    if value.is_empty() {
        return Err("the secret is empty".into());
    }
    Ok(Secret(value.to_owned()))
}

fn read(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(path)?.take(SECRET_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > SECRET_BYTES {
        return Err(std::io::Error::other(format!("it is larger than {SECRET_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_its_last_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "hush\n").unwrap();
        let secret = resolve(&SecretRef::File(path.to_str().unwrap().into())).unwrap();
        assert_eq!(secret.expose(), "hush");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    #[test]
    fn what_cannot_be_resolved_is_named_without_a_value() {
        let error = resolve(&SecretRef::Env("KUBEWITNESS_TEST_NO_SUCH".into())).unwrap_err();
        assert!(error.contains("KUBEWITNESS_TEST_NO_SUCH"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty");
        std::fs::write(&path, "\n").unwrap();
        assert!(resolve(&SecretRef::File(path.to_str().unwrap().into())).unwrap_err().contains("empty"));
    }
}

//! What the address of a server tells without a connection to it.

use std::path::PathBuf;

use crate::files;

/// The certificates and keys that an address of a database names, as its clients write them.
const FILES: [&str; 8] =
    ["sslrootcert", "ssl-root-cert", "ssl-ca", "sslca", "sslcert", "ssl-cert", "sslkey", "ssl-key"];

/// Looks at the files that an address names, before a client opens them as it likes: one that hangs would
/// keep a thread of the runtime's with each try. Nothing else of the address is told.
pub async fn expect_files(url: &str) -> Result<(), String> {
    for (field, path) in named_files(url) {
        let asked = path.clone();
        let looked = files::within(&path, files::ANSWER, move || files::look(&asked)).await;
        looked.map_err(|error| format!("the file that its `{field}` names: {error}"))?;
    }
    Ok(())
}

fn named_files(url: &str) -> Vec<(&str, PathBuf)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let named = pairs.filter(|(field, value)| FILES.contains(field) && !value.starts_with("-----BEGIN"));
    named.map(|(field, value)| (field, PathBuf::from(plain(value)))).collect()
}

/// Without the escapes of an address.
fn plain(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, after.first_chunk::<2>().and_then(|digits| hex(digits))) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a password ended at its own `@` or `/`: what is then taken for the database is a part of it,
/// and must not be told to anybody.
pub fn is_cut(database: &str) -> bool {
    database.contains(['@', ':', '/'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_an_address_names_are_found_as_they_are_on_disk() {
        let url = "postgres://ann:hush@db/j?sslmode=verify-full&sslrootcert=%2Fa%20b%2Fca+1.pem&sslkey=k%zz";
        let wanted = [("sslrootcert", "/a b/ca 1.pem".into()), ("sslkey", "k%zz".into())];
        assert_eq!(named_files(url), wanted);
        assert!(named_files("mysql://ann:hush@db/j").is_empty());
    }

    #[tokio::test]
    async fn a_pipe_in_the_place_of_a_certificate_is_refused_before_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("ca.pem");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let url = format!("postgres://ann:hush@db/j?sslrootcert={}", pipe.display());
        let told = expect_files(&url).await.unwrap_err();
        assert!(told.starts_with("the file that its `sslrootcert` names: it is a pipe"), "{told}");
        let missing = format!("{url}.none");
        assert!(expect_files(&missing).await.is_ok(), "the client tells that it is not there");
    }

    #[test]
    fn what_a_password_was_cut_into_is_told_from_the_name_of_a_database() {
        // Of `postgres://ann:p@s/h@db/journal` and `postgres://ann:p/s:h@db/journal`.
        for part in ["h@db/journal", "s:h@db/journal"] {
            assert!(is_cut(part), "{part}");
        }
        for name in ["journal", "", "kube-witness_2", "p%40s"] {
            assert!(!is_cut(name), "{name}");
        }
    }
}

//! Reads the parts of a database server's address, without connecting.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::files;

/// The parameters of an address that name certificates and keys, as the database clients spell them.
const FILES: [&str; 8] =
    ["sslrootcert", "ssl-root-cert", "ssl-ca", "sslca", "sslcert", "ssl-cert", "sslkey", "ssl-key"];

/// A file that an address names can't be opened.
#[derive(Debug, Error)]
#[error("the file that its `{field}` names: {source}")]
pub struct AddressFileError {
    field: &'static str,
    source: io::Error,
}

/// Checks the files that an address names before a client opens them. A file that hangs would block a runtime
/// thread on each try. The error quotes nothing else of the address.
pub async fn expect_files(url: &str) -> Result<(), AddressFileError> {
    for (field, path) in named_files(url) {
        let asked = path.clone();
        let looked = files::run_within_limit(&path, files::ANSWER, move || files::look(&asked)).await;
        looked.map_err(|source| AddressFileError { field, source })?;
    }
    Ok(())
}

fn named_files(url: &str) -> Vec<(&'static str, PathBuf)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let named = url::form_urlencoded::parse(query.as_bytes()).filter_map(|(field, value)| {
        let field = FILES.into_iter().find(|known| *known == field)?;
        (!value.is_empty() && !value.starts_with("-----BEGIN")).then(|| (field, PathBuf::from(&*value)))
    });
    named.collect()
}

/// Whether a `@` or `/` in the password split the address in the wrong place. Then the database's name is
/// part of the password and must not be shown.
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
        for (written, read) in [
            ("a%2fb", "a/b"),
            ("a%", "a%"),
            ("a%4", "a%4"),
            ("%e4%bd%a0", "你"),
            ("%ff", "\u{fffd}"),
            ("a=b", "a=b"),
        ] {
            let url = format!("mysql://db/j?sslkey={written}&ssl-mode=REQUIRED");
            assert_eq!(named_files(&url), [("sslkey", read.into())], "{written}");
        }
    }

    #[tokio::test]
    async fn a_pipe_in_the_place_of_a_certificate_is_refused_before_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("ca.pem");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let url = format!("postgres://ann:hush@db/j?sslrootcert={}", pipe.display());
        let error = expect_files(&url).await.unwrap_err().to_string();
        assert!(error.starts_with("the file that its `sslrootcert` names: it is a pipe"), "{error}");
        let missing = format!("{url}.none");
        assert!(expect_files(&missing).await.is_ok(), "the client tells that it is not there");
    }

    #[test]
    fn what_a_password_was_cut_into_is_told_from_the_name_of_a_database() {
        // From `postgres://ann:p@s/h@db/journal` and `postgres://ann:p/s:h@db/journal`.
        for part in ["h@db/journal", "s:h@db/journal"] {
            assert!(is_cut(part), "{part}");
        }
        for name in ["journal", "", "kube-witness_2", "p%40s"] {
            assert!(!is_cut(name), "{name}");
        }
    }
}

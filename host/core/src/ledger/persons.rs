//! Names of people, stored beside a ledger. The ledger's records contain digests instead, so a name can be
//! erased without breaking the chain. `trail.jsonl` has its names in `trail.persons`, one line each:
//!
//! ```text
//! {"digest":"<64 hex>","salt":"<32 hex>","name":"ada"}
//! {"digest":"<64 hex>","erased":"2026-11-26T10:00:00.000Z"}       (padded with blanks to the length of the old line)
//! ```
//!
//! `digest` is SHA-256 over the 16 bytes of the salt and the name. Each name has its own salt, which is
//! erased with the name. Without the salt nobody can find the name by trying candidates.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{names, sha256};

pub const SALT_BYTES: usize = 16;
/// No person has a longer name.
pub const NAME_BYTES: usize = 256;
/// The most names of one ledger: some megabytes, which the controller holds.
pub const PERSONS: usize = 20_000;
/// JSON takes at most six bytes for each byte of a name.
pub const PERSON_BYTES: usize = 6 * NAME_BYTES + 256;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PersonEntry {
    Named { digest: String, salt: String, name: String },
    Erased { digest: String, erased: String },
}

/// The file of the names of a ledger, from the name of its open file or of a closed one.
pub fn persons_file(file: &Path) -> PathBuf {
    names::open_file(file).unwrap_or_else(|| file.to_owned()).with_extension("persons")
}

impl PersonEntry {
    pub fn of_name(name: &str, salt: [u8; SALT_BYTES]) -> Self {
        let digest = hex::encode(sha256(&[salt.as_slice(), name.as_bytes()].concat()));
        Self::Named { digest, salt: hex::encode(salt), name: name.to_owned() }
    }

    /// `None` for a line that is not an entry: its name does not match its digest, or an erased line has
    /// other content. A crash during an erasure can leave part of the name behind.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let person: Self = serde_json::from_slice(line).ok()?;
        let holds = match &person {
            Self::Named { salt, name, .. } => {
                let salt = hex::decode(salt).ok()?.try_into().ok()?;
                Self::of_name(name, salt) == person
            }
            Self::Erased { .. } => person.encode_line().ok()?.trim_ascii_end() == line.trim_ascii_end(),
        };
        holds.then_some(person)
    }

    pub fn digest(&self) -> &str {
        match self {
            Self::Named { digest, .. } | Self::Erased { digest, .. } => digest,
        }
    }

    /// Encodes the line, with its newline.
    pub fn encode_line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// The line that replaces a line of `bytes` bytes, newline included. It has the time of the erasure.
    pub fn encode_erased_line(&self, at: &str, bytes: usize) -> Result<Vec<u8>, serde_json::Error> {
        let erased = Self::Erased { digest: self.digest().to_owned(), erased: at.to_owned() };
        let mut line = serde_json::to_vec(&erased)?;
        line.resize(bytes.saturating_sub(1).max(line.len()), b' ');
        line.push(b'\n');
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_names_lie_beside_the_open_file_and_are_found_from_a_closed_one() {
        for file in ["audit/trail.jsonl", "audit/trail-000012.jsonl"] {
            assert_eq!(persons_file(Path::new(file)), Path::new("audit/trail.persons"));
        }
        assert_eq!(persons_file(Path::new("trail-12.jsonl")), Path::new("trail-12.persons"));
    }

    #[test]
    fn a_name_under_the_digest_of_another_says_nothing() {
        let line = PersonEntry::of_name("ada", [7; SALT_BYTES]).encode_line().unwrap();
        let text = String::from_utf8(line).unwrap();
        assert!(PersonEntry::parse(text.as_bytes()).is_some());
        assert_eq!(PersonEntry::parse(text.replace("ada", "bob").as_bytes()), None);
        assert_eq!(PersonEntry::parse(text.replace("07", "08").as_bytes()), None);
        assert_eq!(PersonEntry::parse(b""), None);
    }

    #[test]
    fn an_erasure_with_a_name_behind_it_says_nothing() {
        let torn = br#"{"digest":"ab","erased":"2026-11-26T10:00:00.000Z","name":"ada"}"#;
        assert_eq!(PersonEntry::parse(torn), None);
        let whole = b"{\"digest\":\"ab\",\"erased\":\"2026-11-26T10:00:00.000Z\"}     \n";
        assert!(matches!(PersonEntry::parse(whole), Some(PersonEntry::Erased { .. })));
    }

    proptest! {
        #[test]
        fn what_takes_the_place_of_a_name_has_its_length_and_its_digest_and_not_the_name(name in "[^\"\\\\]{1,64}") {
            let person = PersonEntry::of_name(&name, [9; SALT_BYTES]);
            let line = person.encode_line().unwrap();
            prop_assert!(line.len() <= PERSON_BYTES);
            prop_assert_eq!(PersonEntry::parse(&line), Some(person.clone()));
            let erased = person.encode_erased_line("2026-11-26T10:00:00.000Z", line.len()).unwrap();
            prop_assert_eq!(erased.len(), line.len());
            let read = PersonEntry::parse(&erased).unwrap();
            prop_assert_eq!(read.digest(), person.digest());
            let is_erased = matches!(read, PersonEntry::Erased { .. });
            prop_assert!(is_erased && !String::from_utf8_lossy(&erased).contains("name"));
        }
    }
}

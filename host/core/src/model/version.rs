//! Compares resource versions as Kubernetes defines it since 1.35.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A resource version. Decimal strings of any length are ordered. Any other version is only equal or not, and
/// `compare` returns `None`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(transparent)]
pub struct Version(Arc<str>);

impl Version {
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a decimal without sign or leading zero, and so comparable within one resource.
    pub fn is_comparable(&self) -> bool {
        let bytes = self.0.as_bytes();
        !bytes.is_empty() && bytes[0] != b'0' && bytes.iter().all(u8::is_ascii_digit)
    }

    /// The version as a number, if it is comparable and fits.
    pub fn as_number(&self) -> Option<u64> {
        if !self.is_comparable() {
            return None;
        }
        self.0.parse().ok()
    }

    /// Compares the length, then the bytes. `None` if the two differ and one is not comparable.
    pub fn compare_to(&self, other: &Self) -> Option<Ordering> {
        if self == other {
            return Some(Ordering::Equal);
        }
        if !self.is_comparable() || !other.is_comparable() {
            return None;
        }
        Some(self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0)))
    }

    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.compare_to(other) == Some(Ordering::Greater)
    }

    /// The version before all others in a history that has this version. It is empty if versions have no
    /// order.
    pub fn first_of_history(&self) -> Self {
        Self::new(if self.is_comparable() { "1" } else { "" })
    }

    /// The version directly before this one, for the walk-back; `None` at 1, or if not comparable.
    pub fn directly_before(&self) -> Option<Self> {
        if !self.is_comparable() || &*self.0 == "1" {
            return None;
        }
        // Every version takes this branch today, and it runs for each event.
        if let Ok(number) = self.0.parse::<u64>() {
            let mut text = [0; 20];
            let (mut rest, mut at) = (number - 1, text.len());
            while rest > 0 {
                at -= 1;
                text[at] = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            return std::str::from_utf8(&text[at..]).ok().map(Self::new);
        }
        let mut digits = self.0.as_bytes().to_vec();
        for digit in digits.iter_mut().rev() {
            if *digit == b'0' {
                *digit = b'9';
            } else {
                *digit -= 1;
                break;
            }
        }
        let text = String::from_utf8(digits).ok()?;
        Some(Self::new(text.strip_prefix('0').unwrap_or(&text)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::new(text)
    }

    #[test]
    fn longer_versions_are_newer_and_any_length_compares() {
        assert!(version("10").is_newer_than(&version("9")));
        assert!(
            version("340282366920938463463374607431768211456")
                .is_newer_than(&version("18446744073709551616"))
        );
        assert_eq!(version("77").compare_to(&version("77")), Some(Ordering::Equal));
    }

    #[test]
    fn a_version_that_compares_and_fits_is_a_number() {
        let numbers = ["1", "18446744073709551615", "18446744073709551616", "0", "007", "+1", "", "x"]
            .map(|text| version(text).as_number());
        assert_eq!(numbers, [Some(1), Some(u64::MAX), None, None, None, None, None, None]);
    }

    #[test]
    fn versions_that_are_not_decimal_are_equal_or_unordered() {
        for odd in ["", "0", "007", "abc", "-1", "1.5"] {
            assert!(!version(odd).is_comparable(), "{odd}");
            assert_eq!(version(odd).compare_to(&version("5")), None);
            assert_eq!(version(odd).compare_to(&version(odd)), Some(Ordering::Equal));
        }
    }

    #[test]
    fn the_version_before_borrows_across_digits() {
        assert_eq!(version("1000").directly_before(), Some(version("999")));
        assert_eq!(version("10").directly_before(), Some(version("9")));
        assert_eq!(version("42").directly_before(), Some(version("41")));
        assert_eq!(version("1").directly_before(), None);
        assert_eq!(version("abc").directly_before(), None);
    }
}

//! Durations and sizes, as operators write them. They are parsed here and not by a crate: a value is one
//! whole number with one unit, and an error shows the correct form.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A text is none of the quantities below.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    #[error("`{0}` is not a duration: write a whole number and ms, s, m, h or d, such as 2s")]
    Duration(String),
    #[error("`{0}` is not a size: write a whole number and Ki, Mi, Gi or Ti, such as 64Mi")]
    Size(String),
}

/// `250ms`, `2s`, `5m`, `1h`, `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Duration(pub std::time::Duration);

impl std::str::FromStr for Duration {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(QuantityError::Duration(text.to_owned())),
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(millis))
            .map(|total| Self(std::time::Duration::from_millis(total)))
            .ok_or_else(|| QuantityError::Duration(text.to_owned()))
    }
}

impl TryFrom<String> for Duration {
    type Error = QuantityError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Uses the largest unit that gives a whole number.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
        match units.iter().find(|(_, unit)| ms > 0 && ms.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", ms / unit),
            None => write!(f, "{ms}ms"),
        }
    }
}

impl From<Duration> for String {
    fn from(duration: Duration) -> Self {
        format!("{}ms", duration.0.as_millis())
    }
}

/// `512Ki`, `64Mi`, `1Gi`, `2Ti`, or plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(pub u64);

impl TryFrom<String> for Bytes {
    type Error = QuantityError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let factor = match unit {
            "" => Some(1u64),
            "Ki" => Some(1 << 10),
            "Mi" => Some(1 << 20),
            "Gi" => Some(1 << 30),
            "Ti" => Some(1 << 40),
            _ => None,
        };
        factor
            .and_then(|factor| digits.parse::<u64>().ok()?.checked_mul(factor))
            .map(Self)
            .ok_or(QuantityError::Size(text))
    }
}

/// Uses the largest unit that gives a whole number.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        match units.iter().find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift) {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        bytes.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_refuse_what_they_cannot_mean() {
        assert_eq!("2s".parse::<Duration>().unwrap().0.as_secs(), 2);
        assert_eq!("30d".parse::<Duration>().unwrap().0.as_secs(), 30 * 86_400);
        for bad in ["", "2", "s", "-1s", "1.5s", "2 s", "99999999999999999999h"] {
            assert!(bad.parse::<Duration>().is_err(), "{bad}");
        }
        assert_eq!(Bytes::try_from("64Mi".to_string()).unwrap().0, 64 << 20);
        assert_eq!(Bytes::try_from("2Ti".to_string()).unwrap().0, 2 << 40);
        for bad in ["64MB", "", "Ti", "-1Gi", "1.5Gi", "99999999Ti"] {
            assert!(Bytes::try_from(bad.to_string()).is_err(), "{bad}");
        }
    }
}

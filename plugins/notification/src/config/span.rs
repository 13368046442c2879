//! Times as operators write them: `10s`, `6h`.

use serde::{Deserialize, Deserializer, de};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub ms: u64,
}

impl Span {
    pub const fn seconds(seconds: u64) -> Self {
        Self { ms: seconds * 1000 }
    }

    fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = text[..end].parse().ok()?;
        let unit = match &text[end..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        Some(Self { ms: number.checked_mul(unit)? })
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom(format!(
                "`{text}` is no time: write a whole number and ms, s, m, h or d, such as 10s"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        let of = |text: &str| serde_json::from_value::<Span>(text.into());
        for (text, ms) in
            [("10ms", 10), ("10s", 10_000), ("5m", 300_000), ("6h", 21_600_000), ("1d", 86_400_000)]
        {
            assert_eq!(of(text).unwrap().ms, ms);
        }
        for wrong in ["", "10", "s", "-1s", "1.5h", "1w", "99999999999999999999d", "9999999999999999d"] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains("is no time"), "{wrong}: {error}");
        }
    }
}

//! Writes versions for clients: the decimal counter, or texts that can't be compared.

/// How versions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VersionStyle {
    /// As Kubernetes defines them.
    #[default]
    Decimal,
    /// As in some aggregated servers: two versions are either equal or not comparable.
    Opaque,
}

/// An odd factor, so that the multiplication can be undone. It scatters neighbours.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number whose product with [`SCATTER`] is 1.
const GATHER: u64 = inverse(SCATTER);

/// No opaque version is all digits.
const MARK: char = 'v';

const fn inverse(odd: u64) -> u64 {
    // Each step doubles the number of correct bits, which is three at first.
    let mut inverse = odd;
    let mut right = 3;
    while right < 64 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        right *= 2;
    }
    inverse
}

impl VersionStyle {
    pub fn text(self, version: u64) -> String {
        match self {
            VersionStyle::Decimal => version.to_string(),
            VersionStyle::Opaque => format!("{MARK}{:016x}", version.wrapping_mul(SCATTER)),
        }
    }

    /// The decimal text of a client's version. A text that is not one of ours stays unchanged and is refused
    /// later.
    pub fn decimal(self, text: &str) -> String {
        let opaque = || u64::from_str_radix(text.strip_prefix(MARK)?, 16).ok();
        match self {
            VersionStyle::Decimal => text.to_owned(),
            VersionStyle::Opaque => {
                opaque().map_or_else(|| text.to_owned(), |n| n.wrapping_mul(GATHER).to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_versions_lead_back_and_tell_nothing() {
        for version in [1, 2, 3, 1_000_000, u64::MAX] {
            let text = VersionStyle::Opaque.text(version);
            assert_eq!(VersionStyle::Opaque.decimal(&text), version.to_string());
            assert!(text.parse::<u64>().is_err());
        }
        let texts: Vec<String> = (1..50).map(|n| VersionStyle::Opaque.text(n)).collect();
        assert!(!texts.is_sorted());
        assert_eq!(VersionStyle::Opaque.decimal("0"), "0");
    }
}

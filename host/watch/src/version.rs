//! Reads versions as numbers.

use kubewitness_core::Version;

/// The number of a version, if versions have an order. The caller may need the next number; the greatest
/// number has none, so it does not count.
pub(crate) fn version_number(version: &Version) -> Option<u128> {
    if !version.is_comparable() {
        return None;
    }
    version.as_str().parse().ok().filter(|number| *number < u128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_next_one() {
        let greatest = u128::MAX.to_string();
        let below = (u128::MAX - 1).to_string();
        assert_eq!(version_number(&Version::new(&greatest)), None);
        assert_eq!(version_number(&Version::new(&below)).map(|number| number + 1), Some(u128::MAX));
        assert_eq!(version_number(&Version::new("opaque")), None);
    }
}

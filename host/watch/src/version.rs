//! Versions as numbers. Knows nothing but what a version is.

use kubewitness_core::Version;

/// The number of a version, where versions have an order.
pub(crate) fn number(version: &Version) -> Option<u128> {
    if version.is_comparable() { version.as_str().parse().ok() } else { None }
}

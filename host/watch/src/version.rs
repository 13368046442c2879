//! Reads versions as numbers. Knows nothing but versions.

use kubewitness_core::Version;

/// The number of a version, if versions have an order.
pub(crate) fn number(version: &Version) -> Option<u128> {
    if version.is_comparable() { version.as_str().parse().ok() } else { None }
}

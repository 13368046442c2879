//! The rules that a journal must keep, and the faults that break them.

use std::fmt;

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OracleRule {
    /// A version is neither witnessed nor in a gap.
    Lost,
    /// A version, an end or an id is there twice.
    Twice,
    /// A version comes after a newer one, or after the end of its object.
    Order,
    /// A state that the server never had.
    Invented,
    /// An object is gone that was not deleted.
    FalseGone,
    /// A gap covers what was witnessed, or could have been read.
    FalseGap,
    /// A version lies in two gaps.
    Overlap,
    /// A bound is not where the hole begins or ends.
    Bounds,
    /// The current objects are not the server's.
    Current,
    /// A document is not what was written.
    Content,
}

/// One lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OracleFault {
    pub rule: OracleRule,
    pub about: String,
}

impl fmt::Display for OracleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.about)
    }
}

#[derive(Default)]
pub struct OracleFaults(pub Vec<OracleFault>);

impl OracleFaults {
    pub fn add(&mut self, rule: OracleRule, about: impl Into<String>) {
        self.0.push(OracleFault { rule, about: about.into() });
    }
}

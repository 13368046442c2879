//! How requests and answers are written: parameters, selectors, patches, protobuf, failures.
//!
//! Reads and writes bytes alone. Knows which kinds there are, and nothing of the store.

pub(crate) mod error;
pub(crate) mod incoming;
pub(crate) mod patch;
pub(crate) mod protobuf;
pub(crate) mod query;
pub(crate) mod respond;
pub(crate) mod selector;

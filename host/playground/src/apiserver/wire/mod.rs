//! Reads requests and writes answers: parameters, selectors, patches, protobuf, failures.
//!
//! It works on bytes. It knows the kinds, and nothing of the store.

pub(crate) mod error;
pub(crate) mod incoming;
pub(crate) mod patch;
pub(crate) mod protobuf;
pub(crate) mod query;
pub(crate) mod respond;
pub(crate) mod selector;

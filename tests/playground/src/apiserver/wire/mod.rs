//! Reads requests and writes answers: parameters, selectors, patches, protobuf, failures.
//!
//! Clients react to details: to the reason of a failure, to the parameters that are refused together, to a
//! header. So the texts and codes are those of a real server, and recordings of one are compared with them in
//! the end-to-end tests.
//!
//! It works on bytes. It knows the kinds, and nothing of the store.

pub(crate) mod error;
pub(crate) mod incoming;
pub(crate) mod patch;
pub(crate) mod protobuf;
pub(crate) mod query;
pub(crate) mod respond;
pub(crate) mod selector;

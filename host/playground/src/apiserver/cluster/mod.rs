//! The state that every server of the cluster shares: objects and kinds, users and their rights, the servers,
//! and the record of what happened. It answers no request.

pub(crate) mod auth;
pub(crate) mod front;
pub(crate) mod options;
pub(crate) mod place;
pub(crate) mod request_counts;
pub(crate) mod rights;
pub(crate) mod shared;
pub(crate) mod tls;
pub(crate) mod truth;

//! The state that every server of the cluster shares: objects and kinds, users and their rights, the servers,
//! and the record of what happened.
//!
//! Several servers over one store behave differently from one: a client may meet one that lags. So everything
//! that a real cluster keeps in etcd is shared here, and each server has only its own cache and connections.
//! The record of what happened is separate from the store, so neither compaction nor a restore changes it. It
//! answers no request.

pub(crate) mod auth;
pub(crate) mod front;
pub(crate) mod options;
pub(crate) mod place;
pub(crate) mod request_counts;
pub(crate) mod rights;
pub(crate) mod shared;
pub(crate) mod tls;
pub(crate) mod truth;

//! What every server of the cluster shares: what is stored and served, who is known and may do what, which
//! servers there are, and what happened. Answers no request.

pub(crate) mod auth;
pub(crate) mod front;
pub(crate) mod options;
pub(crate) mod place;
pub(crate) mod request_counts;
pub(crate) mod rights;
pub(crate) mod shared;
pub(crate) mod tls;
pub(crate) mod truth;

//! Who asks, and what they may do. It reads the roles in the store, and changes nothing.

pub(crate) mod auth;
pub(crate) mod reviews;
pub(crate) mod rights;

//! Values that clients see and that depend on no object: identities and times, Base64, users, versions.

pub(crate) mod base64;
pub(crate) mod ident;
pub(crate) mod lock;
pub(crate) mod user;
pub(crate) mod versions;

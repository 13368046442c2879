//! Values as operators write them: durations, sizes, and references to secrets.
//!
//! People write `10s` and `2Gi`; a bare number leaves open whether it is seconds or bytes. So these values
//! have types that read and write the units. Secrets are references only: a manifest may be stored and shown,
//! so the secrets themselves are never held here.

mod quantity;
mod secret;

pub use quantity::{Bytes, Duration, QuantityError};
pub(super) use secret::check_secret;

/// The message about an unknown name.
pub(super) fn unknown_name_message(what: &str, name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!(
            "the controller has no {what} `{name}`, nor any other: add it to the host's settings"
        );
    }
    format!("the controller has no {what} `{name}`; it has {}", known.join(", "))
}

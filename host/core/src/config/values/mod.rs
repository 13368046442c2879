//! Values as operators write them: times, sizes, and where a secret is. They hold no secret: a reference is all.

mod quantity;
mod secret;

pub use quantity::{Bytes, Duration};
pub(super) use secret::check_secret;

/// The message about a name that nothing has.
pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!(
            "the controller has no {what} `{name}`, nor any other: add it to the host's settings"
        );
    }
    format!("the controller has no {what} `{name}`; it has {}", known.join(", "))
}

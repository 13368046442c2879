//! Values as operators write them: times, sizes, and where a secret is.

mod quantity;
mod secret;

pub use quantity::{Bytes, Duration};
pub(super) use secret::check_secret;

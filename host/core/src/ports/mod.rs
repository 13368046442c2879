//! Defines the traits through which the stages meet. A state goes down through them; what comes back is a
//! return value. Knows no store, no client and no sandbox.

mod access;
mod backlog;
mod cache;
mod delivery;
mod kv_writes;
mod progress;
mod session;
mod submit;
pub mod views;
mod visible;
mod witness;

pub use access::*;
pub use backlog::*;
pub use cache::*;
pub use delivery::*;
pub use kv_writes::*;
pub use progress::*;
pub use session::*;
pub use submit::*;
pub use visible::*;
pub use witness::*;

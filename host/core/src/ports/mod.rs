//! The traits through which the stages meet.
//!
//! No stage may depend on another stage's implementation. So each trait here belongs to one boundary: a state
//! goes down through it, and whatever comes back is a return value. The module knows no store, no client and
//! no sandbox.

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

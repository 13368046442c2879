//! The only crate that knows NATS: states on their way from the host that witnesses them to those that
//! hand them out.
//!
//! ```text
//! journal ─▶ Carrier ─▶ the stream on the server ─▶ Reader ─▶ the journal of another host
//! ```
//!
//! The server is trusted with as little as possible. It may forget what it acknowledged, bring what it
//! has twice, and be away for as long as it likes: each state says where it stood (`core::carry`), so
//! that the reader finds what is missing and passes over what it had. A reader keeps how far it is in
//! its own journal, in the transaction that keeps what it read, and what it has kept is taken from the
//! stream. Nothing else is: what nobody has read makes the stream full, and what comes then waits in
//! the journal of the carrier.

mod acked;
mod carrier;
mod claims;
mod filling;
mod kept;
mod message;
mod publisher;
mod reader;
mod server;
mod session;

pub use carrier::{Carrier, CarrierHandle, CarrierSnapshot};
pub use kept::progress_name;
pub use reader::Reader;
pub use server::{Secret, Server};

//! Carries states over NATS JetStream, from the controller that witnesses them to the controllers that
//! deliver them. No other crate knows NATS.
//!
//! ```text
//! journal ─▶ StreamCarrier ─▶ the stream on the server ─▶ StreamReader ─▶ the journal of another host
//! ```
//!
//! A message server may forget what it acknowledged, send messages twice, and be away for any time. So its
//! own sequence numbers and acknowledgements are not trusted across connections. Each state has its position
//! in its journal (`core::stream`), from which the reader finds gaps and skips repeats. A reader stores its
//! place in its own journal, in the transaction that stores the states. Only then are they removed from the
//! stream. If nobody reads, the stream fills up, and later states wait in the carrier's journal.
//!
//! The crate meets the journal through `core::ports`. It knows neither Kubernetes nor plugins.

mod acknowledged;
mod batch;
mod carrier;
mod claims;
mod message;
mod poison;
mod progress;
mod publisher;
mod reader;
mod server;
mod session;

pub use carrier::{CarrierHandle, CarrierSnapshot, StreamCarrier};
pub use progress::{new_name, progress_name};
pub use reader::StreamReader;
pub use server::{SecretReader, StreamServer};

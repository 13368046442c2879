//! The domain of Kubewitness: what a state is, how its status is read, in which order lanes
//! give it out, and the small traits through which the other crates meet.
//!
//! Nothing here talks to Kubernetes, a database, a socket or a plugin; what is here can be
//! tested without any of them. What every crate asks of a file that others provide is in [`files`].

pub mod bucket;
pub mod carry;
pub mod config;
pub mod files;
mod find;
pub mod lanes;
mod model;
pub mod ports;
pub mod redact;
pub mod status;
pub mod words;

pub use ports::views;

pub use find::{index, selector};
pub use model::{address, calendar, clock, document, frames, kinds, limits, project, state, version};
pub use state::{Change, Gap, ObjectRef, Seq, State, StateId, Status};
pub use version::Version;

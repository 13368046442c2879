//! The domain of Kubewitness: what a state is, how its status is derived, in which order lanes hand states
//! over, and the traits through which the other crates meet.
//!
//! This crate depends on no sibling. It opens no socket and no database and knows no plugin, so all of it can
//! be tested alone. Two places touch the machine: [`files`] reads files, makes key files and starts a thread
//! for each slow read; [`clock::SystemClock`] reads the clock.

pub mod config;
pub mod files;
mod find;
pub mod intents;
pub mod lanes;
pub mod ledger;
mod model;
pub mod ports;
pub mod redact;
pub mod status;
pub mod stream;

pub use ports::views;
pub use status::story;
pub use status::story::{events, mutes, reports};

pub use lanes::bucket;

pub use find::{cursor, index, order, search, search_filter, selector};
pub use model::fault::shortened;
pub use model::nearest::{nearest, with_nearest};
pub use model::{address, calendar, clock, document, frames, kinds, limits, project, state, version, words};
pub use state::{Change, Gap, ObjectRef, Seq, State, StateId, Status};
pub use version::Version;

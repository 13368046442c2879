//! The domain of Kubewitness: what a state is, how its status is derived, in which order lanes deliver
//! states, and the traits through which the other crates meet.
//!
//! The rules of the pipeline must be testable without a cluster, a database or a guest. So this crate depends
//! on no sibling, opens no socket and no database, and knows no plugin. Decisions are pure machines; the time
//! is a parameter. The crates around it do the I/O and depend on this one alone, so none of them depends on
//! another.
//!
//! Two places touch the machine: [`files`] reads files, makes key files and starts a thread for each slow
//! read; [`clock::SystemClock`] reads the clock.

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
pub use model::fault::shorten_text;
pub use model::nearest::{nearest_name, with_nearest};
pub use model::{address, calendar, clock, document, frames, kinds, limits, project, state, version, words};
pub use state::{Change, Gap, ObjectRef, Seq, State, StateId, Status};
pub use version::Version;

/// An error of another crate that this crate does not distinguish.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

//! The domain of Kubewitness: what a state is, how its status is read, in which order lanes
//! give it out, and the small traits through which the other crates meet.
//!
//! Nothing here talks to Kubernetes, a database, a socket or a plugin; what is here can be
//! tested without any of them. What every crate asks of a file that others provide is in [`files`].

pub mod address;
pub mod bucket;
pub mod calendar;
pub mod carry;
pub mod clock;
pub mod config;
pub mod document;
pub mod files;
pub mod frames;
pub mod index;
pub mod kinds;
pub mod lanes;
pub mod limits;
pub mod ports;
pub mod project;
pub mod selector;
pub mod state;
pub mod status;
pub mod version;
pub mod views;
pub mod words;

pub use state::{Change, Gap, ObjectRef, Seq, State, StateId, Status};
pub use version::Version;

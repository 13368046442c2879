//! The only crate that knows wasmtime: components are compiled, checked, instantiated, called and
//! bounded here.
//!
//! It knows nothing of queues, journals, databases or addresses. States come in as [`Delivery`],
//! what a guest asks for goes out through a [`Session`], verdicts come back.
//!
//! ```text
//!   bytes ─▶ Engine::load ─▶ Component ─▶ check, describe       (what is it, does it fit)
//!                                │
//!                                ▼
//!                             Plugin (a pool of instances) ─▶ Handler::handle
//! ```
//!
//! A guest is hostile until shown otherwise. It has its memory, its own time and the capabilities
//! that were granted; WASI is linked so that ordinary toolchains work, over contexts that hold
//! nothing: no file, no socket, no variable, no argument. What a guest writes to stdout is dropped,
//! of stderr the last few kilobytes are kept for the error text of a trap (that is where a Rust
//! panic says why); neither can grow.
//!
//! [`Delivery`]: kubewitness_core::ports::Delivery
//! [`Session`]: kubewitness_core::ports::Session

mod bindings;
mod capability;
mod compile;
mod component;
mod engine;
mod error;
mod guest;
mod instance;
mod plugin;
mod tally;
mod turns;

pub use compile::{Bounds, Compiler, compile_here};
pub use component::{Component, Description};
pub use engine::{Engine, EngineOptions};
pub use error::SandboxError;
pub use plugin::{Plugin, QUIET};
pub use tally::Tally;
pub use turns::guests_at_once;

//! The only crate that knows wasmtime: components are compiled, checked, instantiated, called and
//! bounded here.
//!
//! It knows nothing of queues, journals, databases or addresses. States come in as [`StateDelivery`],
//! what a guest asks for goes out through a [`EffectSession`], verdicts come back.
//!
//! ```text
//!   bytes ─▶ SandboxEngine::load ─▶ PluginComponent ─▶ check, describe   (what is it, does it fit)
//!                                         │
//!                                         ▼
//!                       SandboxPlugin (a pool of instances) ─▶ PluginHandler::handle
//! ```
//!
//! A guest is hostile until shown otherwise. It has its memory, its own time and the capabilities
//! that were granted; WASI is linked so that ordinary toolchains work, over contexts that hold
//! nothing: no file, no socket, no variable, no argument. What a guest writes to stdout is dropped,
//! of stderr the last few kilobytes are kept for the error text of a trap (that is where a Rust
//! panic says why); neither can grow.
//!
//! [`StateDelivery`]: kubewitness_core::ports::StateDelivery
//! [`EffectSession`]: kubewitness_core::ports::EffectSession

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

pub use compile::{ChildBounds, ComponentCompiler, compile_here};
pub use component::{ComponentDescription, PluginComponent};
pub use engine::{EngineOptions, SandboxEngine};
pub use error::SandboxError;
pub use plugin::{QUIET, SandboxPlugin};
pub use tally::PluginTally;
pub use turns::guests_at_once;

//! The only crate that knows wasmtime: components are compiled, checked, instantiated, called and limited
//! here.
//!
//! It knows nothing of queues, journals, databases or addresses. States come in as [`StateDelivery`], a
//! guest's calls go out through an [`EffectSession`], and verdicts come back.
//!
//! ```text
//!   bytes ─▶ SandboxEngine::load ─▶ PluginComponent ─▶ check, describe   (what is it, does it fit)
//!                                         │
//!                                         ▼
//!                       SandboxPlugin (a pool of instances) ─▶ PluginHandler::handle
//! ```
//!
//! A guest is considered hostile. It has limited memory, its own time and only the granted capabilities.
//! Refusing WASI was rejected, because ordinary toolchains import it: it is linked over empty contexts,
//! without files, sockets, variables or arguments. A guest's stdout is dropped; the last few kilobytes of its
//! stderr are kept for the error text of a trap, where a Rust panic prints its reason. Neither can grow.
//!
//! [`StateDelivery`]: kubewitness_core::ports::StateDelivery [`EffectSession`]:
//! kubewitness_core::ports::EffectSession

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
pub use plugin::{IDLE_LIMIT, SandboxPlugin};
pub use tally::PluginTally;
pub use turns::guests_at_once;

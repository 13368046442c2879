//! From bytes to code. A component is read ([`outline`]), then compiled in a process of its own ([`process`],
//! [`child`]) that gave up everything but computing ([`confine`]), and its code is kept in a cache that knows
//! what it wrote itself ([`cache`]). Nothing here runs a guest.
//!
//! The controller itself never compiles: a component that is made to be costly ends a process that has nothing
//! to lose.

mod cache;
mod child;
mod code;
#[cfg(target_os = "linux")]
mod confine;
mod mapped;
mod outline;
mod process;
mod remembered;
pub mod shape;
mod unused;

use std::io;
use std::path::PathBuf;

use wasmtime::Config;

pub use child::{ChildBounds, compile_here};
pub use code::CodeStore;
pub use outline::ComponentOutline;

/// Where components are compiled.
#[derive(Clone, Debug)]
pub enum ComponentCompiler {
    /// In a process of its own: this program, which answers to the command `compile-component` with
    /// [`compile_here`].
    Child(PathBuf),
    /// In this process, without a bound: for tests, whose programs have no such command.
    InProcess,
}

impl ComponentCompiler {
    /// The program that runs, whatever lies under its name by now.
    pub fn this_program() -> io::Result<Self> {
        if cfg!(target_os = "linux") {
            return Ok(Self::Child("/proc/self/exe".into()));
        }
        std::env::current_exe().map(Self::Child)
    }
}

/// Code runs only in an engine that is configured as the one that compiled it.
pub fn configuration() -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true).concurrency_support(false);
    // Nobody reads where in a component's file a trap came from, and no debugger walks over its frames: the two tables
    // would only be kept in memory.
    config.generate_address_map(false).native_unwind_info(false);
    config
}

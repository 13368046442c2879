//! From bytes to code. A component is read ([`outline`]), then compiled in a separate process ([`process`],
//! [`child`]) that has given up everything except computing ([`confine`]), and its code is cached with a
//! proof of its origin ([`cache`]). Nothing here runs a guest.
//!
//! Compiling inside the controller was rejected: a component that is made to be expensive would take its
//! memory or time, and a fault of the compiler its secrets. A separate process has nothing to lose.

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
    /// In a separate process: this program, which handles the command `compile-component` with
    /// [`compile_here`].
    Child(PathBuf),
    /// In this process, without limits: for tests, whose programs have no such command.
    InProcess,
}

impl ComponentCompiler {
    /// The running program, whatever file has its name now.
    pub fn this_program() -> io::Result<Self> {
        if cfg!(target_os = "linux") {
            return Ok(Self::Child("/proc/self/exe".into()));
        }
        std::env::current_exe().map(Self::Child)
    }
}

/// Code runs only in an engine with the same configuration as the one that compiled it.
pub fn engine_configuration() -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true).concurrency_support(false);
    // Both tables would only use memory: nobody reads the position of a trap in a component's file, and no
    // debugger unwinds its frames.
    config.generate_address_map(false).native_unwind_info(false);
    config
}

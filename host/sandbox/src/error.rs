//! Why a component can't be used.

use kubewitness_core::ports::CallError;
use thiserror::Error;

#[derive(Clone, Debug, Error)]
pub enum SandboxError {
    /// The file is not what the host needs. Fix the component or name another one.
    #[error("{0}")]
    Unfit(String),
    /// It fits, but failed to describe itself.
    #[error("the component failed in `{call}`: {error}")]
    Guest {
        call: &'static str,
        #[source]
        error: CallError,
    },
    /// Compiling failed, so it is unknown whether it fits. Try again.
    #[error("the component could not be compiled: {0}")]
    Compiler(String),
    /// The sandbox itself doesn't work on this machine.
    #[error("the sandbox can't start: {0}")]
    Engine(String),
}

//! Why a component can't be used.

use kubewitness_core::ports::CallError;
use thiserror::Error;

#[derive(Clone, Debug, Error)]
pub enum SandboxError {
    /// The file is not what the host needs. Mend the component or name another.
    #[error("{0}")]
    Unfit(String),
    /// It fits, but failed when it was asked about itself.
    #[error("the component failed in `{call}`: {error}")]
    Guest {
        call: &'static str,
        #[source]
        error: CallError,
    },
    /// Nobody knows whether it fits: compiling it did not get that far. Try again.
    #[error("the component could not be compiled: {0}")]
    Compiler(String),
    /// The sandbox itself doesn't work on this machine.
    #[error("the sandbox can't start: {0}")]
    Engine(String),
}

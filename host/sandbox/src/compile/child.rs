//! The process that compiles: it gets bytes, and returns code.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use super::engine_configuration;

/// The component is at fault; standard error has the reason.
pub const REFUSED: u8 = 10;
/// Nothing was compiled: input or output failed, or the compiler does not work on this machine.
const FAILED: u8 = 11;

/// The limits of the process.
#[derive(Clone, Copy, Debug)]
pub struct ChildBounds {
    /// Address space, in bytes.
    pub memory: u64,
    /// Processor time, in seconds.
    pub cpu: u64,
}

/// Compiles the component on standard input, and writes the code to standard output. It must run before
/// anything else in the process, because it gives up all other rights.
pub fn compile_here(bounds: ChildBounds) -> ExitCode {
    match confine_child(bounds) {
        Ok(lacking) => lacking.iter().for_each(|lacking| eprintln!("not given up: {lacking}")),
        Err(error) => return exit_with_failure(FAILED, &error),
    }
    let code = match compile_input() {
        Ok(code) => code,
        Err(ChildFailure::Refused(error)) => return exit_with_failure(REFUSED, &error),
        Err(ChildFailure::Broken(error)) => return exit_with_failure(FAILED, &error),
    };
    match io::stdout().write_all(&code).and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_with_failure(FAILED, &format!("writing the code: {error}")),
    }
}

#[cfg(target_os = "linux")]
fn confine_child(bounds: ChildBounds) -> Result<Vec<String>, String> {
    super::confine::confine_process(bounds.memory, bounds.cpu)
}

#[cfg(not(target_os = "linux"))]
fn confine_child(_bounds: ChildBounds) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}

enum ChildFailure {
    Refused(String),
    Broken(String),
}

fn compile_input() -> Result<Vec<u8>, ChildFailure> {
    let mut component = Vec::new();
    let read = io::stdin().read_to_end(&mut component);
    read.map_err(|error| ChildFailure::Broken(format!("reading the component: {error}")))?;
    let mut config = engine_configuration();
    // One function after the other: several at once take several times the memory.
    config.parallel_compilation(false);
    let engine =
        wasmtime::Engine::new(&config).map_err(|error| ChildFailure::Broken(format!("{error:#}")))?;
    engine.precompile_component(&component).map_err(|error| ChildFailure::Refused(format!("{error:#}")))
}

fn exit_with_failure(code: u8, error: &str) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(code)
}

//! Starts the process that compiles, feeds it, takes its code, and explains in plain words why it ended.
//!
//! The process may hang, die, or write without end, and nothing that it prints is trusted. So its output and
//! its time are limited, it ends with the thread that started it, and the way it ended is translated into
//! advice for an operator. It compiles nothing itself, and knows no cache.

mod growth;

use std::convert::Infallible;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use kubewitness_core::config::{Bytes, ComponentsSpec};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::child::REFUSED;
use super::outline::limit_advice;

/// The command of the program that compiles.
pub const COMMAND: &str = "compile-component";
/// The exit code of Rust programs that panic.
const PANICKED: i32 = 101;
/// How many bytes of the code are read at once.
const CHUNK: usize = 64 << 10;
/// The size of the kept error output. A fault of the component is one line of the compiler.
const ERROR_BYTES: usize = 4 << 10;
/// The factor of both limits of time for an unoptimised compiler. They are made for an optimised one, and a plugin in
/// JavaScript takes the other 45 seconds on a fast processor.
const PATIENCE: u32 = if cfg!(debug_assertions) { 3 } else { 1 };

/// Why no code was made.
#[derive(Debug)]
pub enum NoCode {
    /// The component is at fault, or exceeds its limits: the same bytes would end in the same way.
    Refused(String),
    /// The process was killed from outside, so the machine is also at fault.
    Killed(String),
    /// The process could not be started, fed or read.
    Broken(String),
    /// The compiled code can't be stored.
    Unkept(io::Error),
}

/// Compiles in a separate process. The calling thread must outlive the future, because the process ends with
/// the thread that started it. `is_large` is called once the process may exhaust the container's memory.
pub async fn compile_in_process(
    program: &Path,
    component: bytes::Bytes,
    limits: &ComponentsSpec,
    is_large: impl FnOnce(),
    mut keep: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), NoCode> {
    let broken = |what: &'static str| move |error: io::Error| NoCode::Broken(format!("{what}: {error}"));
    let mut child = start(program, limits).map_err(broken("starting the process that compiles"))?;
    let growing = report_once_large(child.id(), limits, is_large);
    let (errors, ended) = {
        let talking = talk_to_child(&mut child, &component, limits, &mut keep);
        let talked = tokio::select! {
            biased;
            talked = tokio::time::timeout(limits.compile_time.0.saturating_mul(PATIENCE), talking) => talked,
            never = growing => match never {},
        };
        match talked {
            Ok(talked) => talked?,
            Err(_) => {
                return Err(NoCode::Refused(exceeded_limit_message(
                    "time",
                    &limits.compile_time,
                    "compileTime",
                )));
            }
        }
    };
    if ended.success() {
        if !errors.is_empty() {
            tracing::warn!("the process that compiled a component says: {errors}");
        }
        return Ok(());
    }
    Err(exit_error(ended, &errors, limits))
}

fn start(program: &Path, limits: &ComponentsSpec) -> io::Result<Child> {
    let cpu = limits.compile_cpu.0.saturating_mul(PATIENCE);
    let seconds = cpu.as_secs().saturating_add(u64::from(cpu.subsec_nanos() > 0));
    let mut command = std::process::Command::new(program);
    command
        .arg0("kubewitness")
        .arg(COMMAND)
        .args(["--memory", &limits.compile_memory.0.to_string()])
        .args(["--cpu", &seconds.to_string()])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Command::from(command).kill_on_drop(true).spawn()
}

async fn report_once_large(
    process: Option<u32>,
    limits: &ComponentsSpec,
    is_large: impl FnOnce(),
) -> Infallible {
    if let Some(process) = process {
        growth::until_large(process, limits).await;
    }
    is_large();
    std::future::pending().await
}

/// Runs until the process has ended. If its output becomes useless, the process is killed.
async fn talk_to_child(
    child: &mut Child,
    component: &[u8],
    limits: &ComponentsSpec,
    keep: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(String, ExitStatus), NoCode> {
    let gone = || NoCode::Broken("the process that compiles has no pipes".to_owned());
    let mut input = child.stdin.take().ok_or_else(gone)?;
    let mut output = child.stdout.take().ok_or_else(gone)?;
    let errors = child.stderr.take().ok_or_else(gone)?;
    let feeding = async move {
        // A process that stops reading reports the reason by its other handles.
        input.write_all(component).await.ok();
        drop(input);
        Ok(())
    };
    let taking = async {
        let (mut chunk, mut taken) = (vec![0; CHUNK], 0);
        loop {
            let read = output.read(&mut chunk).await;
            let read = read.map_err(|error| NoCode::Broken(format!("reading the code: {error}")))?;
            if read == 0 {
                return Ok(());
            }
            taken += read as u64;
            if taken > limits.code.0 {
                return Err(NoCode::Refused(exceeded_limit_message("code", &limits.code, "code")));
            }
            keep(&chunk[..read]).map_err(NoCode::Unkept)?;
        }
    };
    let ((), (), error_text) = tokio::try_join!(feeding, taking, read_error_output(errors))?;
    let ended = child.wait().await;
    let ended = ended.map_err(|error| NoCode::Broken(format!("waiting for the process: {error}")))?;
    Ok((error_text, ended))
}

/// Reads the error output to its end, so that the process does not block, and returns its first bytes as one
/// line.
async fn read_error_output(mut errors: impl AsyncRead + Unpin) -> Result<String, NoCode> {
    let (mut chunk, mut bytes) = (vec![0; ERROR_BYTES], Vec::new());
    loop {
        let read = errors.read(&mut chunk).await;
        let read = read.map_err(|error| NoCode::Broken(format!("reading the errors: {error}")))?;
        if read == 0 {
            let text = String::from_utf8_lossy(&bytes);
            let line = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            return Ok(line);
        }
        let room = ERROR_BYTES - bytes.len();
        bytes.extend(&chunk[..read.min(room)]);
    }
}

/// Explains the end of a process that returned no code.
fn exit_error(ended: ExitStatus, error_output: &str, limits: &ComponentsSpec) -> NoCode {
    match ended.code() {
        Some(code) if code == i32::from(REFUSED) => {
            return NoCode::Refused(format!("the component can't be compiled: {error_output}"));
        }
        Some(PANICKED) => {
            return NoCode::Refused(format!(
                "the compiler has a fault that the component meets: {error_output}"
            ));
        }
        Some(_) => {
            return NoCode::Broken(format!("the process that compiles ended with {ended}: {error_output}"));
        }
        None => {}
    }
    // The message of the standard library before it ends the process.
    if error_output.contains("memory allocation of") {
        return NoCode::Refused(exceeded_limit_message("memory", &limits.compile_memory, "compileMemory"));
    }
    if error_output.contains("overflowed its stack") {
        return NoCode::Refused(
            "the component is nested so deeply that compiling it needs more stack than a process has".into(),
        );
    }
    match ended.signal() {
        Some(libc::SIGXCPU) => {
            NoCode::Refused(exceeded_limit_message("processor time", &limits.compile_cpu, "compileCpu"))
        }
        Some(libc::SIGKILL) => NoCode::Killed(
            "the process that compiled the component was killed from outside, most likely since the machine or the \
             container has no memory left: give the container more, or lower \
             `spec.limits.components.compileMemory` of the host's settings"
                .into(),
        ),
        _ => {
            NoCode::Refused(format!("the process that compiled the component ended with {ended}: {error_output}"))
        }
    }
}

fn exceeded_limit_message(what: &str, most: &impl OperatorText, field: &str) -> String {
    format!("compiling the component takes too much {what}: {}", limit_advice(most.operator_text(), field))
}

/// A value as an operator writes it in a manifest.
trait OperatorText {
    fn operator_text(&self) -> String;
}

impl OperatorText for Bytes {
    fn operator_text(&self) -> String {
        match self.0 {
            bytes if bytes.is_multiple_of(1 << 20) => format!("{}Mi", bytes >> 20),
            bytes => bytes.to_string(),
        }
    }
}

impl OperatorText for kubewitness_core::config::Duration {
    fn operator_text(&self) -> String {
        match self.0.as_millis() {
            ms if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
            ms => format!("{ms}ms"),
        }
    }
}

#[cfg(test)]
mod tests;

//! The engine, which all plugins of this process share. It has components read and compiled, and produces the
//! ticks at which guests yield.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::config::ComponentsSpec;
use tokio::sync::watch;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings;
use crate::compile::{self, CodeStore, ComponentCompiler, shape};
use crate::component::{ComponentFace, PluginComponent};
use crate::error::SandboxError;
use crate::guest::GuestState;
use crate::guest::memory::MemoryBudget;
use crate::turns::{CpuTurns, guests_at_once};

/// The time slice of a guest: a computing guest yields this often, and its time limit is checked as often. A
/// switch costs a microsecond; other work on the same thread waits no longer than this.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The folder for compiled code; `None` disables the cache.
    pub cache: Option<PathBuf>,
    pub compiler: ComponentCompiler,
    /// Whether nobody ends this process by hand during a compilation. Then, if it was killed twice during the
    /// compilation of a component, that component is considered the cause.
    pub is_unattended: bool,
}

#[derive(Clone)]
pub struct SandboxEngine {
    inner: Arc<EngineInner>,
}

struct EngineInner {
    engine: wasmtime::Engine,
    linker: Linker<GuestState>,
    code: Arc<CodeStore>,
    memory: Arc<MemoryBudget>,
    turns: Arc<CpuTurns>,
}

impl SandboxEngine {
    pub fn new(options: EngineOptions) -> Result<Self, SandboxError> {
        let engine =
            wasmtime::Engine::new(&compile::engine_configuration()).map_err(|error| engine_error(&error))?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(|error| engine_error(&error))?;
        bindings::Full::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest| guest)
            .map_err(|error| engine_error(&error))?;
        let code =
            CodeStore::new(engine.clone(), options.cache.as_deref(), options.compiler, options.is_unattended);
        start_ticks(&engine)?;
        let weak = engine.weak();
        let hurry = move || {
            if let Some(engine) = weak.upgrade() {
                engine.increment_epoch();
            }
        };
        let (code, turns) = (Arc::new(code), Arc::new(CpuTurns::new(guests_at_once(), hurry)));
        let inner = EngineInner { engine, linker, code, memory: Arc::default(), turns };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Reads, checks and compiles a component. The error names what does not fit.
    pub async fn load(
        &self,
        bytes: &Bytes,
        limits: &ComponentsSpec,
    ) -> Result<PluginComponent, SandboxError> {
        let outline = CodeStore::read_outline(bytes, limits).await?;
        let interface = shape::interface_version(outline.exports.iter().map(String::as_str))?;
        let ticks = shape::exports_ticker(outline.exports.iter().map(String::as_str))?;
        let imports = shape::imported_capabilities(outline.imports.iter().map(String::as_str))?;
        let compiled = self.inner.code.code_of(bytes, limits).await?;
        let face =
            ComponentFace { digest: compiled.digest, interface, imports, ticks, compile_time: compiled.took };
        PluginComponent::new(self.clone(), face, compiled.code, &self.inner.linker)
    }

    /// The digest of the component that is being compiled. Others wait for their turn.
    pub fn digest_in_progress(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.inner.code.digest_in_progress()
    }

    /// Limits the memory of all instances together, from the next growth on.
    pub fn bound_memory(&self, most: u64) {
        self.inner.memory.set_most(most);
    }

    /// The memory of all instances together.
    pub fn memory_used(&self) -> u64 {
        self.inner.memory.used_bytes() as u64
    }

    pub(crate) fn memory_budget(&self) -> Arc<MemoryBudget> {
        self.inner.memory.clone()
    }

    pub(crate) fn cpu_turns(&self) -> &Arc<CpuTurns> {
        &self.inner.turns
    }

    pub(crate) fn wasm_engine(&self) -> &wasmtime::Engine {
        &self.inner.engine
    }
}

/// Produces the ticks as long as the engine exists. Without them a computing guest would never be stopped.
/// They have their own thread, because guests may occupy all others.
fn start_ticks(engine: &wasmtime::Engine) -> Result<(), SandboxError> {
    let engine = engine.weak();
    let ticks = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    };
    let spawned = std::thread::Builder::new().name("ticks".into()).spawn(ticks);
    spawned.map(drop).map_err(|error| SandboxError::Engine(format!("its ticks can't be started: {error}")))
}

fn engine_error(error: &wasmtime::Error) -> SandboxError {
    SandboxError::Engine(format!("{error:#}"))
}

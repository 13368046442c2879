//! The engine: what every plugin of this process shares. Compiles, caches, and gives the ticks by
//! which guests give way.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use tokio_util::sync::CancellationToken;
use wasmtime::Config;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings;
use crate::cache::Cache;
use crate::component::Component;
use crate::error::SandboxError;
use crate::guest::Guest;
use crate::shape;

/// A guest that computes gives way to others this often, and its time is looked at as often. The
/// hop costs a microsecond; other work on the same thread waits no longer than this.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Where compiled code is kept; nowhere if left out.
    pub cache: Option<PathBuf>,
}

#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    engine: wasmtime::Engine,
    linker: Linker<Guest>,
    cache: Option<Cache>,
}

impl Engine {
    pub fn new(options: EngineOptions) -> Result<Self, SandboxError> {
        let mut config = Config::new();
        config.epoch_interruption(true).concurrency_support(false);
        let engine = wasmtime::Engine::new(&config).map_err(|error| broken(&error))?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(|error| broken(&error))?;
        bindings::Full::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest| guest)
            .map_err(|error| broken(&error))?;
        let cache = options.cache.and_then(|folder| match Cache::open(&folder, &engine) {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "compiled code won't be kept");
                None
            }
        });
        Ok(Self { inner: Arc::new(Inner { engine, linker, cache }) })
    }

    /// Gives the ticks until `stop`. Without it a guest that computes is never stopped, so the host
    /// runs it before the first call. It has a thread of its own: guests may hold all the others.
    pub async fn ticker(&self, stop: CancellationToken) {
        // Ends the thread also where this future is dropped.
        let stop = stop.child_token();
        let _guard = stop.clone().drop_guard();
        let engine = self.inner.engine.clone();
        let ticks = tokio::task::spawn_blocking(move || {
            while !stop.is_cancelled() {
                std::thread::sleep(TICK);
                engine.increment_epoch();
            }
        });
        if let Err(error) = ticks.await {
            tracing::error!(%error, "the ticks by which guests are stopped have ended");
        }
    }

    /// Reads, checks and compiles a component. The error names what doesn't fit.
    pub async fn load(&self, bytes: &[u8]) -> Result<Component, SandboxError> {
        shape::check_header(bytes)?;
        let (engine, bytes) = (self.clone(), bytes.to_vec());
        let compile = move || engine.compile(&bytes);
        tokio::task::spawn_blocking(compile)
            .await
            .map_err(|error| SandboxError::Engine(format!("compiling ended early: {error}")))?
    }

    fn compile(&self, bytes: &[u8]) -> Result<Component, SandboxError> {
        let Inner { engine, linker, cache } = &*self.inner;
        let digest = hex::encode(digest(&SHA256, bytes));
        let kept = cache.as_ref().and_then(|cache| cache.load(engine, &digest));
        let is_kept = kept.is_some();
        let component = match kept {
            Some(component) => component,
            None => wasmtime::component::Component::from_binary(engine, bytes).map_err(|error| {
                SandboxError::Unfit(format!("the component can't be compiled: {error:#}"))
            })?,
        };
        let loaded = Component::new(self.clone(), digest, &component, linker)?;
        if let (Some(cache), false) = (cache, is_kept) {
            cache.store(loaded.digest(), &component);
        }
        Ok(loaded)
    }

    pub(crate) fn wasm(&self) -> &wasmtime::Engine {
        &self.inner.engine
    }
}

fn broken(error: &wasmtime::Error) -> SandboxError {
    SandboxError::Engine(format!("{error:#}"))
}

//! The compiled code of a component: from the cache, or compiled now.

use std::path::Path;
use std::sync::Arc;

use kubewitness_core::config::ComponentsSpec;
use ring::digest::{SHA256, digest};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use wasmtime::Engine;
use wasmtime::component::Component;

use super::cache::{self, Cache};
use super::process::{self, NoCode};
use super::refusals::Refusals;
use super::{Compiler, Outline, outline};
use crate::error::SandboxError;

pub struct CodeStore {
    engine: Engine,
    cache: Option<Cache>,
    compiler: Compiler,
    /// One process compiles at a time: each may take the memory that one may.
    turn: Arc<Mutex<()>>,
    refusals: Refusals,
}

/// A component that may run in the engine.
pub struct Compiled {
    pub digest: String,
    pub component: Component,
}

impl CodeStore {
    /// Without a folder, code is not kept.
    pub fn new(engine: Engine, folder: Option<&Path>, compiler: Compiler) -> Self {
        let cache = folder.and_then(|folder| match Cache::open(folder, &engine) {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "compiled code won't be kept");
                None
            }
        });
        Self { engine, cache, compiler, turn: Arc::default(), refusals: Refusals::default() }
    }

    /// What the component is, if it is within its limits.
    pub async fn outline(bytes: &Arc<[u8]>, limits: &ComponentsSpec) -> Result<Outline, SandboxError> {
        let (bytes, limits) = (bytes.clone(), limits.clone());
        blocking(move || outline::read(&bytes, &limits)).await?
    }

    pub async fn code(
        self: &Arc<Self>,
        bytes: &Arc<[u8]>,
        limits: &ComponentsSpec,
    ) -> Result<Compiled, SandboxError> {
        let (store, component) = (self.clone(), bytes.clone());
        let look = move || {
            let digest = hex::encode(digest(&SHA256, &component));
            let kept = store.cache.as_ref().and_then(|cache| cache.load(&store.engine, &digest));
            (digest, kept)
        };
        let (digest, kept) = blocking(look).await?;
        if let Some(component) = kept {
            return Ok(Compiled { digest, component });
        }
        let turn = self.turn.clone().lock_owned().await;
        if let Some(why) = self.refusals.why(&digest, limits) {
            return Err(SandboxError::Unfit(why));
        }
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let (store, component, of, most) = (self.clone(), bytes.clone(), digest.clone(), limits.clone());
        // A thread of its own to the end: the process ends with the thread that started it.
        let compiled = blocking(move || {
            let _turn = turn;
            let compiling = store.compile(&component, &of, &most);
            Handle::current().block_on(stop.run_until_cancelled(compiling))
        });
        match compiled.await? {
            Some(Ok(component)) => Ok(Compiled { digest, component }),
            Some(Err(NoCode::Refused(why))) => {
                let why = format!("{why}. It is compiled again when its bytes or these limits change");
                self.refusals.add(&digest, limits, &why);
                Err(SandboxError::Unfit(why))
            }
            Some(Err(NoCode::Broken(why))) => Err(SandboxError::Compiler(why)),
            Some(Err(NoCode::Unkept(error))) => Err(SandboxError::Compiler(error.to_string())),
            None => Err(SandboxError::Compiler("it was stopped".into())),
        }
    }

    async fn compile(
        &self,
        bytes: &Arc<[u8]>,
        digest: &str,
        limits: &ComponentsSpec,
    ) -> Result<Component, NoCode> {
        let refused =
            |error: wasmtime::Error| NoCode::Refused(format!("the component can't be compiled: {error:#}"));
        let Compiler::Child(program) = &self.compiler else {
            let component = Component::from_binary(&self.engine, bytes).map_err(refused)?;
            if let Some(cache) = &self.cache {
                cache.store(digest, &component);
            }
            return Ok(component);
        };
        if let Some(cache) = &self.cache {
            match self.compile_to_cache(cache, program, bytes, digest, limits).await {
                Ok(Some(component)) => return Ok(component),
                Ok(None) => {}
                Err(NoCode::Unkept(error)) => cache.tell_of_unkept(&error),
                Err(error) => return Err(error),
            }
        }
        // Where code can't be kept it is compiled at every start.
        let mut code = Vec::new();
        let keep = |part: &[u8]| {
            code.extend_from_slice(part);
            Ok(())
        };
        process::compile(program, bytes.clone(), limits, keep).await?;
        cache::from_own_child(&self.engine, &code).map_err(refused)
    }

    /// The code goes to the disk as it comes, and is believed only where the cache believes it.
    async fn compile_to_cache(
        &self,
        cache: &Cache,
        program: &Path,
        bytes: &Arc<[u8]>,
        digest: &str,
        limits: &ComponentsSpec,
    ) -> Result<Option<Component>, NoCode> {
        let mut entry = cache.begin(digest).map_err(NoCode::Unkept)?;
        process::compile(program, bytes.clone(), limits, |part| entry.write(part)).await?;
        entry.finish().map_err(NoCode::Unkept)?;
        Ok(cache.load(&self.engine, digest))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, SandboxError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| SandboxError::Engine(format!("compiling ended early: {error}")))
}

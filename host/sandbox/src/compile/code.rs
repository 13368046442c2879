//! The compiled code of a component: from the cache, or compiled now.
//!
//! One component is compiled at a time, in the order of the requests, because each compilation may take much
//! memory. All requests for the same component with the same limits wait for one process. It ends when the
//! last of them gives up.
//!
//! A component's code is in memory once, however many plugins run it. Its bytes are not kept, because they
//! are on disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use kubewitness_core::config::ComponentsSpec;
use ring::digest::{SHA256, digest};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wasmtime::Engine;
use wasmtime::component::Component;

use super::cache::{self, CodeCache};
use super::process::{self, NoCode};
use super::remembered::{CompileRefusals, DEATHS, UseMarks};
use super::{ComponentCompiler, ComponentOutline, outline};
use crate::error::SandboxError;

pub struct CodeStore {
    engine: Engine,
    cache: Option<CodeCache>,
    compiler: ComponentCompiler,
    /// One process compiles at a time, in the order of the requests, because each may take the allowed
    /// memory.
    turn: Arc<tokio::sync::Mutex<()>>,
    refusals: CompileRefusals,
    marks: UseMarks,
    under_way: Mutex<Vec<UnderWay>>,
    /// The code that plugins hold, by digest.
    loaded: Mutex<BTreeMap<String, Weak<Component>>>,
    /// The digest of the component that is being compiled.
    now: watch::Sender<Option<Arc<str>>>,
}

/// A component that waits for its turn or is being compiled, as long as somebody waits for it.
struct UnderWay {
    digest: String,
    limits: ComponentsSpec,
    code: WeakShared<CodeCell>,
}

type CodeCell = BoxFuture<'static, Result<(Component, Duration), SandboxError>>;

/// A component that may run in the engine.
pub struct CompiledCode {
    pub digest: String,
    pub code: Arc<Component>,
    /// The duration of its compilation; zero if its code was cached.
    pub took: Duration,
}

impl CodeStore {
    /// Without a folder, code is not cached. `is_unattended` is set if nobody ends this process by hand
    /// during a compilation.
    pub fn new(
        engine: Engine,
        folder: Option<&Path>,
        compiler: ComponentCompiler,
        is_unattended: bool,
    ) -> Self {
        let cache = folder.and_then(|folder| match CodeCache::open(folder, &engine) {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "compiled code won't be kept");
                None
            }
        });
        let beside = cache.as_ref().and(folder);
        let program = cache.as_ref().map(CodeCache::program_version).unwrap_or_default();
        Self {
            engine,
            cache,
            compiler,
            turn: Arc::default(),
            marks: UseMarks::open(beside.filter(|_| is_unattended), program.clone()),
            refusals: CompileRefusals::open(beside, program),
            under_way: Mutex::default(),
            loaded: Mutex::default(),
            now: watch::Sender::new(None),
        }
    }

    /// The digest of the component that is being compiled.
    pub fn digest_in_progress(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.now.subscribe()
    }

    /// The outline of the component, if it is within its limits.
    pub async fn read_outline(
        bytes: &Bytes,
        limits: &ComponentsSpec,
    ) -> Result<ComponentOutline, SandboxError> {
        let (bytes, limits) = (bytes.clone(), limits.clone());
        run_blocking(move || outline::read(&bytes, &limits)).await?
    }

    pub async fn code_of(
        self: &Arc<Self>,
        bytes: &Bytes,
        limits: &ComponentsSpec,
    ) -> Result<CompiledCode, SandboxError> {
        let (store, component) = (self.clone(), bytes.clone());
        let look = move || {
            let digest = hex::encode(digest(&SHA256, &component));
            let loaded = store.loaded_code(&digest);
            let kept = || store.cached_code(&digest).map(|code| store.hold_code(&digest, code));
            let kept = loaded.or_else(kept);
            (digest, kept)
        };
        let (digest, kept) = run_blocking(look).await?;
        if let Some(code) = kept {
            return Ok(CompiledCode { digest, code, took: Duration::ZERO });
        }
        let (code, took) = self.compilation_of(bytes, &digest, limits).await?;
        Ok(CompiledCode { code: self.hold_code(&digest, code), digest, took })
    }

    fn loaded_code(&self, digest: &str) -> Option<Arc<Component>> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.get(digest).and_then(Weak::upgrade)
    }

    /// Stores new code. If others already hold the same code, the new copy is dropped and theirs is returned.
    fn hold_code(&self, digest: &str, code: Component) -> Arc<Component> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|_, held| held.strong_count() > 0);
        if let Some(held) = loaded.get(digest).and_then(Weak::upgrade) {
            return held;
        }
        let held = Arc::new(code);
        loaded.insert(digest.to_owned(), Arc::downgrade(&held));
        held
    }

    /// Removes unused code except that of the new component.
    fn remove_unused(&self, new: &str) {
        if let Some(cache) = &self.cache {
            cache.remove_unused(|digest| digest == new || self.loaded_code(digest).is_some());
        }
    }

    fn cached_code(&self, digest: &str) -> Option<Component> {
        self.cache.as_ref().and_then(|cache| cache.load(&self.engine, digest))
    }

    /// The compilation that is in progress for this component, or a new one.
    fn compilation_of(
        self: &Arc<Self>,
        bytes: &Bytes,
        digest: &str,
        limits: &ComponentsSpec,
    ) -> Shared<CodeCell> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|it| it.code.upgrade().is_some());
        let same = under_way.iter().filter(|it| it.digest == digest && it.limits == *limits);
        if let Some(code) = same.filter_map(|it| it.code.upgrade()).next() {
            return code;
        }
        let (store, component, of, within) = (self.clone(), bytes.clone(), digest.to_owned(), limits.clone());
        let code: CodeCell = async move { store.in_turn(component, of, within).await }.boxed();
        let code = code.shared();
        if let Some(weak) = code.downgrade() {
            under_way.push(UnderWay { digest: digest.into(), limits: limits.clone(), code: weak });
        }
        code
    }

    async fn in_turn(
        self: Arc<Self>,
        bytes: Bytes,
        digest: String,
        limits: ComponentsSpec,
    ) -> Result<(Component, Duration), SandboxError> {
        let turn = self.turn.clone().lock_owned().await;
        if let Some(why) = self.refusals.refusal_of(&digest, &limits) {
            return Err(SandboxError::Unfit(why));
        }
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let (store, of, most) = (self.clone(), digest.clone(), limits.clone());
        // The future keeps one thread until its end, because the process ends with the thread that started
        // it.
        let compiled = run_blocking(move || {
            let _turn = turn;
            // It may have been compiled with other limits in the meantime.
            if let Some(component) = store.cached_code(&of) {
                return Some(Ok((component, Duration::ZERO)));
            }
            if let Some(why) = store.refusal_if_deadly(&of, &most) {
                return Some(Err(SandboxError::Unfit(why)));
            }
            let _shown = ShownProgress::of(&store.now, &of);
            let (begun, mut mark) = (Instant::now(), None);
            let is_large = || {
                mark.get_or_insert_with(|| store.marks.begin_use(&of, &most));
            };
            let compiling = store.compile_component(&bytes, &of, &most, is_large);
            let compiled = Handle::current().block_on(stop.run_until_cancelled(compiling));
            // The folder grows nowhere else.
            store.remove_unused(&of);
            compiled.map(|compiled| {
                let compiled = compiled.map_err(|error| store.refusal_message(error, &of, &most))?;
                Ok((compiled, begun.elapsed()))
            })
        });
        match compiled.await? {
            Some(compiled) => compiled,
            None => Err(SandboxError::Compiler("it was stopped".into())),
        }
    }

    /// The reason not to compile a component, if earlier processes died while compiling it. From then on it
    /// counts as refused.
    fn refusal_if_deadly(&self, digest: &str, limits: &ComponentsSpec) -> Option<String> {
        if !self.marks.is_deadly(digest, limits) {
            return None;
        }
        let file = self.refusals.refusals_file().map(|file| file.display().to_string()).unwrap_or_default();
        let why = format!(
            "the controller was killed {DEATHS} times while it had the component compiled and that took much memory, most \
             likely since the container has none left then: give the container more, or lower `spec.limits.components.compileMemory` of the \
             host's settings. It is compiled again when its bytes, these limits or the version of kubewitness change, \
             or after a restart without {file}"
        );
        self.refusals.add(digest, limits, &why);
        self.marks.remove(digest);
        Some(why)
    }

    /// The message for people. A component that would fail in the same way is not compiled again.
    fn refusal_message(&self, error: NoCode, digest: &str, limits: &ComponentsSpec) -> SandboxError {
        match error {
            NoCode::Refused(why) => {
                let why = format!(
                    "{why}. It is compiled again when its bytes, these limits or the version of kubewitness change"
                );
                self.refusals.add(digest, limits, &why);
                SandboxError::Unfit(why)
            }
            NoCode::Killed(why) => {
                let why = format!(
                    "{why}. It is compiled again when its bytes or these limits change, and after a restart"
                );
                self.refusals.add_until_restart(digest, limits, &why);
                SandboxError::Unfit(why)
            }
            NoCode::Broken(why) => SandboxError::Compiler(why),
            NoCode::Unkept(error) => SandboxError::Compiler(error.to_string()),
        }
    }

    async fn compile_component(
        &self,
        bytes: &Bytes,
        digest: &str,
        limits: &ComponentsSpec,
        mut is_large: impl FnMut(),
    ) -> Result<Component, NoCode> {
        let refused =
            |error: wasmtime::Error| NoCode::Refused(format!("the component can't be compiled: {error:#}"));
        let ComponentCompiler::Child(program) = &self.compiler else {
            let component = Component::from_binary(&self.engine, bytes).map_err(refused)?;
            if let Some(cache) = &self.cache {
                cache.store_component(digest, &component);
            }
            return Ok(component);
        };
        if let Some(cache) = &self.cache {
            match self.compile_to_cache(cache, program, bytes, digest, limits, &mut is_large).await {
                Ok(Some(component)) => return Ok(component),
                Ok(None) => {}
                Err(NoCode::Unkept(error)) => cache.warn_of_unkept(&error),
                Err(error) => return Err(error),
            }
        }
        // If code can't be cached, it is compiled at every start.
        let mut code = Vec::new();
        let keep = |part: &[u8]| {
            code.extend_from_slice(part);
            Ok(())
        };
        process::compile_in_process(program, bytes.clone(), limits, is_large, keep).await?;
        cache::from_own_child(&self.engine, &code).map_err(refused)
    }

    /// Compiles and writes the code to disk as it arrives. It is trusted only after the cache has verified
    /// it.
    async fn compile_to_cache(
        &self,
        cache: &CodeCache,
        program: &Path,
        bytes: &Bytes,
        digest: &str,
        limits: &ComponentsSpec,
        is_large: impl FnOnce(),
    ) -> Result<Option<Component>, NoCode> {
        let mut entry = cache.begin_entry(digest).map_err(NoCode::Unkept)?;
        process::compile_in_process(program, bytes.clone(), limits, is_large, |part| entry.write(part))
            .await?;
        entry.finish_entry().map_err(NoCode::Unkept)?;
        Ok(cache.load(&self.engine, digest))
    }
}

/// Publishes the digest of what is being compiled, until this is dropped.
struct ShownProgress<'a>(&'a watch::Sender<Option<Arc<str>>>);

impl<'a> ShownProgress<'a> {
    fn of(now: &'a watch::Sender<Option<Arc<str>>>, digest: &str) -> Self {
        now.send_replace(Some(digest.into()));
        Self(now)
    }
}

impl Drop for ShownProgress<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SandboxError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| SandboxError::Engine(format!("compiling ended early: {error}")))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::compile::engine_configuration;

    /// Long enough for a process to begin that should not begin.
    const MOMENT: Duration = Duration::from_millis(200);

    /// Its compiler never ends by itself.
    fn store() -> (Arc<CodeStore>, ComponentsSpec) {
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/compiler.sh");
        let engine = Engine::new(&engine_configuration()).unwrap();
        let store = CodeStore::new(engine, None, ComponentCompiler::Child(program), false);
        (
            Arc::new(store),
            ComponentsSpec {
                compile_memory: kubewitness_core::config::Bytes(2),
                ..ComponentsSpec::default()
            },
        )
    }

    fn digest_of(bytes: &[u8]) -> String {
        hex::encode(digest(&SHA256, bytes))
    }

    #[tokio::test]
    async fn one_is_compiled_at_a_time_in_the_order_of_asking_and_who_gives_up_makes_room() {
        let (store, limits) = store();
        let mut now = store.digest_in_progress();
        let all: Vec<Bytes> = (0..3).map(|number| vec![number].into()).collect();
        let mut asked: Vec<_> = Vec::new();
        for bytes in &all {
            let mut code = store.code_of(bytes, &limits).boxed();
            assert!(timeout(MOMENT, &mut code).await.is_err(), "its turn comes once the first has ended");
            asked.push(code);
            assert_eq!(now.borrow().as_deref(), Some(digest_of(&all[0]).as_str()));
        }
        for bytes in &all {
            let mut first = asked.remove(0);
            let is_its_turn = now.wait_for(|now| now.as_deref() == Some(digest_of(bytes).as_str()));
            tokio::select! {
                _ = &mut first => panic!("its compiler does not end"),
                shown = timeout(Duration::from_secs(30), is_its_turn) => drop(shown.unwrap().unwrap()),
            }
        }
        timeout(Duration::from_secs(30), now.wait_for(Option::is_none)).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn all_who_ask_for_the_same_share_one_process_until_the_last_gives_up() {
        let (store, limits) = store();
        let bytes = Bytes::from_static(&[7]);
        let mut now = store.digest_in_progress();
        let (mut first, mut second) =
            (store.code_of(&bytes, &limits).boxed(), store.code_of(&bytes, &limits).boxed());
        assert!(timeout(MOMENT, futures::future::join(&mut first, &mut second)).await.is_err());
        assert!(now.borrow_and_update().is_some());
        drop(first);
        assert!(timeout(MOMENT, &mut second).await.is_err());
        assert!(!now.has_changed().unwrap(), "the same process goes on");
        drop(second);
        timeout(Duration::from_secs(30), now.wait_for(Option::is_none)).await.unwrap().unwrap();
    }
}

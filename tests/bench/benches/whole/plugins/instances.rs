//! A new instance: a call that needs one against a call that finds one, beside wasmtime alone with the same component.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kubewitness_core::config::{ComponentsSpec, LimitsSpec};
use kubewitness_core::ports::PluginHandler;
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine};
use wasmtime::component::{Component, InstancePre, Linker, ResourceTable};
use wasmtime::{Config, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::support::{NoGrants, component, deliveries};

const ROUNDS: usize = 2_000;

/// The state that WASI needs, and no more.
#[derive(Default)]
pub struct BareWasi {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for BareWasi {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// The peer: wasmtime alone, without limits and without a host behind the imports.
pub struct BareWasmtime {
    engine: wasmtime::Engine,
    component: Component,
    pre: InstancePre<BareWasi>,
}

impl BareWasmtime {
    pub fn new(bytes: &[u8]) -> wasmtime::Result<Self> {
        let mut config = Config::new();
        config.epoch_interruption(true).concurrency_support(false);
        let engine = wasmtime::Engine::new(&config)?;
        let component = Component::from_binary(&engine, bytes)?;
        Self::of(engine, component)
    }

    fn of(engine: wasmtime::Engine, component: Component) -> wasmtime::Result<Self> {
        let mut linker = Linker::<BareWasi>::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        linker.define_unknown_imports_as_traps(&component)?;
        let pre = linker.instantiate_pre(&component)?;
        Ok(Self { engine, component, pre })
    }

    /// The same code once more, as another component would have it.
    pub fn once_more(&self) -> wasmtime::Result<Self> {
        // It was made by this very engine a moment ago.
        #[allow(unsafe_code)]
        let component = unsafe { Component::deserialize(&self.engine, self.component.serialize()?)? };
        Self::of(self.engine.clone(), component)
    }

    pub async fn instance(&self) -> wasmtime::Result<Store<BareWasi>> {
        let mut store = Store::new(&self.engine, BareWasi::default());
        store.set_epoch_deadline(u64::MAX / 2);
        self.pre.instantiate_async(&mut store).await?;
        Ok(store)
    }
}

pub async fn run() -> Result<()> {
    let bytes = component("probe");
    let alone = BareWasmtime::new(&bytes).map_err(plain)?;
    let mut peer = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        black_box(alone.instance().await.map_err(plain)?);
        peer.push(begun.elapsed());
    }
    let engine = SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })?;
    let component = engine.load(&bytes.into(), &ComponentsSpec::default()).await?;
    let batch = deliveries(1, 1);
    let (mut new, mut kept) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        let grants = Arc::new(NoGrants::new(r#"{"command":"done"}"#));
        let plugin = component.make_plugin("probe", &LimitsSpec::default(), grants)?;
        for times in [&mut new, &mut kept] {
            let begun = Instant::now();
            black_box(plugin.handle_batch(&batch).await.context("a call")?);
            times.push(begun.elapsed());
        }
    }
    let (peer, new, kept) = (median(peer), median(new), median(kept));
    let ours = new.saturating_sub(kept);
    println!("plugins: one instance of the probe, the median of {ROUNDS}");
    println!("  a call with a new one   {:>8.1} µs", micros(new));
    println!("  a call that finds one   {:>8.1} µs", micros(kept));
    println!("  so an instance          {:>8.1} µs", micros(ours));
    println!(
        "  peer: wasmtime alone    {:>8.1} µs; ours takes {:.2} times as long",
        micros(peer),
        micros(ours) / micros(peer)
    );
    Ok(())
}

/// Wasmtime has an error type of its own.
#[allow(clippy::needless_pass_by_value, reason = "`map_err` hands it over")]
pub fn plain(error: wasmtime::Error) -> anyhow::Error {
    anyhow!("{error:#}")
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

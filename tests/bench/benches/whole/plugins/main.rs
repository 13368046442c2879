//! The costs of a plugin apart from its states: a new instance, a start with ten cached plugins, the memory
//! of two hundred and by language, and the pause while one version replaces another.
//!
//! An operator with many small plugins pays these even if nothing happens in the cluster. Most are compared
//! with a peer in the same run.

#[path = "../../fixtures/canned.rs"]
mod canned;
mod crowd;
#[path = "../../fixtures/host.rs"]
mod host;
mod instances;
mod languages;
#[allow(dead_code, reason = "each benchmark uses its part")]
#[path = "../../fixtures/support.rs"]
mod support;
mod swap;

use anyhow::Result;
use kubewitness_bench::wanted;

fn main() -> Result<()> {
    rustls::crypto::ring::default_provider().install_default().ok();
    let runtime = tokio::runtime::Runtime::new()?;
    if wanted("plugins-instances") {
        runtime.block_on(instances::run())?;
    }
    if wanted("plugins-start") {
        runtime.block_on(crowd::start())?;
    }
    if wanted("plugins-memory") {
        runtime.block_on(crowd::memory())?;
    }
    if wanted("plugins-languages") {
        runtime.block_on(languages::memory())?;
    }
    if wanted("plugins-swap") {
        runtime.block_on(swap::run())?;
    }
    Ok(())
}

//! A component as large as those in Python: what the controller holds of it is what runs.

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Kubewitness, RunOptions, in_scratch, plugins_folder, until};
use kubewitness_hostile::with_data;

use super::costly_components::{GROWTH, WITHIN, count_anew, memory};
use crate::support::{AUDIT, create_job, example_copy, plugin, plugin_manifest, simulator, write};

/// More than a component in Python has. With as much in its code, three copies of it are past the bound.
const DATA: usize = 24 << 20;
/// The part of it that stays: the plugin that runs is a small one.
const HELD: u64 = 24 << 20;

/// The audit plugin, with a module beside it that nobody makes an instance of.
fn large() -> Result<Vec<u8>> {
    let audit = std::fs::read(plugins_folder()?.join("audit.wasm")).context("the audit plugin")?;
    Ok(with_data(&audit, DATA))
}

fn is_active(status: &StatusView) -> bool {
    plugin(status, "large").is_some_and(|it| it.state == "active" && it.delivered > 0)
}

#[tokio::test]
async fn a_large_component_is_loaded_within_the_memory_that_a_controller_may_grow_by_and_little_of_it_stays()
{
    in_scratch("large", async |scratch| {
        let simulator = simulator(scratch).await?;
        let folder = example_copy(scratch)?;
        let options = RunOptions { compiles_anew: true, ..simulator.run_options(scratch, folder.clone())? };
        create_job(&simulator, "before").await?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        run.status_when(WITHIN, "the first job", |status| status.journal.states > 0).await?;
        run.caught_up(WITHIN).await?;
        let pid = run.process().pid()?;
        let before = count_anew(pid)?;
        std::fs::write(folder.join("large.wasm"), large()?)?;
        let spec = AUDIT.replace("audit.wasm", "large.wasm");
        write(&folder, "large.yaml", &plugin_manifest("large", &spec))?;
        run.status_when(WITHIN, "the large plugin at work", is_active).await?;
        let grown = memory(pid, "VmHWM:")?.saturating_sub(before);
        println!("loading {} MiB took {} MiB at most", DATA >> 20, grown >> 20);
        ensure!(grown <= GROWTH, "the controller grew by {grown} bytes");
        // The allocator gives back what was freed some time later.
        let mut held = 0;
        let small = until(WITHIN, "its memory to be given back", async || {
            held = memory(pid, "VmRSS:")?.saturating_sub(before);
            Ok((held <= HELD).then_some(()))
        });
        small.await.with_context(|| format!("the controller holds {held} bytes more"))?;
        run.stop().await?;

        // Its code comes from the cache, and what its bytes are is known from the folder of the last good version.
        let mut again = Kubewitness::start("again", &options, scratch.path())?;
        again.answers().await?;
        create_job(&simulator, "after").await?;
        again.status_when(WITHIN, "it to go on", is_active).await?;
        again.stop().await
    })
    .await;
}

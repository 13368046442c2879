//! The operator's ceiling: what a manifest may ask for, and the memory of all plugins together.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, command, in_scratch};

use crate::limits::hostile::{FOR_PROBE, hostile, program};
use crate::support::{AUDIT, create_job, example_copy, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);

fn limits(config: &Path, host: &str, plugins: &str) -> Result<()> {
    let limits = format!("\n      limits:\n        plugins: {{{plugins}}}\n");
    write(config, "host.yaml", &format!("{}{limits}", host.trim_end()))
}

fn is(status: &StatusView, name: &str, state: &str, told: &str) -> bool {
    let message = |message: Option<&str>| message.unwrap_or_default().contains(told);
    let mut plugins = status.plugins.iter();
    plugins.any(|plugin| plugin.name == name && plugin.state == state && message(plugin.message.as_deref()))
}

#[tokio::test]
async fn a_manifest_beyond_the_ceiling_is_refused_by_field_value_and_ceiling_until_the_ceiling_is_raised() {
    in_scratch("ceiling", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        limits(&config, &host, "memory: 32Mi, grants: [sql]")?;

        let over = "spec.limits.memory: is 64Mi, over 32Mi, the ceiling of the host's settings \
                    (`spec.limits.plugins.memory`)";
        let grant = "spec.grants.ledger: asks for `ledger`, which the host's settings do not allow";
        let (code, stdout, stderr) = command(&["check", &config.to_string_lossy()]).await?;
        let said = format!("{stdout}{stderr}");
        ensure!(code == Some(3) && said.contains(over) && said.contains(grant), "{code:?}: {said}");

        create_job(&simulator, "one").await?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        let refused = |status: &StatusView| {
            is(status, "persistence", "failed", over) && is(status, "audit", "failed", grant)
        };
        run.status_when(WITHIN, "both plugins to be refused", refused).await?;

        // With the ceiling the plugins come, and states are witnessed meanwhile.
        limits(&config, &host, "memory: 64Mi, grants: [sql, ledger]")?;
        let delivered = |status: &StatusView| {
            status.plugins.len() == 2 && status.plugins.iter().all(|p| p.state == "active" && p.delivered > 0)
        };
        run.status_when(WITHIN, "both plugins to get the state", delivered).await?;

        // A lower ceiling ends nothing that runs, and says so.
        limits(&config, &host, "concurrency: 1")?;
        let over = "spec.limits.concurrency: is 4, over 1";
        let degraded = |status: &StatusView| is(status, "persistence", "degraded", over);
        run.status_when(WITHIN, "the plugin that runs to be told of", degraded).await?;

        // Not one of them has the memory to begin with.
        limits(&config, &host, "totalMemory: 64Ki, memory: 64Ki")?;
        let over = "spec.limits.memory: is 64Mi, over 64Ki";
        let degraded = |status: &StatusView| is(status, "persistence", "degraded", over);
        run.status_when(WITHIN, "the total to be told of", degraded).await?;
        run.stop().await?;
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_plugin_that_goes_beyond_the_memory_of_all_waits_is_told_so_and_goes_on_with_more() {
    in_scratch("total-memory", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        std::fs::remove_file(config.join("persistence.yaml"))?;
        let host = std::fs::read_to_string(config.join("host.yaml"))? + FOR_PROBE;
        limits(&config, &host, "totalMemory: 40Mi")?;
        for (name, mebibytes) in [("one", 20), ("other", 24)] {
            let config_of = format!("{{mebibytes: {mebibytes}}}");
            write(&config, &format!("{name}.yaml"), &hostile(name, &program("hoards"), &config_of))?;
        }
        create_job(&simulator, "one").await?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        // Whichever came first keeps its instance.
        let over = "all plugins together may hold 40Mi";
        let waits = |plugin: &PluginView| {
            let told = plugin.message.as_deref().is_some_and(|message| message.contains(over));
            told && plugin.waiting == 1 && plugin.dead == 0 && plugin.calls.ended.unavailable > 1
        };
        let one_waits = |status: &StatusView| {
            let waiting = status.plugins.iter().filter(|plugin| waits(plugin)).count();
            waiting == 1 && status.plugins.iter().any(|plugin| plugin.delivered == 1)
        };
        run.status_when(WITHIN, "one plugin to wait for memory", one_waits).await?;
        let server = format!("http://{}", run.address());
        let (code, stdout, stderr) = command(&["plugins", "-o", "wide", "--server", &server]).await?;
        ensure!(code == Some(0) && stdout.contains(over), "{code:?}: {stdout}{stderr}");
        let (_, page) = run.get("/plugins").await?;
        ensure!(page.contains(over), "{page}");

        limits(&config, &host, "totalMemory: 96Mi")?;
        let both = |status: &StatusView| {
            status.plugins.len() == 2 && status.plugins.iter().all(|plugin| plugin.delivered == 1)
        };
        run.status_when(WITHIN, "both with more memory", both).await?;
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn what_a_plugin_is_granted_has_called_and_never_used_is_told_by_the_api_and_on_the_command_line() {
    in_scratch("granted", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let wide = AUDIT.replace("grants:\n", "grants:\n  kv: true\n  lister: [jobs]\n");
        write(&config, "audit.yaml", &plugin_manifest("audit", &wide))?;
        create_job(&simulator, "one").await?;
        let options = simulator.run_options(scratch, config)?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        let grants = |status: &StatusView| {
            let audit = status.plugins.iter().find(|plugin| plugin.name == "audit");
            audit.map(|audit| audit.grants.clone()).unwrap_or_default()
        };
        let called = |status: &StatusView| grants(status).iter().any(|grant| grant.calls > 0);
        let status = run.status_when(WITHIN, "a call of the plugin", called).await?;
        let grants = grants(&status);
        let told: Vec<_> =
            grants.iter().map(|grant| (grant.name.as_str(), grant.declared, grant.calls > 0)).collect();
        let expected = [("kv", false, false), ("ledger:trail", true, true), ("lister:jobs", false, false)];
        ensure!(told == expected, "{grants:?}");

        let server = format!("http://{}", run.address());
        let (code, stdout, stderr) = command(&["plugins", "-o", "wide", "--server", &server]).await?;
        let unused = "Never used since it was started: kv, lister:jobs";
        let is_told = stdout.contains("ledger:trail (declared, ") && stdout.contains(unused);
        ensure!(code == Some(0) && is_told, "{code:?}: {stdout}{stderr}");
        run.stop().await?;
        Ok(())
    })
    .await;
}

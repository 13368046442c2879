//! Plugins from an OCI registry: pulled by tag, shown with their digest, and running on while the registry is away. What
//! was compared under a tag takes over, wherever the tag leads by then.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::registry::{ImageRegistry, SigningKey};
use kubewitness_harness::{Kubewitness, Scratch, command, in_scratch, plugins_folder, until, until_ok};

use crate::support::{AUDIT, create_job, example_copy, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);

fn trail(module: &str, calls: u32) -> String {
    let spec = AUDIT.replace("{file: audit.wasm}", module) + &format!("\nlimits: {{hostCalls: {calls}}}\n");
    plugin_manifest("trail", &spec)
}

fn says(status: &StatusView, name: &str, state: &str, part: &str) -> bool {
    let is_it = |message: &Option<String>| message.as_deref().unwrap_or_default().contains(part);
    status.plugins.iter().any(|plugin| plugin.name == name && plugin.state == state && is_it(&plugin.message))
}

/// The registries of these tests are on this machine.
fn example_with_registries(scratch: &Scratch, more: &str) -> Result<PathBuf> {
    let config = example_copy(scratch)?;
    let host = std::fs::read_to_string(config.join("host.yaml"))?;
    ensure!(host.contains("      ledgers:"), "the example has changed: {host}");
    let modules = format!("      modules:\n        addresses: [loopback]\n{more}      ledgers:");
    write(&config, "host.yaml", &host.replace("      ledgers:", &modules))?;
    Ok(config)
}

fn component() -> Result<Vec<u8>> {
    std::fs::read(plugins_folder()?.join("audit.wasm")).context("reading audit.wasm")
}

#[tokio::test]
async fn a_plugin_of_a_registry_is_shown_with_its_digest_and_runs_on_while_the_registry_is_away() {
    in_scratch("registries", async |scratch| {
        let registry = ImageRegistry::start(None).await?;
        let image = registry.push("platform/audit", "1.0", &component()?);
        let oci = format!("{{oci: \"{}/platform/audit:1.0\"}}", registry.name());
        let simulator = simulator(scratch).await?;
        let config = example_with_registries(scratch, "")?;
        write(&config, "trail.yaml", &trail(&oci, 1008))?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let pulled = |status: &StatusView| {
            let shown = format!("{}/platform/audit:1.0@sha256:{image}", registry.name());
            let is_it = |module: &Option<String>| module.as_deref() == Some(shown.as_str());
            status.plugins.iter().any(|it| it.name == "trail" && it.state == "active" && is_it(&it.module))
        };
        run.status_when(WITHIN, "the plugin with its digest", pulled).await?;
        create_job(&simulator, "one").await?;
        run.status_when(WITHIN, "the job", |status| status.journal.states > 0).await?;
        run.caught_up(WITHIN).await?;
        let asked = registry.asked().len();

        // A restart resolves no tag again.
        registry.push("platform/audit", "1.0", b"\0asm of another");
        run.kill().await?;
        let mut run = Kubewitness::start("again", &options, scratch.path())?;
        run.status_when(WITHIN, "the plugin after a restart", pulled).await?;
        ensure!(registry.asked().len() == asked, "{:?}", registry.asked());
        // A changed document does, and what is there now is no component.
        write(&config, "trail.yaml", &trail(&oci, 1009))?;
        run.status_when(WITHIN, "the refusal", |status| says(status, "trail", "degraded", "spec.module"))
            .await?;
        write(&config, "trail.yaml", &trail(&oci, 1008))?;
        run.status_when(WITHIN, "the document of before", pulled).await?;

        // A registry that is away keeps nothing from running, also after a restart.
        write(&config, "trail.yaml", &trail(&oci, 1010))?;
        drop(registry);
        run.kill().await?;
        let mut run = Kubewitness::start("away", &options, scratch.path())?;
        run.status_when(WITHIN, "the last good one", |status| {
            says(status, "trail", "degraded", "can't be asked")
        })
        .await?;
        create_job(&simulator, "two").await?;
        let handed = |status: &StatusView| {
            status.plugins.iter().any(|plugin| plugin.name == "trail" && plugin.delivered >= 2)
        };
        run.status_when(WITHIN, "the last good one to be handed the next job", handed).await?;
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_wrong_digest_and_a_missing_signature_are_refused_by_check_and_by_the_controller() {
    in_scratch("registries", async |scratch| {
        let registry = ImageRegistry::start(None).await?;
        let (key, bytes) = (SigningKey::make()?, component()?);
        let image = registry.push("audit", "1", &bytes);
        let simulator = simulator(scratch).await?;
        let indented = key.public().replace('\n', "\n          ");
        let signed_by = format!("        signedBy:\n        - |\n          {indented}\n");
        let config = example_with_registries(scratch, &signed_by)?;
        let folder = config.to_string_lossy().into_owned();
        let named = |more: &str| format!("{{oci: \"{}/audit:1\"{more}}}", registry.name());
        let check = async |module: &str| -> Result<(Option<i32>, String)> {
            write(&config, "trail.yaml", &trail(module, 1008))?;
            let (code, stdout, stderr) = command(&["check", &folder]).await?;
            Ok((code, stdout + &stderr))
        };
        let (code, told) = check(&named("")).await?;
        ensure!(code == Some(3) && told.contains("no signature of cosign"), "{code:?} {told}");
        registry.sign("audit", &image, &key);
        let (code, told) = check(&named("")).await?;
        ensure!(code == Some(0), "{code:?} {told}");
        let wrong = named(&format!(", sha256: {}", "0".repeat(64)));
        let (code, told) = check(&wrong).await?;
        ensure!(code == Some(3) && told.contains("spec.module.sha256"), "{code:?} {told}");
        let (code, told) = check("{configMapKey: audit.wasm}").await?;
        ensure!(code == Some(3) && told.contains("modules.signedBy"), "{code:?} {told}");

        let options = simulator.run_options(scratch, config.clone())?;
        write(&config, "trail.yaml", &trail(&wrong, 1008))?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.status_when(WITHIN, "the wrong digest", |status| {
            says(status, "trail", "failed", "spec.module.sha256")
        })
        .await?;
        write(&config, "trail.yaml", &trail(&named(""), 1008))?;
        run.status_when(WITHIN, "the signed one", |status| says(status, "trail", "active", "")).await?;
        until_ok(WITHIN, "the page of plugins", async || {
            let (_, page) = run.get("/plugins").await?;
            ensure!(page.contains(&format!("@sha256:{image}")), "{page}");
            Ok(())
        })
        .await?;

        // What the host has kept of others is no file of a manifest.
        let kept = options.data.join("last-good/trail/plugin.wasm");
        // It is active a moment before.
        until(WITHIN, "what is kept", async || Ok(kept.is_file().then_some(()))).await?;
        std::os::unix::fs::symlink(&kept, config.join("linked.wasm"))?;
        for (file, part) in [
            ("../data/last-good/trail/plugin.wasm", "leads out of its folder"),
            ("linked.wasm", "is not there"),
        ] {
            let spec = format!("module: {{file: {file}}}\nsubscribe: [{{source: jobs}}]");
            write(&config, "steal.yaml", &plugin_manifest("steal", &spec))?;
            let refused = |status: &StatusView| says(status, "steal", "failed", part);
            run.status_when(WITHIN, "the refusal of what the host keeps", refused).await?;
        }
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn what_was_compared_in_the_shadow_takes_over_although_its_tag_has_moved() {
    in_scratch("registries-shadow", async |scratch| {
        let registry = ImageRegistry::start(None).await?;
        // The same with a custom section of its own.
        registry.push("audit", "1.1", &[&component()?[..], &[0, 2, 1, b'n']].concat());
        let next = format!("{{oci: \"{}/audit:1.1\"}}", registry.name());
        let simulator = simulator(scratch).await?;
        let config = example_with_registries(scratch, "")?;
        let beside = format!("{AUDIT}\nshadow: {{module: {next}}}");
        write(&config, "trail.yaml", &plugin_manifest("trail", &beside))?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let shadow = |status: &StatusView| {
            let trail = status.plugins.iter().find(|plugin| plugin.name == "trail");
            trail.and_then(|plugin| plugin.shadow.clone())
        };
        run.status_when(WITHIN, "the shadow", |status| shadow(status).is_some()).await?;
        create_job(&simulator, "one").await?;
        let compared = |status: &StatusView| shadow(status).is_some_and(|shadow| shadow.same == 1);
        let status = run.status_when(WITHIN, "the job in both versions", compared).await?;
        let digest = shadow(&status).context("the shadow")?.digest;

        registry.push("audit", "1.1", b"\0asm of another");
        write(&config, "trail.yaml", &trail(&next, 4096))?;
        let took_over = |status: &StatusView| {
            says(status, "trail", "active", "") && status.plugins.iter().any(|plugin| plugin.digest == digest)
        };
        run.status_when(WITHIN, "the compared version", took_over).await?;
        run.stop().await
    })
    .await;
}

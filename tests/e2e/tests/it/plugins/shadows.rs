//! A version in the shadow of a plugin: it is compared, has no effect, and hurts nobody.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{ShadowView, StatusView};
use kubewitness_harness::{Kubewitness, command, in_scratch, plugins_folder};

use crate::limits::hostile::program;
use crate::plugins::probing::{ProbeLab, message, probe};
use crate::support::create_job;

const WITHIN: Duration = Duration::from_secs(60);

fn shadow(status: &StatusView) -> Option<&ShadowView> {
    probe(status)?.shadow.as_ref()
}

fn is_well(status: &StatusView, delivered: u64) -> bool {
    probe(status).is_some_and(|it| it.state == "active" && it.delivered == delivered && it.dead == 0)
}

/// Makes a program the version in the shadow.
fn casts(lab: &ProbeLab, file: &str, name: &str) -> Result<()> {
    let version = lab.config.join(file);
    // A file that is read meanwhile is a whole one.
    let copied = version.with_extension("new");
    std::fs::copy(plugins_folder()?.join(program(name)), &copied).context(name.to_owned())?;
    std::fs::rename(copied, version).context(name.to_owned())
}

/// The folders of versions that are compared, each with its database.
fn trials(data: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(data.join("trial")).context("the trials")?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Checks that a difference is told everywhere, without what looks like a secret.
async fn check_reported(run: &Kubewitness) -> Result<()> {
    let server = format!("http://{}", run.address());
    let (code, stdout, stderr) = command(&["plugin", "shadow", "probe", "--server", &server]).await?;
    ensure!(code == Some(3), "{code:?}: {stdout}{stderr}");
    for part in
        ["Job default/one (present)", "+++ in the shadow", "of-another-version", "same: 0, different: 3"]
    {
        ensure!(stdout.contains(part), "{part} is not in {stdout}");
    }
    let (_, api) = run.get("/api/v1/plugins").await?;
    ensure!(api.contains("of-another-version") && !api.contains("hunter2"), "{api}");
    let (code, stdout, _) = command(&["plugins", "-o", "wide", "--server", &server]).await?;
    ensure!(code == Some(0) && stdout.contains("3 states compared, 3 different, 0 missed"), "{stdout}");
    let (_, page) = run.get("/plugins").await?;
    ensure!(page.contains("In the shadow") && page.contains("Job default/two"), "{page}");
    let (_, page) = run.get("/metrics").await?;
    let sample = "kubewitness_plugin_shadow_states_total{plugin=\"probe\",result=\"different\"} 3";
    ensure!(page.contains(sample), "{page}");
    Ok(())
}

#[tokio::test]
async fn a_version_that_differs_is_told_with_its_differences_and_has_no_effect() {
    in_scratch("shadow", async |scratch| {
        let lab = ProbeLab::new(scratch, "shadow: {module: {file: other.wasm}}\n").await?;
        lab.version("{command: ledger.append notes mine}")?;
        let mut run = Kubewitness::start("run", &lab.options, scratch.path())?;
        let refused = |status: &StatusView| {
            message(status).contains("spec.shadow.module.file") && message(status).contains("is not there")
        };
        run.status_when(WITHIN, "the missing component to be told", refused).await?;
        casts(&lab, "other.wasm", "logs_a_password")?;
        for name in ["one", "two", "three"] {
            create_job(&lab.simulator, name).await?;
        }
        let compared =
            |status: &StatusView| is_well(status, 3) && shadow(status).is_some_and(|it| it.states == 3);
        let status = run.status_when(WITHIN, "three states to be compared", compared).await?;
        let shadow = shadow(&status).context("the shadow")?;
        ensure!(shadow.active.effects == 6 && shadow.shadow.effects == 6, "{shadow:?}");
        ensure!(shadow.shadow.peak_memory > 0 && shadow.shadow.guest_seconds > 0.0, "{shadow:?}");
        check_reported(&run).await?;

        // What its trial has written is removed by the next start.
        let left = trials(lab.data())?;
        ensure!(left.len() == 2, "{left:?}");
        run.kill().await?;
        let mut run = Kubewitness::start("again", &lab.options, scratch.path())?;
        run.status_when(WITHIN, "the plugin after a kill", |status| is_well(status, 3)).await?;
        ensure!(left.iter().all(|folder| !folder.exists()), "{left:?} are still there");
        run.stop().await?;
        let notes = std::fs::read_to_string(lab.data().join("audit/notes.jsonl"))?;
        ensure!(notes == "mine\n".repeat(3), "{notes}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_shadow_that_traps_or_never_ends_hurts_nobody() {
    in_scratch("shadow-harm", async |scratch| {
        let lab = ProbeLab::new(scratch, "limits: {call: 2s}\nshadow: {module: {file: harm.wasm}}\n").await?;
        casts(&lab, "harm.wasm", "exits")?;
        lab.version("{command: ledger.append notes mine}")?;
        let mut run = Kubewitness::start("run", &lab.options, scratch.path())?;
        let told = |text: &'static str, delivered| {
            move |status: &StatusView| {
                let failed = shadow(status)
                    .and_then(|it| it.differences.last())
                    .map(|it| &it.shadow.verdict["failed"]);
                is_well(status, delivered)
                    && failed.and_then(|it| it.as_str()).is_some_and(|failed| failed.contains(text))
            }
        };
        create_job(&lab.simulator, "one").await?;
        run.status_when(WITHIN, "the trap", told("the plugin trapped", 1)).await?;
        casts(&lab, "harm.wasm", "loops")?;
        lab.version("{command: ledger.append notes mine again}")?;
        let taken = |status: &StatusView| shadow(status).is_some_and(|it| it.states == 0);
        run.status_when(WITHIN, "the version that never ends", taken).await?;
        for name in ["two", "three", "four"] {
            create_job(&lab.simulator, name).await?;
        }
        run.status_when(WITHIN, "the end at its limit", told("longer than its limit of 2000 ms", 4)).await?;
        run.stop().await
    })
    .await;
}

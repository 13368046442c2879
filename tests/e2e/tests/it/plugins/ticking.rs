//! A plugin that is called on a schedule: through the manifest, with its capabilities, and under everything that happens
//! to plugins.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{StatusView, TickView};
use kubewitness_harness::{Kubewitness, command, in_scratch, until};

use crate::plugins::probing::{FOR_PROBE, ProbeLab, manifest, message, probe};
use crate::support::{AUDIT, create_job, example_copy, plugin_manifest, write};

const WITHIN: Duration = Duration::from_secs(60);

fn tick(status: &StatusView) -> TickView {
    probe(status).and_then(|it| it.tick.clone()).unwrap_or_default()
}

async fn command_text(run: &Kubewitness, line: &[&str]) -> Result<String> {
    let server = format!("http://{}", run.address());
    let (code, stdout, stderr) = command(&[line, &["--server", &server]].concat()).await?;
    ensure!(code == Some(0), "{line:?} ended with {code:?}: {stdout}{stderr}");
    Ok(stdout)
}

#[tokio::test]
async fn ticks_come_on_their_schedule_through_pauses_failures_and_a_version_that_is_taken_back() {
    in_scratch("ticking", async |scratch| {
        let lab = ProbeLab::new(scratch, "tick: {every: 1s}\n").await?;
        lab.version("{command: done, tick: [ledger.append notes ticked]}")?;
        let mut run = Kubewitness::start("run", &lab.options, scratch.path())?;
        let status =
            run.status_when(WITHIN, "ticks without a state", |status| tick(status).ticks >= 2).await?;
        let TickView { failed, next, error, .. } = tick(&status);
        ensure!(failed == 0 && next.is_some() && error.is_none(), "{status:?}");
        let notes = std::fs::read_to_string(lab.data().join("audit/notes.jsonl"))?;
        ensure!(notes.lines().count() >= 2 && notes.starts_with("ticked"), "{notes}");
        let wide = command_text(&run, &["plugins", "-o", "wide"]).await?;
        ensure!(wide.contains("probe: ") && wide.contains(" 0 failed; last: "), "{wide}");

        command_text(&run, &["pause", "probe", "--reason", "a move", "--who", "ada"]).await?;
        let paused =
            run.status_when(WITHIN, "the pause", |it| probe(it).is_some_and(|it| it.state == "paused"));
        let before = tick(&paused.await?).ticks;
        let none_is_due = |status: &StatusView| tick(status).next.is_none();
        let status = run.status_when(WITHIN, "no further tick to be due", none_is_due).await?;
        // One may have been in progress.
        ensure!(tick(&status).ticks <= before + 1, "{status:?}");
        command_text(&run, &["resume", "probe", "--reason", "moved", "--who", "ada"]).await?;
        run.status_when(WITHIN, "ticks after the pause", |status| tick(status).ticks > before + 1).await?;

        lab.version("{command: done, tick: [ledger.append notes lost, fail the relay is away]}")?;
        let failing = |status: &StatusView| {
            tick(status).failed >= 2 && message(status).contains("the plugin says: the relay is away")
        };
        run.status_when(WITHIN, "the failures", failing).await?;
        create_job(&lab.simulator, "one").await?;
        let delivers = |status: &StatusView| probe(status).is_some_and(|it| it.delivered == 1);
        run.status_when(WITHIN, "a state beside ticks that fail", delivers).await?;
        let notes = std::fs::read_to_string(lab.data().join("audit/notes.jsonl"))?;
        ensure!(!notes.contains("lost"), "what a tick that failed wrote is rolled back: {notes}");

        lab.version("{command: done, tick: [ledger.append notes good]}")?;
        run.status_when(WITHIN, "the mended version", |it| tick(it).failed == 0 && tick(it).ticks > 0)
            .await?;
        create_job(&lab.simulator, "two").await?;
        run.status_when(WITHIN, "its first state", |it| probe(it).is_some_and(|it| it.delivered == 2))
            .await?;
        lab.version("{command: trap, tick: [ledger.append notes bad]}")?;
        let taken = lab.last_good_path();
        until(WITHIN, "the version to be taken", async || {
            Ok(std::fs::read_to_string(&taken)?.contains("bad").then_some(()))
        })
        .await?;
        for name in ["three", "four", "five", "six"] {
            create_job(&lab.simulator, name).await?;
        }
        let taken_back =
            |status: &StatusView| message(status).contains("was taken back") && tick(status).ticks >= 2;
        run.status_when(WITHIN, "ticks of the version before", taken_back).await?;
        let notes = std::fs::read_to_string(lab.data().join("audit/notes.jsonl"))?;
        let last = notes.lines().last().context("a note")?;
        ensure!(last == "good", "the version before ticks again: {notes}");
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_schedule_without_the_export_for_it_is_refused_by_name_and_the_reverse_is_a_warning() {
    in_scratch("ticking-check", async |scratch| {
        let config = example_copy(scratch)?;
        let wrong = plugin_manifest("audit", &format!("{AUDIT}\ntick: {{every: 30s}}"));
        write(&config, "audit.yaml", &wrong)?;
        let folder = config.to_string_lossy().into_owned();
        let plugins = kubewitness_harness::plugins_folder()?.to_string_lossy().into_owned();
        let line = ["check", &folder, "--plugins", &plugins, "-o", "json"];
        let (code, stdout, stderr) = command(&line).await?;
        ensure!(code == Some(3), "{code:?}: {stdout}{stderr}");
        for part in ["spec.tick: ", "kubewitness:plugin/ticker", "take `spec.tick` out"] {
            ensure!(stdout.contains(part), "{part} is not in {stdout}");
        }
        std::fs::remove_file(config.join("audit.yaml"))?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &(host.trim_end().to_owned() + "\n" + FOR_PROBE))?;
        write(&config, "probe.yaml", &manifest("{command: done}", ""))?;
        let (code, stdout, stderr) = command(&line[..4]).await?;
        ensure!(code == Some(4), "{code:?}: {stdout}{stderr}");
        ensure!(stdout.contains("! ") && stdout.contains("spec.tick: the component exports"), "{stdout}");
        Ok(())
    })
    .await;
}

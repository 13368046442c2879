//! SIGTERM at each stage of a start is an orderly end, a second one is prompt, and a data folder belongs to
//! one process of one kind.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    ChildProcess, Kubewitness, ProcessEnd, RunOptions, Scratch, free_port, http, in_scratch,
    kubewitness_binary, plugins_folder, until,
};
use tokio::process::Command;

use crate::support::{AUDIT, create_job, example_copy, plugin_manifest, proofs, simulator, write};

/// Longer than the drain deadline: a drain that uses all of it still counts as orderly.
const WITHIN: Duration = Duration::from_secs(60);
/// Shorter than the drain deadline: after a second signal nothing drains any more.
const AT_ONCE: Duration = Duration::from_secs(15);
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// The log's words about the first signal.
const HEARD: &str = "a second signal stops at once";

/// Its first call takes longer than any drain.
const STUCK: &str = "module: {file: hostile/loops.wasm}
subscribe:
  - {source: jobs, mode: every, start: beginning}
limits: {call: 60s}";

/// SIGTERM's bit in the masks of signals that the kernel tells.
const TERM: u64 = 1 << 14;

/// The stage at which SIGTERM comes: from the first steps of a process to its first states.
#[derive(Clone, Copy, Debug)]
enum StartStage {
    ListensForSignals,
    HasAJournal,
    Answers,
    HasListed,
    Witnesses,
    HandsOver,
}

impl StartStage {
    const ALL: [Self; 6] = [
        Self::ListensForSignals,
        Self::HasAJournal,
        Self::Answers,
        Self::HasListed,
        Self::Witnesses,
        Self::HandsOver,
    ];

    /// `states`: how many there are, with the one that this process is the first to see.
    fn is_reached(self, status: &StatusView, states: u64) -> bool {
        match self {
            Self::ListensForSignals | Self::HasAJournal | Self::Answers => true,
            Self::HasListed => status.sources.iter().any(|source| source.synced),
            Self::Witnesses => status.journal.states >= states,
            Self::HandsOver => status.plugins.iter().any(|plugin| plugin.delivered >= states),
        }
    }
}

/// Waits until a process that listens for signals has come so far.
async fn comes_to(
    (stage, states): (StartStage, u64),
    process: &mut ChildProcess,
    address: &str,
    data: &Path,
) -> Result<()> {
    listens(process).await?;
    let reached = until(STARTS_WITHIN, "it to come so far", async || {
        if let Some(ended) = process.ended()? {
            bail!("it ended with {ended:?}");
        }
        let is_reached = match stage {
            StartStage::ListensForSignals => true,
            StartStage::HasAJournal => data.join("journal.db").exists(),
            _ => match http().get(format!("http://{address}/api/v1/status")).send().await {
                Ok(answer) if answer.status() == 200 => stage.is_reached(&answer.json().await?, states),
                _ => false,
            },
        };
        Ok(is_reached.then_some(()))
    });
    let reached = reached.await;
    reached.with_context(|| format!("{stage:?}: {}", process.say()))
}

/// Waits until SIGTERM reaches the program rather than ending the process unheard.
async fn listens(process: &mut ChildProcess) -> Result<()> {
    let path = format!("/proc/{}/status", process.pid()?);
    let listens = until(STARTS_WITHIN, "it to listen for signals", async || {
        let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).context("no SigCgt")?;
        Ok((u64::from_str_radix(mask.trim(), 16)? & TERM != 0).then_some(()))
    });
    let listens = listens.await;
    listens.with_context(|| process.say())
}

async fn ends_with(process: &mut ChildProcess, code: i32, when: &str) -> Result<()> {
    let ended = process.terminate(WITHIN).await.with_context(|| when.to_owned())?;
    ensure!(ended == ProcessEnd::Code(code), "{when} it ended with {ended:?}; {}", process.say());
    Ok(())
}

fn playground(name: &str, data: &Path, logs: &Path) -> Result<ChildProcess> {
    playground_at(&format!("127.0.0.1:{}", free_port()?), name, data, logs)
}

fn playground_at(listen: &str, name: &str, data: &Path, logs: &Path) -> Result<ChildProcess> {
    let mut command = Command::new(kubewitness_binary()?);
    command.args(["playground", "--rate", "40", "--listen", listen, "--data"]).arg(data);
    command.env("KUBEWITNESS_PLUGINS", plugins_folder()?).env("HOME", logs).env("NO_COLOR", "1");
    ChildProcess::start(name, &mut command, logs)
}

/// Waits until it has journalled something, so that there is something to lose.
async fn works(process: &mut ChildProcess) -> Result<()> {
    process
        .line(0, STARTS_WITHIN, |line| {
            (line.contains("; journal ") && !line.contains("journal 0 states")).then_some(())
        })
        .await
}

async fn lab(scratch: &Scratch) -> Result<(kubewitness_harness::Simulator, RunOptions)> {
    let config = example_copy(scratch)?;
    write(&config, "trail.yaml", &plugin_manifest("trail", AUDIT))?;
    let simulator = simulator(scratch).await?;
    create_job(&simulator, "one").await?;
    let options = simulator.run_options(scratch, config)?;
    Ok((simulator, options))
}

#[tokio::test]
async fn run_ends_with_0_at_each_stage_of_its_start_and_its_folder_opens_again() {
    in_scratch("signals", async |scratch| {
        let (simulator, options) = lab(scratch).await?;
        // One job was there before.
        for (stage, jobs) in StartStage::ALL.into_iter().zip(2..) {
            create_job(&simulator, &format!("job-{jobs}")).await?;
            let mut run = Kubewitness::start(&format!("{stage:?}"), &options, scratch.path())?;
            let address = run.address().to_owned();
            comes_to((stage, jobs), run.process(), &address, &options.data).await?;
            ends_with(run.process(), 0, &format!("at {stage:?}")).await?;
        }
        let mut last = Kubewitness::start("last", &options, scratch.path())?;
        last.answers().await?;
        last.caught_up(STARTS_WITHIN).await?;
        last.stop().await?;
        proofs(&options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_ends_run_while_a_plugin_is_stuck_in_its_call_and_its_folder_opens_again() {
    in_scratch("signals", async |scratch| {
        let (_simulator, options) = lab(scratch).await?;
        let stuck = scratch.path().join("config").join("stuck.yaml");
        std::fs::write(&stuck, plugin_manifest("stuck", STUCK))?;
        let mut run = Kubewitness::start("twice", &options, scratch.path())?;
        run.status_when(STARTS_WITHIN, "the plugin to be in its call", |status| {
            status.plugins.iter().any(|plugin| plugin.name == "stuck" && plugin.waiting > 0)
        })
        .await?;
        let process = run.process();
        process.signal("TERM").await?;
        // Two signals of one kind that nobody has fetched yet are one.
        let heard = until(WITHIN, "the first to be heard", async || {
            Ok(process.stderr().contains(HEARD).then_some(()))
        });
        heard.await?;
        ensure!(process.ended()?.is_none(), "it drains no longer than that: {}", process.say());
        process.signal("TERM").await?;
        let ended = process.wait(AT_ONCE).await?;
        ensure!(ended == ProcessEnd::Code(0), "it ended with {ended:?}; {}", process.say());

        std::fs::remove_file(&stuck)?;
        let mut again = Kubewitness::start("again", &options, scratch.path())?;
        again.caught_up(STARTS_WITHIN).await?;
        again.stop().await?;
        proofs(&options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_playground_ends_with_0_at_each_stage_of_its_start_and_another_takes_its_folder() {
    in_scratch("signals", async |scratch| {
        let data = scratch.path().join("data");
        for stage in StartStage::ALL {
            let address = format!("127.0.0.1:{}", free_port()?);
            let mut process = playground_at(&address, &format!("{stage:?}"), &data, scratch.path())?;
            comes_to((stage, 1), &mut process, &address, &data).await?;
            ends_with(&mut process, 0, &format!("at {stage:?}")).await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_folder_in_which_a_playground_runs_is_refused_to_everybody_else() {
    in_scratch("signals", async |scratch| {
        let (simulator, mut options) = lab(scratch).await?;
        options.data = scratch.path().join("taken");
        let mut first = playground("first", &options.data, scratch.path())?;
        works(&mut first).await?;

        let mut second = playground("second", &options.data, scratch.path())?;
        let ended = second.wait(WITHIN).await?;
        ensure!(ended == ProcessEnd::Code(1), "the second ended with {ended:?}; {}", second.say());
        ensure!(second.stderr().contains("another playground runs in"), "{}", second.say());

        ends_with(&mut first, 0, "the first").await?;
        ensure!(first.stdout().contains("Complete: "), "{}", first.say());

        // Also once it has ended: the next playground would clear what `run` keeps.
        let journal = std::fs::metadata(options.data.join("journal.db"))?.modified()?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let ended = run.process().wait(WITHIN).await?;
        ensure!(ended == ProcessEnd::Code(1), "run ended with {ended:?}; {}", run.process().say());
        let said = run.process().stderr();
        ensure!(said.contains("a playground's folder") && said.contains("--data"), "{said}");
        ensure!(std::fs::metadata(options.data.join("journal.db"))?.modified()? == journal, "it was touched");
        drop(simulator);
        proofs(&options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_playground_refuses_a_controllers_folder_and_leaves_it_as_it_is() {
    in_scratch("signals", async |scratch| {
        let (_simulator, options) = lab(scratch).await?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.caught_up(STARTS_WITHIN).await?;
        run.stop().await?;
        let before = std::fs::read(options.data.join("journal.db"))?;

        let mut process = playground("playground", &options.data, scratch.path())?;
        let ended = process.wait(WITHIN).await?;
        ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}; {}", process.say());
        ensure!(process.stderr().contains("not a playground's"), "{}", process.say());
        ensure!(std::fs::read(options.data.join("journal.db"))? == before, "the journal was touched");
        proofs(&options.data).await
    })
    .await;
}

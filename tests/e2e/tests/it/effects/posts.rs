//! Killed at any moment while it posts: a receiver gets every post, and twice at most those that were on their way
//! when a kill fell. A destination that repeats nothing gets none twice, and what may have been sent is parked.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Dice, Kubewitness, RunOptions, Scratch, Simulator, SimulatorOptions, command_json, in_scratch, kills,
    seed, until,
};
use kubewitness_playground::receiver::{self, ReceiverError, ReceiverProgress};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Load, example_copy, plugin_manifest, proofs, write};

/// Hundreds are tried with `KUBEWITNESS_KILLS=300 cargo xtask test posts`.
const KILLS: u64 = 20;
const RATE: f64 = 200.0;
const WITHIN: Duration = Duration::from_secs(180);
/// Calls at once, each with one request in the air.
const CALLS: u64 = 4;

/// Counts what one destination gets.
struct Receiver {
    progress: Arc<ReceiverProgress>,
    port: u16,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ReceiverError>>,
}

impl Receiver {
    #[allow(clippy::disallowed_methods)]
    async fn start(scratch: &Scratch, name: &str) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (progress, stop) = (Arc::new(ReceiverProgress::default()), CancellationToken::new());
        let file = scratch.path().join(format!("{name}.jsonl"));
        let task = tokio::spawn(receiver::serve(listener, file, progress.clone(), stop.clone()));
        Ok(Self { progress, port, stop, task })
    }

    fn received(&self) -> u64 {
        self.progress.received.load(Relaxed)
    }

    fn repeated(&self) -> u64 {
        self.progress.repeated.load(Relaxed)
    }

    async fn end(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await??)
    }
}

/// Every state is a post of its own.
fn poster(name: &str) -> String {
    let spec = format!(
        "module: {{file: notification.wasm}}
subscribe:
  - {{source: jobs, mode: transitions, start: beginning}}
grants:
  http: [{{name: people, destination: {name}}}]
limits: {{concurrency: {CALLS}}}
delivery: {{batch: 16, retries: 1000, backoff: 100ms, maxBackoff: 500ms}}"
    );
    plugin_manifest(name, &spec)
}

struct World {
    simulator: Simulator,
    options: RunOptions,
    people: Receiver,
    bank: Receiver,
}

impl World {
    async fn new(scratch: &Scratch) -> Result<Self> {
        let simulated = SimulatorOptions {
            bookmark_every: Some("1s".to_owned()),
            // However slow the machine is: nothing is compacted that a restart still needs.
            args: vec!["--history-age".to_owned(), "0s".to_owned()],
            ..SimulatorOptions::default()
        };
        let simulator = Simulator::start(scratch.path(), &simulated).await?;
        let (people, bank) =
            (Receiver::start(scratch, "people").await?, Receiver::start(scratch, "bank").await?);
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let destinations = format!(
            "\n      destinations:\n        - {{name: people, url: 'http://127.0.0.1:{}'}}\n        \
             - {{name: bank, url: 'http://127.0.0.1:{}', repeat: never}}\n",
            people.port, bank.port
        );
        write(&config, "host.yaml", &format!("{}{destinations}", host.trim_end()))?;
        write(&config, "people.yaml", &poster("people"))?;
        write(&config, "bank.yaml", &poster("bank"))?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(config),
            data: scratch.folder("data")?,
            ..RunOptions::default()
        };
        Ok(Self { simulator, options, people, bank })
    }

    async fn kill_often(&self, scratch: &Scratch) -> Result<()> {
        let mut dice = Dice::new(seed());
        for round in 0..kills(KILLS) {
            let mut run = Kubewitness::start(&format!("run-{round:03}"), &self.options, scratch.path())?;
            let (people, bank) = (self.people.received(), self.bank.received());
            let posts = until(WITHIN, "both destinations to get a post", async || {
                Ok((self.people.received() > people && self.bank.received() > bank).then_some(()))
            });
            posts.await.with_context(|| run.process().say())?;
            dice.pause(400).await;
            run.kill().await?;
        }
        Ok(())
    }
}

fn is_through(status: &StatusView, name: &str) -> bool {
    let plugin = status.plugins.iter().find(|plugin| plugin.name == name);
    plugin.is_some_and(|plugin| plugin.observed > 0 && plugin.waiting == 0 && plugin.lag_seq == 0)
}

async fn posts(scratch: &Scratch) -> Result<()> {
    let world = World::new(scratch).await?;
    let mut first = Kubewitness::start("run-first", &world.options, scratch.path())?;
    first.answers().await?;
    let load = Load::start(&world.simulator, seed(), RATE);
    first.kill().await?;
    world.kill_often(scratch).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);

    let mut last = Kubewitness::start("run-last", &world.options, scratch.path())?;
    let through = last.status_when(WITHIN, "every state to be posted or parked", |status| {
        is_through(status, "people") && is_through(status, "bank")
    });
    let status = through.await?;
    let plugin = |name: &str| status.plugins.iter().find(|plugin| plugin.name == name).context("no plugin");
    let (people, bank) = (plugin("people")?, plugin("bank")?);
    let letters = {
        let server = format!("http://{}", last.address());
        command_json(&["deadletters", "list", "--server", &server, "-o", "json"]).await?
    };
    last.stop().await?;

    let (kills, posts, twice) = (kills(KILLS) + 1, world.people.received(), world.people.repeated());
    println!(
        "{kills} kills: of {posts} posts {twice} came twice; {} of {} were parked",
        bank.dead, bank.observed
    );
    ensure!(people.dead == 0 && posts == people.delivered, "{posts} posts for {people:?}");
    ensure!(twice <= kills * CALLS, "{twice} posts came twice at {kills} kills with {CALLS} calls at once");

    let (sent, again) = (world.bank.received(), world.bank.repeated());
    ensure!(again == 0, "{again} posts came twice to a destination that repeats nothing");
    ensure!(bank.dead <= kills * CALLS && sent >= bank.delivered, "{sent} posts for {bank:?}");
    ensure!(sent <= bank.delivered + bank.dead, "{sent} posts for {bank:?}");
    let letters = letters.as_array().context("no letters")?;
    ensure!(letters.len() as u64 == bank.dead, "{letters:?}");
    for letter in letters {
        let error = letter["error"].as_str().unwrap_or_default();
        ensure!(error.starts_with("may have been sent"), "{letter}");
    }
    proofs(&world.options.data).await?;
    world.people.end().await?;
    world.bank.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_double_no_more_posts_than_are_in_the_air_and_none_where_nothing_is_repeated() {
    let again =
        format!("KUBEWITNESS_SEED={} KUBEWITNESS_KILLS={} cargo xtask test posts", seed(), kills(KILLS));
    in_scratch("posts", async |scratch| {
        posts(scratch).await.with_context(|| format!("again with `{again}`"))
    })
    .await;
}

//! Killed at any moment while it posts: a receiver gets every post, and twice at most those that were on their way
//! when a kill fell. A destination that repeats nothing gets none twice, and what may have been sent is parked. The same
//! holds for the messages of a tick.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Dice, Kubewitness, RunOptions, Scratch, Simulator, SimulatorOptions, command_json, in_scratch, kills,
    seed, until,
};
use kubewitness_playground::receiver::{self, ReceiverError, ReceiverProgress};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::notifying::fails;
use crate::support::{BackgroundLoad, create_job, example_copy, plugin_manifest, proofs, simulator, write};

/// Hundreds are tried with `KUBEWITNESS_KILLS=300 cargo xtask test posts`.
const KILLS: u64 = 8;
const RATE: f64 = 200.0;
const WITHIN: Duration = Duration::from_secs(180);
/// Calls at once, each with one request in the air.
const CALLS: u64 = 4;

/// Counts what one destination gets.
struct PostReceiver {
    progress: Arc<ReceiverProgress>,
    port: u16,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ReceiverError>>,
}

impl PostReceiver {
    #[allow(clippy::disallowed_methods)]
    async fn start(scratch: &Scratch, name: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
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

struct PostWorld {
    simulator: Simulator,
    options: RunOptions,
    people: PostReceiver,
    bank: PostReceiver,
}

impl PostWorld {
    async fn new(scratch: &Scratch) -> Result<Self> {
        let simulated = SimulatorOptions::keeping_history();
        let simulator = Simulator::start(scratch.path(), &simulated).await?;
        let (people, bank) =
            (PostReceiver::start(scratch, "people").await?, PostReceiver::start(scratch, "bank").await?);
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
        let options = simulator.run_options(scratch, config)?;
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
    let world = PostWorld::new(scratch).await?;
    let mut first = Kubewitness::start("run-first", &world.options, scratch.path())?;
    first.answers().await?;
    let load = BackgroundLoad::start(&world.simulator, seed(), RATE);
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
    let server = format!("http://{}", last.address());
    // The journal saves them a moment after the status tells of them.
    let letters = until(WITHIN, "the dead letters in the list", async || {
        let letters = command_json(&["deadletters", "list", "--server", &server, "-o", "json"]).await?;
        let is_whole = letters.as_array().is_some_and(|all| all.len() as u64 == bank.dead);
        Ok(is_whole.then_some(letters))
    });
    let letters = letters.await?;
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
    in_scratch("posts", async |scratch| posts(scratch).await).await;
}

/// Messages of a tick, and how long its receiver takes for each.
const MESSAGES: usize = 30;
const TAKES: Duration = Duration::from_millis(60);
/// Kills while they are sent; each comes after a few more have arrived.
const CUTS: usize = 4;
const MORE: usize = 5;

/// One channel, a program's, which gets each message.
const TELLER: &str = "module: {file: notification.wasm}
subscribe: [{source: jobs, mode: transitions, start: beginning}]
grants:
  http: [{name: ops, destination: ops}]
  kv: true
tick: {every: 1s}
config:
  channels: [{name: ops, kind: webhook}]
  routes: [{to: [ops], phases: [Failed]}]
  settle: 1s";

/// Takes its time to answer, and counts how often each `Idempotency-Key` arrives.
#[derive(Clone, Default)]
struct SlowReceiver(Arc<Mutex<BTreeMap<String, usize>>>);

impl SlowReceiver {
    #[allow(clippy::disallowed_methods)]
    async fn start(&self) -> Result<(u16, JoinHandle<()>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, seen) = (listener.local_addr()?.port(), self.clone());
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let seen = seen.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let seen = seen.clone();
                        async move { seen.answer(request).await }
                    });
                    // A killed client breaks it off.
                    Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        Ok((port, serving))
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
        let key = key.unwrap_or_default().to_owned();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
        tokio::time::sleep(TAKES).await;
        Ok(Response::new(String::new()))
    }

    fn seen(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_in_a_tick_double_no_more_messages_than_are_in_the_air() {
    in_scratch("posts-tick", async |scratch| {
        let slow = SlowReceiver::default();
        let (port, serving) = slow.start().await?;
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let ops = format!("\n      destinations:\n        - {{name: ops, url: 'http://127.0.0.1:{port}'}}\n");
        write(&config, "host.yaml", &format!("{}{ops}", host.trim_end()))?;
        write(&config, "teller.yaml", &plugin_manifest("teller", TELLER))?;
        let options = simulator.run_options(scratch, config)?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        for number in 0..MESSAGES {
            let name = format!("job-{number}");
            create_job(&simulator, &name).await?;
            fails(&simulator, &name).await?;
        }
        for cut in 0..CUTS {
            let wanted = (slow.seen().len() + MORE).min(MESSAGES);
            let arrives = until(WITHIN, "more messages to arrive", async || {
                Ok((slow.seen().len() >= wanted).then_some(()))
            });
            arrives.await.with_context(|| run.process().say())?;
            run.kill().await?;
            run = Kubewitness::start(&format!("run-{cut}"), &options, scratch.path())?;
        }
        let through = until(WITHIN, "every message to arrive", async || {
            Ok((slow.seen().len() == MESSAGES).then_some(()))
        });
        through.await.with_context(|| run.process().say())?;
        // The last one to start may have sent nothing, and not answer yet.
        run.answers().await?;
        // What would come twice comes in the ticks after.
        let ticks = async |run: &Kubewitness| {
            let status = run.status().await?;
            let teller = status.plugins.iter().find(|plugin| plugin.name == "teller");
            anyhow::Ok(teller.and_then(|plugin| plugin.tick.as_ref()).map_or(0, |tick| tick.ticks))
        };
        let before = ticks(&run).await?;
        until(WITHIN, "two more ticks", async || Ok((ticks(&run).await? >= before + 2).then_some(())))
            .await?;
        run.stop().await?;
        serving.abort();
        let seen = slow.seen();
        let twice: usize = seen.values().map(|times| times - 1).sum();
        println!("{CUTS} kills: of {MESSAGES} messages {twice} came twice");
        ensure!(!seen.contains_key("") && seen.len() == MESSAGES, "{seen:?}");
        ensure!(twice <= CUTS, "{twice} messages came twice at {CUTS} kills: {seen:?}");
        Ok(())
    })
    .await;
}

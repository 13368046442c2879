//! Plugins that compute all they may in as many calls as they may, beside two good ones under load. Each plugin has its
//! share of the processors, and the API and the probes are answered.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, Simulator, free_port, http, in_scratch};

use crate::support::{AUDIT, Load, create_job, example_copy, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);
const GOOD: [&str; 2] = ["persistence", "audit"];
const GREEDY: usize = 4;
/// Calls of each of them at once. Where calls have shares and not plugins, one call beside all of these has next to
/// nothing.
const CALLS: u64 = 16;
/// Objects that nothing changes, so that each plugin has one for each call.
const JOBS: usize = 24;
/// What the steady plugin computes for a state: milliseconds, so that it always has more to do than it has time.
const STEADY: u64 = 60_000_000;
/// Of an equal share of what it does alone, the steady plugin keeps at least this part.
const STEADY_KEPT: f64 = 0.5;
/// How long it is looked at.
const LOOK: Duration = Duration::from_secs(15);
/// States a second of the workload, about.
const RATE: f64 = 40.0;
/// States that come while the figures are taken.
const MEANWHILE: u64 = 400;
/// Of the states that come, the good plugins have handled a share when the figures are taken. Beside the greedy ones they
/// keep at least this part of it.
const KEPT: f64 = 0.3;
/// Half of all answers come within this time, on a machine that builds and tests something else too.
const ANSWER: Duration = Duration::from_millis(250);

/// What the probe asks for. With a ledger it has one call at a time.
const PROBES: &str = "{kv: true, sql: [{name: main, database: second}], lister: [jobs],
  http: [{name: nobody, destination: nobody}], ledger: [{name: notes, ledger: notes}]}";

fn computing(name: &str, concurrency: u64, file: &str, grants: &str, config: &str) -> String {
    let spec = format!(
        "module: {{file: {file}}}
subscribe: [{{source: jobs, start: beginning}}]
grants: {grants}
limits: {{call: 120s, concurrency: {concurrency}}}
delivery: {{batch: 1, retries: 1}}
config: {config}"
    );
    plugin_manifest(name, &spec)
}

/// Each call computes without an end, and many do at once.
fn greedy(name: &str) -> String {
    computing(name, CALLS, &super::hostile::program("loops"), "{}", "{}")
}

fn plugin<'s>(status: &'s StatusView, name: &str) -> Option<&'s PluginView> {
    status.plugins.iter().find(|plugin| plugin.name == name)
}

fn is_active(status: &StatusView, name: &str) -> bool {
    plugin(status, name).is_some_and(|plugin| plugin.state == "active")
}

/// States that came, and those of them that the good plugin with fewest has handled.
fn figures(status: &StatusView) -> (u64, u64) {
    let good = || GOOD.iter().filter_map(|name| plugin(status, name));
    let least = |of: fn(&PluginView) -> u64| good().map(of).min().unwrap_or(0);
    (least(|p| p.observed), least(|p| p.delivered + p.filtered))
}

struct Lab {
    simulator: Simulator,
    config: std::path::PathBuf,
    run: Kubewitness,
    health: String,
}

/// How long answers took, and which share of the states that came the good plugins have handled.
struct Measured {
    share: f64,
    api: Quantiles,
    health: Quantiles,
    metrics: Quantiles,
}

struct Quantiles {
    median: Duration,
    longest: Duration,
}

impl Quantiles {
    fn of(mut all: Vec<Duration>) -> Result<Self> {
        all.sort();
        let median = all.get(all.len() / 2).context("nothing was asked")?;
        Ok(Self { median: *median, longest: all[all.len() - 1] })
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the good plugins got {:.2} of the states", self.share)?;
        let each = [("the API", &self.api), ("/healthz", &self.health), ("/metrics", &self.metrics)];
        each.iter().try_for_each(|(what, Quantiles { median, longest })| {
            write!(f, "; {what} took {median:?}, {longest:?} at most")
        })
    }
}

async fn timed(url: &str) -> Result<Duration> {
    let begun = Instant::now();
    let answer = http().get(url).send().await?;
    ensure!(answer.status() == 200, "{url} answered {}", answer.status());
    answer.bytes().await?;
    Ok(begun.elapsed())
}

/// Of the steady plugin's one call, beside the greedy ones.
fn equal_share() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = processors.saturating_sub(1).max(1);
    (at_once as f64 / (GREEDY + 1) as f64).min(1.0)
}

impl Lab {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &format!("{host}{}", super::hostile::FOR_PROBE))?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        let simulator = simulator(scratch).await?;
        for number in 0..JOBS {
            create_job(&simulator, &format!("job-{number}")).await?;
        }
        let health = format!("127.0.0.1:{}", free_port()?);
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(config.clone()),
            data: scratch.folder("data")?,
            args: vec!["--health-listen".to_owned(), health.clone()],
            ..RunOptions::default()
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        run.listed(2, WITHIN).await?;
        run.status_when(WITHIN, "both good plugins", |status| {
            GOOD.iter().all(|name| is_active(status, name))
        })
        .await?;
        Ok(Self { simulator, config, run, health })
    }

    /// States a second of a plugin that computes in one call after the other, and always has more to do.
    async fn steady(&mut self) -> Result<f64> {
        let config = format!("{{command: compute {STEADY}}}");
        write(&self.config, "steady.yaml", &computing("steady", 1, "probe.wasm", PROBES, &config))?;
        let done = |status: &StatusView| plugin(status, "steady").map_or(0, |it| it.delivered);
        let before =
            self.run.status_when(WITHIN, "the steady plugin to compute", |status| done(status) > 0).await?;
        let begun = Instant::now();
        tokio::time::sleep(LOOK).await;
        let after = self.run.status().await?;
        let is_busy = plugin(&after, "steady").is_some_and(|it| it.waiting > 0);
        ensure!(is_busy, "the steady plugin had nothing to do");
        Ok((done(&after) - done(&before)) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Asks for the API, the health and the metrics until so many states have come.
    async fn measure(&mut self) -> Result<Measured> {
        let before = figures(&self.run.status().await?);
        let begun = Instant::now();
        let urls = [
            format!("http://{}/api/v1/objects?kind=Job", self.run.address()),
            format!("http://{}/healthz", self.health),
            format!("http://{}/metrics", self.health),
        ];
        let mut took = [Vec::new(), Vec::new(), Vec::new()];
        let after = loop {
            for (url, took) in urls.iter().zip(&mut took) {
                took.push(timed(url).await?);
            }
            let now = figures(&self.run.status().await?);
            if now.0 >= before.0 + MEANWHILE {
                break now;
            }
            ensure!(begun.elapsed() < WITHIN, "only {} states have come", now.0 - before.0);
        };
        let [api, health, metrics] = took.map(Quantiles::of);
        Ok(Measured {
            share: (after.1 - before.1) as f64 / (after.0 - before.0) as f64,
            api: api?,
            health: health?,
            metrics: metrics?,
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_plugins_that_compute_all_they_may_leave_two_good_ones_their_share_and_the_api_answers() {
    in_scratch("processors", async |scratch| {
        let mut it = Lab::begin(scratch).await?;
        let load = Load::start(&it.simulator, 11, RATE);
        let alone = it.measure().await?;
        let steady_alone = it.steady().await?;
        for number in 0..GREEDY {
            let name = format!("greedy-{number}");
            write(&it.config, &format!("{name}.yaml"), &greedy(&name))?;
        }
        let all_compute = |status: &StatusView| {
            let computes =
                |name: String| plugin(status, &name).is_some_and(|plugin| plugin.calls.instances >= CALLS);
            (0..GREEDY).all(|number| computes(format!("greedy-{number}")))
        };
        it.run.status_when(WITHIN, "all greedy plugins to compute in all their calls", all_compute).await?;
        let beside = it.measure().await?;
        let steady = it.steady().await? / (steady_alone * equal_share());
        load.stop().await?;
        let waited: f64 = {
            let status = it.run.status().await?;
            GOOD.iter().filter_map(|name| plugin(&status, name)).map(|p| p.calls.wait_seconds).sum()
        };
        eprintln!("alone: {alone}\nbeside four greedy plugins: {beside}, waiting {waited:.2} s in all");
        eprintln!("the steady plugin did {steady_alone:.1} states a second alone, and beside them {steady:.2} of its share");
        ensure!(steady >= STEADY_KEPT, "the steady plugin got {steady:.2} of an equal share");
        ensure!(beside.share >= KEPT * alone.share, "{beside}");
        for (what, figures) in
            [("the API", &beside.api), ("/healthz", &beside.health), ("/metrics", &beside.metrics)]
        {
            ensure!(figures.median <= ANSWER, "{what} is slow: {beside}");
        }
        ensure!(waited > 0.0, "the good plugins have waited for no turn");
        Ok(())
    })
    .await;
}

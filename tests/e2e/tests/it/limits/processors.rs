//! Plugins that compute all they may in as many calls as they may, beside two good ones under load and one that always has
//! something to compute. Each has its share of the processors, and the API and the probes are answered.
//!
//! A share is the part of its time that a plugin computes while it wants to compute. What else the machine does makes both
//! longer, so the share stays the same. That shares are equal to within a turn is proved without a clock, in
//! `host/sandbox/src/turns/queue.rs`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, Simulator, free_port, http, in_scratch, until};

use crate::support::{
    AUDIT, BackgroundLoad, create_job, example_copy, is_active, plugin, plugin_manifest, simulator, write,
};

const WITHIN: Duration = Duration::from_secs(120);
/// Beside the greedy plugins a turn is long on a machine that does other things too.
const KEEP_UP: Duration = Duration::from_secs(280);
const GOOD: [&str; 2] = ["persistence", "audit"];
const GREEDY: usize = 4;
/// Calls of each of them at once. Where calls have shares and not plugins, one call beside all of these has next to
/// nothing.
const CALLS: u64 = 16;
/// Objects that nothing changes, so that each plugin has one for each call.
const JOBS: usize = 24;
/// The rounds that the steady plugin computes for a state: milliseconds, so that it always has more to do
/// than it has time.
const STEADY: u64 = 60_000_000;
/// The steady plugin gets at least this part of an equal share. If calls had shares, and not plugins, it would get a tenth.
const STEADY_KEPT: f64 = 0.7;
/// States that the steady plugin handles while its share is taken.
const STEADY_STATES: u64 = 60;
/// States a second of the workload, about.
const RATE: f64 = 40.0;
/// States that come while the greedy plugins compute, and that the good plugins handle.
const MEANWHILE: u64 = 40;

/// The grants that the probe asks for. With a ledger it has one call at a time.
const PROBES: &str = "{kv: true, sql: [{name: main, database: second}], lister: [jobs],
  http: [{name: nobody, destination: nobody}], ledger: [{name: notes, ledger: notes}]}";

fn computing(name: &str, concurrency: u64, file: &str, grants: &str, config: &str) -> String {
    let spec = format!(
        "module: {{file: {file}}}
subscribe: [{{source: jobs, start: beginning}}]
grants: {grants}
limits: {{call: 300s, concurrency: {concurrency}}}
delivery: {{batch: 1, retries: 1}}
config: {config}"
    );
    plugin_manifest(name, &spec)
}

/// Each call computes without an end, and many do at once.
fn greedy(name: &str) -> String {
    computing(name, CALLS, &super::hostile::program("loops"), "{}", "{}")
}

/// States that came, and those of them that the good plugin with fewest has handled.
fn figures(status: &StatusView) -> (u64, u64) {
    let good = || GOOD.iter().filter_map(|name| plugin(status, name));
    let least = |of: fn(&PluginView) -> u64| good().map(of).min().unwrap_or(0);
    (least(|p| p.observed), least(|p| p.delivered + p.filtered))
}

struct ProcessorLab {
    simulator: Simulator,
    config: std::path::PathBuf,
    run: Kubewitness,
    health: String,
}

/// Returns the share of the steady plugin's one call, beside the greedy ones.
fn equal_share() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = processors.saturating_sub(1).max(1);
    (at_once as f64 / (GREEDY + 1) as f64).min(1.0)
}

impl ProcessorLab {
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
            args: vec!["--health-listen".to_owned(), health.clone()],
            ..simulator.run_options(scratch, config.clone())?
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

    /// The share of a plugin that computes in one call after the other, and always has more to do.
    async fn steady(&mut self) -> Result<f64> {
        let config = format!("{{command: compute {STEADY}}}");
        write(&self.config, "steady.yaml", &computing("steady", 1, "probe.wasm", PROBES, &config))?;
        let done = |status: &StatusView| plugin(status, "steady").map_or(0, |it| it.delivered);
        let begun = |status: &StatusView| done(status) > 0;
        let before = self.run.status_when(WITHIN, "the steady plugin to compute", begun).await?;
        let enough = |status: &StatusView| done(status) >= done(&before) + STEADY_STATES;
        let after = self.run.status_when(WITHIN, "the steady plugin to go on", enough).await?;
        let seconds = |status: &StatusView| {
            let calls = &plugin(status, "steady").context("the steady plugin")?.calls;
            anyhow::Ok((calls.guest_seconds, calls.wait_seconds))
        };
        let (before, after) = (seconds(&before)?, seconds(&after)?);
        let (computed, waited) = (after.0 - before.0, after.1 - before.1);
        eprintln!("the steady plugin computed {computed:.2} s and waited {waited:.2} s for its turns");
        Ok(computed / (computed + waited))
    }

    /// Asks for the API, the health and the metrics until the good plugins have handled so many states that came since.
    async fn good_keep_up(&mut self) -> Result<()> {
        let (came, _) = figures(&self.run.status().await?);
        let urls = [
            format!("http://{}/api/v1/objects?kind=Job", self.run.address()),
            format!("http://{}/healthz", self.health),
            format!("http://{}/metrics", self.health),
        ];
        let keep_up = until(KEEP_UP, "both good plugins to handle what comes", async || {
            for url in &urls {
                let answer = http().get(url).send().await.with_context(|| url.clone())?;
                ensure!(answer.status() == 200, "{url} answered {}", answer.status());
                answer.bytes().await?;
            }
            let (_, handled) = figures(&self.run.status().await?);
            Ok((handled >= came + MEANWHILE).then_some(()))
        });
        keep_up.await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_plugins_that_compute_all_they_may_leave_two_good_ones_their_share_and_the_api_answers() {
    in_scratch("processors", async |scratch| {
        let mut it = ProcessorLab::begin(scratch).await?;
        let load = BackgroundLoad::start(&it.simulator, 11, RATE);
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
        it.good_keep_up().await?;
        let share = it.steady().await? / equal_share();
        let status = it.run.status().await?;
        ensure!(all_compute(&status), "a greedy plugin has ended: {:?}", status.plugins);
        ensure!(share >= STEADY_KEPT, "the steady plugin got {share:.2} of an equal share");
        load.stop().await?;
        let waited: f64 =
            GOOD.iter().filter_map(|name| plugin(&status, name)).map(|p| p.calls.wait_seconds).sum();
        ensure!(waited > 0.0, "the good plugins have waited for no turn");
        Ok(())
    })
    .await;
}

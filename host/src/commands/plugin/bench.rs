//! `kubewitness plugin bench`: measures what a state costs in a plugin, beside the plugins that come with the
//! controller. All of them get the same objects in the same run, in turns, so that a busy machine slows each
//! of them equally.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::run::to_try;
use super::subject::{self, TrialSubject};
use super::trial::{self, CallCost, ObservedTimes, PluginTrial, StandIns, TrialReply, tick_of};
use crate::cli::BenchPluginArgs;
use crate::commands::object_files::{self, ObservedObject};
use crate::commands::print::{self, TextTable, clean_line};
use crate::commands::{CommandEnd, CommandResult};

/// The plugins that come with the controller.
const SHIPPED: [&str; 3] = ["persistence", "notification", "audit"];
/// The fastest round counts, because something else slowed the others.
const ROUNDS: usize = 3;
/// Documents of the repeated objects.
const DOCUMENTS_BYTES: usize = 256 << 20;
/// The object that is used without `-f`.
const JOB: &str = include_str!("templates/failed.yaml");

pub async fn run_bench(args: BenchPluginArgs) -> CommandResult {
    let seen = match &args.file {
        Some(file) => object_files::read(file).with_context(|| format!("reading {}", file.display()))?,
        None => object_files::parse(JOB)?,
    };
    // One more, which is delivered first and not counted.
    let objects = repeat_objects(seen, args.states as usize + 1)?;
    let (subject, replies) = to_try(&args.tried).await?;
    let batch = args.batch.unwrap_or(subject.spec.delivery.batch) as usize;
    let mut peers = Vec::new();
    for name in SHIPPED {
        let peer = subject::shipped_subject(name, args.plugins.as_deref(), &subject.engine).await;
        peers.push(peer.with_context(|| format!("the plugin `{name}`, which comes with the controller"))?);
    }
    let subjects: Vec<_> = std::iter::once(subject).chain(peers).collect();
    let figures = measure_subjects(&subjects, &replies, &objects, batch).await?;
    let report = BenchReport::of(batch, figures);
    print::print_value(args.output, &report, BenchReport::text)?;
    Ok(if report.plugins[0].not_done == 0 { CommandEnd::Fine } else { CommandEnd::Failed })
}

/// Repeats the objects, each time under other names, until there are enough. All first versions come first,
/// because a call has many objects and each of them once. Ticks are left out: they are not states.
fn repeat_objects(mut seen: Vec<ObservedObject>, most: usize) -> Result<Vec<ObservedObject>> {
    seen.retain(|it| tick_of(&it.object).is_none());
    anyhow::ensure!(!seen.is_empty(), "there are ticks alone: give objects, too");
    // Other input has no name that could be changed.
    let is_named = seen.iter().all(|it| it.object["metadata"].is_object());
    anyhow::ensure!(
        is_named,
        "an object has no `metadata`: give it whole, as `kubectl get -o yaml` prints it"
    );
    let mut bytes = 0;
    let rounds = most.div_ceil(seen.len());
    let all = seen.iter().flat_map(|it| (0..rounds).map(move |round| (round, it)));
    let named = all.take(most).map(|(round, ObservedObject { object, is_gone })| {
        let mut object = object.clone();
        for field in ["name", "uid"] {
            let before = object["metadata"][field].as_str().unwrap_or_default().to_owned();
            object["metadata"][field] = format!("{before}-{round}").into();
        }
        ObservedObject { object, is_gone: *is_gone }
    });
    let within = named.take_while(|it| {
        bytes += it.object.to_string().len();
        bytes <= DOCUMENTS_BYTES
    });
    Ok(within.collect())
}

/// The fastest round of each plugin.
async fn measure_subjects(
    subjects: &[TrialSubject],
    replies: &[TrialReply],
    objects: &[ObservedObject],
    batch: usize,
) -> Result<Vec<BenchFigures>> {
    let mut best: Vec<Option<CallCost>> = vec![None; subjects.len()];
    for _ in 0..ROUNDS {
        for (subject, best) in subjects.iter().zip(&mut best) {
            let trial = PluginTrial {
                stand_ins: StandIns::of(&subject.spec, objects, ObservedTimes::Fixed)?,
                replies: replies.to_vec(),
                redaction: None,
                is_measured: true,
            };
            let cost = trial::measure(subject, trial, batch).await?;
            if best
                .as_ref()
                .is_none_or(|best| a_state(cost.took, cost.states) < a_state(best.took, best.states))
            {
                *best = Some(cost);
            }
        }
    }
    let figures =
        subjects.iter().zip(best).filter_map(|(subject, cost)| Some(BenchFigures::of(&subject.name, &cost?)));
    Ok(figures.collect())
}

/// In microseconds.
fn a_state(time: Duration, states: u64) -> f64 {
    time.as_secs_f64() * 1e6 / states.max(1) as f64
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BenchReport {
    batch: usize,
    /// The measured plugin, and those that come with the controller.
    plugins: Vec<BenchFigures>,
    /// The plugin's figures divided by those of each other plugin.
    ratios: Vec<BenchRatio>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BenchFigures {
    name: String,
    states: u64,
    not_done: u64,
    /// For a state: the whole call with its commit, and in it the guest's time and the time of the
    /// controller's capabilities.
    micros: f64,
    guest_micros: f64,
    host_micros: f64,
    /// The peak memory of an instance, in bytes.
    memory: u64,
    /// Calls for each state, by capability.
    host_calls: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize)]
struct BenchRatio {
    against: String,
    time: f64,
    memory: f64,
}

impl BenchFigures {
    fn of(name: &str, cost: &CallCost) -> Self {
        let states = cost.states;
        let each = |(name, calls): (&String, &u64)| (name.clone(), *calls as f64 / states.max(1) as f64);
        Self {
            name: name.to_owned(),
            states,
            not_done: cost.not_done,
            micros: a_state(cost.took, states),
            guest_micros: a_state(cost.guest, states),
            host_micros: a_state(cost.host, states),
            memory: cost.memory,
            host_calls: cost.host_calls.iter().map(each).collect(),
        }
    }
}

impl BenchReport {
    fn of(batch: usize, plugins: Vec<BenchFigures>) -> Self {
        let ratios = plugins.split_first().map_or(Vec::new(), |(subject, peers)| {
            let ratio = |peer: &BenchFigures| BenchRatio {
                against: peer.name.clone(),
                time: subject.micros / peer.micros.max(f64::EPSILON),
                memory: subject.memory as f64 / peer.memory.max(1) as f64,
            };
            peers.iter().map(ratio).collect()
        });
        Self { batch, plugins, ratios }
    }

    fn text(&self) -> String {
        let mut table =
            TextTable::new(&["PLUGIN", "STATES", "A STATE", "GUEST", "HOST", "MEMORY", "HOST CALLS A STATE"]);
        for it in &self.plugins {
            // A call that is made once for an instance does not count for a state.
            let calls = it.host_calls.iter().filter(|(_, calls)| **calls >= 0.005);
            let calls: Vec<_> = calls.map(|(name, calls)| format!("{name} {calls:.2}")).collect();
            let micros = |micros: f64| format!("{micros:.1} µs");
            table.push_row([
                clean_line(&it.name).into_owned(),
                it.states.to_string(),
                micros(it.micros),
                micros(it.guest_micros),
                micros(it.host_micros),
                format!("{:.1} MiB", it.memory as f64 / f64::from(1 << 20)),
                if calls.is_empty() { "-".to_owned() } else { calls.join(", ") },
            ]);
        }
        let mut text = table.render();
        for BenchRatio { against, time, memory } in &self.ratios {
            let own = self.plugins.first().map(|own| clean_line(&own.name)).unwrap_or_default();
            text.push_str(&format!(
                "{own} takes {time:.2} times the time of the shipped {against}, and {memory:.2} times its memory\n"
            ));
        }
        for it in self.plugins.iter().filter(|it| it.not_done > 0) {
            let (name, not_done, states) = (clean_line(&it.name), it.not_done, it.states);
            text.push_str(&format!(
                "{name}: {not_done} of {states} states were not done. `plugin run` says why\n"
            ));
        }
        let batch = self.batch;
        text + &format!(
            "Up to {batch} states a call, the fastest of {ROUNDS} rounds. Nothing was sent, and nothing is kept.\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_repeated_under_other_names_up_to_the_number_and_without_ticks() {
        let mut seen = object_files::parse(JOB).unwrap();
        seen.push(trial::next_tick());
        let objects = repeat_objects(seen, 5).unwrap();
        let names: Vec<_> = objects.iter().map(|it| it.object["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["train-7-0", "train-7-1", "train-7-2", "train-7-0", "train-7-1"]);
        assert_eq!(objects[4].object["metadata"]["uid"], "5c1f-1");
        let error = repeat_objects(vec![trial::next_tick()], 5).unwrap_err().to_string();
        assert!(error.contains("ticks alone"), "{error}");
        for text in ["hello", "{kind: Job, apiVersion: batch/v1, metadata: train-7}"] {
            let error = repeat_objects(object_files::parse(text).unwrap(), 5).unwrap_err().to_string();
            assert!(error.contains("no `metadata`: give it whole"), "{error}");
        }
    }

    #[test]
    fn documents_that_are_repeated_have_a_bound_of_bytes() {
        let large = json!({"metadata": {"name": "a"}, "data": "x".repeat(DOCUMENTS_BYTES / 4)});
        let objects = repeat_objects(vec![ObservedObject { object: large, is_gone: false }], 10_000).unwrap();
        assert_eq!(objects.len(), 3);
    }

    #[test]
    fn the_ratio_is_the_plugins_own_figure_by_that_of_the_other() {
        let cost = |micros: u64, memory: u64| CallCost {
            states: 10,
            not_done: 1,
            took: Duration::from_micros(micros),
            guest: Duration::from_micros(10),
            host: Duration::ZERO,
            memory,
            host_calls: [("log".to_owned(), 5)].into(),
        };
        let report = BenchReport::of(
            64,
            vec![
                BenchFigures::of("own", &cost(200, 1 << 20)),
                BenchFigures::of("audit", &cost(100, 2 << 20)),
            ],
        );
        let text = report.text();
        for part in [
            "20.0 µs",
            "1.0 MiB",
            "log 0.50",
            "own takes 2.00 times the time of the shipped audit, and 0.50 times its memory",
            "own: 1 of 10 states",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

//! Single stages, each beside a peer in the same run: projecting a frame, a delta, appending to
//! the journal, lane operations, and a component call against the same function called natively.

#[path = "../fixtures/support.rs"]
mod support;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kubewitness_bench::{job, per_second, ratio, wanted};
use kubewitness_core::config::{ComponentsSpec, DeliverySpec, LimitsSpec};
use kubewitness_core::lanes::{ClockReading, LaneOptions, Lanes};
use kubewitness_core::ports::{Backlog, PluginHandler, PluginProgress, StateWitness, Verdict};
use kubewitness_core::status::StatusRules;
use kubewitness_core::{document, project};
use kubewitness_journal::{Journal, JournalOptions};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine};
use support::{NoGrants, deliveries, witnessed};

const BATCH: usize = 64;

#[derive(serde::Deserialize)]
struct TypedEvent {
    object: k8s_openapi::api::batch::v1::Job,
}

/// The part of a frame that serde reads without copying: fewer fields than projection gives, in two passes.
#[derive(serde::Deserialize)]
struct BorrowedEvent<'a> {
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct BorrowedJob<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: BorrowedMetadata<'a>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct BorrowedMetadata<'a> {
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow)]
    labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

fn borrow(line: &str) -> usize {
    let event: BorrowedEvent = serde_json::from_str(line).expect("a frame");
    let job: BorrowedJob = serde_json::from_str(event.object.get()).expect("a Job");
    let BorrowedMetadata { namespace, name, uid, resource_version, labels } = job.metadata;
    let lengths = [job.api_version, job.kind, namespace, name, uid, resource_version].map(|text| text.len());
    lengths.iter().sum::<usize>() + labels.len()
}

fn frame(c: &mut Criterion) {
    let line = format!(r#"{{"type":"MODIFIED","object":{}}}"#, job(1, 2, 3));
    let rules = StatusRules::builtin();
    let projected = || {
        let (_, envelope) = project::project_frame(black_box(line.as_bytes())).expect("a frame");
        envelope.expect("an envelope").uid.len()
    };
    let with_status = || {
        let (frame, envelope) = project::project_frame(black_box(line.as_bytes())).expect("a frame");
        (envelope.expect("an envelope").uid.len(), rules.status_of("batch", "Job", frame.object))
    };
    let typed = || serde_json::from_str::<TypedEvent>(black_box(&line)).expect("a Job").object.metadata.uid;
    let generic = || serde_json::from_str::<serde_json::Value>(black_box(&line)).expect("JSON");
    let mut group = c.benchmark_group("frame");
    group.throughput(Throughput::Elements(1));
    group.bench_function("projected", |b| b.iter(projected));
    group.bench_function("projected_with_status", |b| b.iter(with_status));
    group.bench_function("peer_typed_decode", |b| b.iter(typed));
    group.bench_function("peer_borrowed_decode", |b| b.iter(|| borrow(black_box(&line))));
    group.bench_function("peer_generic_decode", |b| b.iter(generic));
    group.finish();
    if !wanted("frame") {
        return;
    }
    let rate = |work: &dyn Fn()| per_second(work);
    let (typed, generic) = (rate(&|| drop(typed())), rate(&|| drop(generic())));
    let borrowed = rate(&|| {
        black_box(borrow(black_box(&line)));
    });
    println!("frame: {} bytes; typed decode {typed:.0} frames/s, generic {generic:.0} frames/s", line.len());
    println!("  serde, what is borrowed alone: {borrowed:.0} frames/s");
    for (name, ours) in [
        (
            "projected",
            rate(&|| {
                black_box(projected());
            }),
        ),
        ("with status", rate(&|| drop(black_box(with_status())))),
    ] {
        println!(
            "  {name:<12} {ours:>10.0} frames/s  {} typed, {} generic, {} borrowed",
            ratio(ours, typed),
            ratio(ours, generic),
            ratio(ours, borrowed)
        );
    }
}

fn documents(c: &mut Criterion) {
    let (before, after) = (job(1, 2, 3), job(1, 3, 4));
    let delta = document::encode_delta(before.as_bytes(), after.as_bytes());
    println!("a delta of {} bytes for a document of {}", delta.len(), after.len());
    let mut group = c.benchmark_group("document");
    group.throughput(Throughput::Elements(1));
    group.bench_function("delta", |b| {
        b.iter(|| document::encode_delta(before.as_bytes(), black_box(after.as_bytes())));
    });
    group.bench_function("restore", |b| {
        b.iter(|| document::restore_from_delta(before.as_bytes(), black_box(&delta)));
    });
    group.bench_function("pack", |b| b.iter(|| document::pack_document(black_box(after.as_bytes()))));
    group.finish();
}

fn journal(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut group = c.benchmark_group("journal_append");
    group.sample_size(20).measurement_time(Duration::from_secs(5));
    for batch in [1, 64, 256] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal.db");
        let journal = runtime.block_on(Journal::open(&path, JournalOptions::default())).expect("a journal");
        let mut next = 0;
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(format!("batch_{batch}"), |b| {
            b.to_async(&runtime).iter_batched(
                || {
                    next += batch;
                    witnessed(next - batch, batch)
                },
                |append| async { journal.append_batch(append).await.expect("an append") },
                BatchSize::PerIteration,
            );
        });
        runtime.block_on(journal.close()).expect("closing");
    }
    group.finish();
}

fn lanes(c: &mut Criterion) {
    let states: Vec<_> = deliveries(4096, 1024).into_iter().map(|delivery| delivery.state).collect();
    let options = || LaneOptions::new("bench", &DeliverySpec::default());
    let mut group = c.benchmark_group("lanes");
    group.throughput(Throughput::Elements(states.len() as u64));
    group.bench_function("push_take_finish", |b| {
        b.iter(|| {
            let mut lanes = Lanes::new(options(), &PluginProgress::default());
            for state in &states {
                lanes.push(state.clone(), Duration::ZERO);
            }
            let now = ClockReading::default();
            loop {
                let batch = lanes.take(now.elapsed, BATCH);
                if batch.is_empty() {
                    break lanes.cursor();
                }
                for delivery in batch {
                    lanes.apply_verdict(delivery.state.seq, Verdict::Done, now);
                }
            }
        });
    });
    group.finish();
}

/// Does the guest's work natively: the verdict of a state that asks for nothing.
fn native(batch: &[kubewitness_core::ports::StateDelivery]) -> Vec<Verdict> {
    batch
        .iter()
        .map(|delivery| match delivery.state.status.message.as_str() {
            "" | "done" => Verdict::Done,
            other => Verdict::Reject(other.to_string()),
        })
        .collect()
}

fn sandbox(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let engine = SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })
    .expect("an engine");
    let bytes = support::component("probe");
    let component =
        runtime.block_on(engine.load(&bytes.into(), &ComponentsSpec::default())).expect("a component");
    let grants = Arc::new(NoGrants::new(r#"{"command":"done"}"#));
    let plugin = component.make_plugin("probe", &LimitsSpec::default(), grants).expect("a plugin");
    let batch = deliveries(BATCH, BATCH);
    let mut group = c.benchmark_group("call_batch_64");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("component", |b| {
        b.to_async(&runtime)
            .iter(|| async { plugin.handle_batch(black_box(&batch)).await.expect("verdicts") });
    });
    group.bench_function("peer_native", |b| b.iter(|| native(black_box(&batch))));
    group.finish();
}

fn reading(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let options = JournalOptions { recent: 0, ..JournalOptions::default() };
    let journal =
        runtime.block_on(Journal::open(&folder.path().join("journal.db"), options)).expect("a journal");
    for batch in 0..64 {
        runtime.block_on(journal.append_batch(witnessed(batch * 256, 256))).expect("an append");
    }
    let mut group = c.benchmark_group("journal_read");
    group.throughput(Throughput::Elements(4096));
    group.bench_function("from_disk_4096", |b| {
        b.to_async(&runtime).iter(|| async { journal.read(8192, 4096).await.expect("states").len() });
    });
    group.finish();
    runtime.block_on(journal.close()).expect("closing");
}

criterion_group!(benches, frame, documents, lanes, sandbox, journal, reading);
criterion_main!(benches);

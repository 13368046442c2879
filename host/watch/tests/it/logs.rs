//! Tests of the log lines of a source.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Once;

use kubewitness_playground::apiserver::faults::{FaultKind, InjectedFault};

use super::cluster::election::{ElectionReplica, steady};
use super::simulator::SimulatedCluster;
use super::*;

thread_local! {
    /// A test's runtime has one thread.
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct OfThread;

impl Write for OfThread {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGGED.with_borrow_mut(|logged| logged.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Collects the lines that this thread logs from now on.
struct LogLines;

impl LogLines {
    fn taken() -> Self {
        // One subscriber for all threads: tracing may decide on another thread, which has none, whether a
        // line is wanted.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing_subscriber::fmt().with_ansi(false).with_writer(|| OfThread).init();
            tracing::callsite::rebuild_interest_cache();
        });
        LOGGED.take();
        Self
    }

    fn with(&self, part: &str) -> Vec<String> {
        let text = LOGGED.with_borrow(|logged| String::from_utf8(logged.clone()).unwrap());
        text.lines().filter(|line| line.contains(part)).map(String::from).collect()
    }

    fn one(&self, part: &str) -> String {
        let mut lines = self.with(part);
        assert_eq!(lines.len(), 1, "`{part}`: {lines:?}");
        lines.remove(0)
    }
}

fn has(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
}

#[tokio::test]
async fn a_list_reading_back_and_the_first_gaps_are_said_and_the_others_counted() {
    let lines = LogLines::taken();
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    let names: Vec<String> = (0..25).map(|number| format!("n-{number}")).collect();
    for name in &names {
        world.create(name, json!({}));
    }
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    has(&lines.one(" listing "), &["source=jobs", "reason=First"]);
    has(&lines.one(" listed "), &["reason=First", "listed=125", "items=25", "states=25", "to_read_back=0"]);
    away(&world).await;
    for _ in 0..2 {
        names.iter().for_each(|name| world.update(name));
    }
    // The first update of each object is lost.
    world.compact();
    names.iter().for_each(|name| world.update(name));
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    until("the end", || !lines.with("missed versions are read back").is_empty()).await;
    running.stop().await;
    // Nothing is known of the objects that came and went before the compaction.
    assert_eq!((memory.object_gaps().len(), memory.source_gaps().len()), (25, 1));
    has(&lines.one("the source has a gap"), &["after=125", "before=", "reason=Compacted"]);
    has(&lines.with(" listing ")[1], &["reason=Expired", "after=125"]);
    has(&lines.with(" listed ")[1], &["reason=Expired", "items=25", "states=0", "to_read_back=25", "took="]);
    has(&lines.one("reading missed versions back"), &["objects=25", "swept=true"]);
    has(&lines.one("missed versions are read back"), &["objects=25", "requests=", "versions=25", "gaps=26"]);
    let gaps = lines.with("an object has a gap");
    assert_eq!(gaps.len(), 10);
    has(&gaps[0], &["WARN", "name=n-", "uid=uid-", "after=125", "before=", "reason=Compacted"]);
    has(&lines.one("more gaps"), &["objects=15", "whole=0"]);
}

#[tokio::test]
async fn a_new_epoch_and_a_gap_of_the_whole_source_are_said_with_their_versions() {
    let lines = LogLines::taken();
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.update("a");
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    memory.set_checkpoint(103);
    world.restore(101);
    world.spoil(|request| {
        request.contains("resourceVersionMatch=Exact").then(|| CannedReply::status(501, "NotImplemented"))
    });
    let running = RunningSource::start(&world, &memory).await;
    until("the new epoch", || {
        running.handle.snapshot_view().epoch == 1 && running.handle.snapshot_view().synced
    })
    .await;
    running.stop().await;
    has(&lines.one("a new epoch"), &["WARN", "source=jobs", "epoch=1", "checkpoint=103", "server=101"]);
    let gaps = lines.with("the source has a gap");
    has(&gaps[0], &["epoch=0", "after=103", "before= ", "reason=HistoryReplaced"]);
    has(&gaps[1], &["epoch=1", "after= ", "before=102", "reason=HistoryReplaced"]);
    lines.one("the newest version that both histories have can't be found");
}

#[tokio::test]
async fn a_lease_is_said_to_be_held_and_released_and_what_is_wrong_with_it_is_said_once() {
    let lines = LogLines::taken();
    let cluster = SimulatedCluster::start().await;
    let refused =
        InjectedFault::once(FaultKind::Refuse { code: 503, retry_after: None }).verb("get").times(4);
    cluster.server.inject(refused.on("leases.coordination.k8s.io"));
    let holder = ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    // A time may have any three digits.
    has(&lines.one("could not be asked for"), &["WARN", "503", "default/kubewitness"]);
    let mut standby = ElectionReplica::start(&cluster.connection, "pod-1", steady());
    standby.waits_for(&holder).await;
    has(&lines.one("another replica holds the Lease"), &["INFO", "holder=\"pod-0_"]);
    holder.stop().await;
    lines.one("the Lease is released");
    standby.holds().await;
    has(&lines.one("the Lease is no longer held"), &["term=1"]);
    assert_eq!(lines.with("the Lease is held").len(), 2);
}

//! The states that others miss under the same faults. Each peer is a small program that watches Jobs as its
//! library's documentation says, beside the controller, through the same address. It is killed and stopped
//! whenever the controller is.
//!
//! A peer appends what it is told to a file, a line a write: `listed`, `present NAME VERSION` or `gone NAME`. Names are
//! never used again in a run, so a name stands for an object. A new peer is a row of [`PEERS`] and its program: [`kube_rs`],
//! or `tests/real/modules/peers`.

mod kube_rs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_faults::{TruthEvent, WrittenEntry};
use kubewitness_harness::{ChildProcess, bound_command, until};
use serde::Serialize;

pub use kube_rs::run_peer;

const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// client-go's longest back-off is half a minute, which its jitter may double. kube-rs waits for less.
const SEEN_WITHIN: Duration = Duration::from_secs(75);

/// The language of a peer's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProgram {
    /// This program itself, with `--peer`.
    KubeRs,
    /// The program of `tests/real/modules/peers`.
    Go,
}

#[derive(Debug, PartialEq, Eq)]
pub struct PeerKind {
    pub name: &'static str,
    pub program: PeerProgram,
    /// The description of it, for the page.
    pub about: &'static str,
}

pub const PEERS: [PeerKind; 5] = [
    PeerKind {
        name: "watcher",
        program: PeerProgram::KubeRs,
        about: "kube-rs `watcher` with its default back-off; what a relist leaves out counts as deleted",
    },
    PeerKind {
        name: "reflector",
        program: PeerProgram::KubeRs,
        about: "kube-rs `reflector` with its store, which is read at each event",
    },
    PeerKind {
        name: "informer",
        program: PeerProgram::Go,
        about: "client-go's shared informer without resync",
    },
    PeerKind {
        name: "controller-runtime",
        program: PeerProgram::Go,
        about: "a reconciler of controller-runtime, which reads the cache",
    },
    PeerKind {
        name: "exporter",
        program: PeerProgram::Go,
        about: "the way of event exporters: client-go's dynamic list and `RetryWatcher`, each event written as it comes",
    },
];

/// The versions that a peer, or the controller itself, missed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeerFigures {
    pub name: String,
    /// Versions that etcd had and the peer never saw.
    pub missed_versions: usize,
    /// Objects that were deleted, and of which the peer does not say so.
    pub missed_ends: usize,
    /// Lines that say again what an earlier line said.
    pub repeated: usize,
    /// An older version after a newer one.
    pub out_of_order: usize,
    pub peak_megabytes: u64,
}

impl PeerFigures {
    /// Adds what another run has shown.
    pub(crate) fn add(&mut self, other: &Self) {
        self.missed_versions += other.missed_versions;
        self.missed_ends += other.missed_ends;
        self.repeated += other.repeated;
        self.out_of_order += other.out_of_order;
        self.peak_megabytes = self.peak_megabytes.max(other.peak_megabytes);
    }
}

struct RunningPeer {
    kind: &'static PeerKind,
    process: ChildProcess,
    notes: PathBuf,
    peak_kibibytes: u64,
}

impl RunningPeer {
    /// How often it has said that it made a list.
    fn lists(&self) -> usize {
        let text = fs::read_to_string(&self.notes).unwrap_or_default();
        text.lines().filter(|line| *line == "listed").count()
    }

    async fn await_lists(&mut self, times: usize) -> Result<()> {
        let what = format!("list {times} of {}", self.kind.name);
        until(LISTED_WITHIN, &what, async || {
            self.still_runs()?;
            Ok((self.lists() >= times).then_some(()))
        })
        .await
        .with_context(|| self.process.say())
    }

    fn still_runs(&mut self) -> Result<()> {
        match self.process.ended()? {
            Some(ended) => bail!("the peer {} ended with {ended:?}; {}", self.kind.name, self.process.say()),
            None => Ok(()),
        }
    }
}

/// All peers of a run.
pub(crate) struct PeerCrowd {
    peers: Vec<RunningPeer>,
    kubeconfig: PathBuf,
    logs: PathBuf,
}

impl PeerCrowd {
    pub(crate) async fn start(kinds: &[&'static PeerKind], kubeconfig: &Path, logs: &Path) -> Result<Self> {
        let mut crowd =
            Self { peers: Vec::new(), kubeconfig: kubeconfig.to_path_buf(), logs: logs.to_path_buf() };
        for kind in kinds {
            let notes = logs.join(format!("{}.notes", kind.name));
            let process = start(kind, kubeconfig, &notes, logs)?;
            crowd.peers.push(RunningPeer { kind, process, notes, peak_kibibytes: 0 });
        }
        for peer in &mut crowd.peers {
            peer.await_lists(1).await?;
        }
        Ok(crowd)
    }

    pub(crate) async fn kill(&mut self) -> Result<()> {
        for peer in &mut self.peers {
            peer.still_runs()?;
            peer.peak_kibibytes = peer.peak_kibibytes.max(peak_kibibytes(&peer.process)?);
            peer.process.kill().await?;
        }
        Ok(())
    }

    /// SIGKILL for each peer that still runs, after a run that failed.
    pub(crate) async fn kill_all(&mut self) {
        for peer in &mut self.peers {
            // One that has ended already can't be killed.
            peer.process.kill().await.ok();
        }
    }

    /// Starts killed peers again. Waits until each has made a list again.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        let before: Vec<_> = self.peers.iter().map(RunningPeer::lists).collect();
        for peer in &mut self.peers {
            peer.process = start(peer.kind, &self.kubeconfig, &peer.notes, &self.logs)?;
        }
        for (peer, before) in self.peers.iter_mut().zip(before) {
            peer.await_lists(before + 1).await?;
        }
        Ok(())
    }

    pub(crate) async fn signal(&self, signal: &str) -> Result<()> {
        for peer in &self.peers {
            peer.process.signal(signal).await?;
        }
        Ok(())
    }

    /// Waits until each peer has seen an object, or for as long as its back-off can be. One that never sees it misses it.
    pub(crate) async fn have_seen(&self, name: &str) -> Result<()> {
        let line = format!("present {name} ");
        let have_all = || {
            let has = |peer: &RunningPeer| {
                fs::read_to_string(&peer.notes).is_ok_and(|text| text.lines().any(|it| it.starts_with(&line)))
            };
            self.peers.iter().all(has)
        };
        let deadline = tokio::time::Instant::now() + SEEN_WITHIN;
        while !have_all() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(crate) fn figures(&self, history: &[&WrittenEntry]) -> Result<Vec<PeerFigures>> {
        let figures = self.peers.iter().map(|peer| {
            let text = fs::read_to_string(&peer.notes)
                .with_context(|| format!("what {} was told", peer.kind.name))?;
            let mut figures = compare(&text, history)?;
            peer.kind.name.clone_into(&mut figures.name);
            figures.peak_megabytes = peer.peak_kibibytes.div_ceil(1024);
            Ok(figures)
        });
        figures.collect()
    }
}

fn start(kind: &PeerKind, kubeconfig: &Path, notes: &Path, logs: &Path) -> Result<ChildProcess> {
    let mut command = match kind.program {
        PeerProgram::KubeRs => bound_command(std::env::current_exe().context("the path of this program")?),
        PeerProgram::Go => {
            let program = std::env::var_os(GO_PEERS).with_context(|| format!("{GO_PEERS} is not set"))?;
            bound_command(program)
        }
    };
    command.args(["--peer", kind.name]).arg("--kubeconfig").arg(kubeconfig).arg("--file").arg(notes);
    ChildProcess::start(kind.name, &mut command, logs)
}

/// The variable with the program of the peers in Go.
const GO_PEERS: &str = "KUBEWITNESS_GO_PEERS";

/// The most memory that a process has had. One that is stopped can be asked, too.
pub(crate) fn peak_kibibytes(process: &ChildProcess) -> Result<u64> {
    let path = format!("/proc/{}/status", process.pid()?);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let words = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = words.and_then(|words| words.split_whitespace().next()).context("VmHWM")?;
    number.parse().with_context(|| format!("VmHWM {number}"))
}

/// Compares a peer's notes with what etcd had.
pub(crate) fn compare(notes: &str, history: &[&WrittenEntry]) -> Result<PeerFigures> {
    let mut seen: BTreeSet<(&str, u64)> = BTreeSet::new();
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ended: BTreeSet<&str> = BTreeSet::new();
    let (mut repeated, mut out_of_order) = (0, 0);
    for line in notes.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["present", name, version] => {
                let version = version.parse().with_context(|| format!("the line {line}"))?;
                let newest = newest.entry(name).or_default();
                repeated += usize::from(!seen.insert((name, version)));
                out_of_order += usize::from(version < *newest);
                *newest = version.max(*newest);
            }
            ["gone", name] => repeated += usize::from(!ended.insert(name)),
            _ => {}
        }
    }
    let is_missed = |entry: &&&WrittenEntry| match entry.event {
        TruthEvent::Written => !seen.contains(&(&*entry.name, entry.version)),
        TruthEvent::Deleted => !ended.contains(&*entry.name),
    };
    let missed: Vec<_> = history.iter().filter(is_missed).collect();
    let missed_ends = missed.iter().filter(|entry| entry.event == TruthEvent::Deleted).count();
    Ok(PeerFigures {
        missed_versions: missed.len() - missed_ends,
        missed_ends,
        repeated,
        out_of_order,
        ..PeerFigures::default()
    })
}

#[cfg(test)]
mod tests {
    use kubewitness_harness::Scratch;
    use tokio::process::Command;

    use super::*;

    fn entry(name: &str, version: u64, event: TruthEvent) -> WrittenEntry {
        let (namespace, uid) = ("default".into(), name.into());
        WrittenEntry { version, event, namespace, name: name.into(), uid, in_scope: true, document: None }
    }

    #[test]
    fn what_is_missed_repeated_or_late_is_counted() {
        let history = [
            entry("a", 1, TruthEvent::Written),
            entry("a", 2, TruthEvent::Written),
            entry("b", 3, TruthEvent::Written),
            entry("b", 4, TruthEvent::Written),
            entry("a", 5, TruthEvent::Deleted),
            entry("b", 6, TruthEvent::Deleted),
        ];
        let notes = "listed\npresent a 1\npresent a 1\npresent b 4\npresent b 3\ngone b\nlisted\n";
        let figures = compare(notes, &history.iter().collect::<Vec<_>>()).expect("figures");
        assert_eq!((figures.missed_versions, figures.missed_ends), (1, 1));
        assert_eq!((figures.repeated, figures.out_of_order), (1, 1));
    }

    #[test]
    fn a_line_that_no_peer_writes_is_an_error() {
        compare("present a x", &[]).expect_err("no version");
    }

    fn of_script(script: &str, scratch: &Scratch) -> PeerCrowd {
        let (logs, notes) = (scratch.path().to_path_buf(), scratch.path().join("notes"));
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&notes);
        let process = ChildProcess::start("peer", &mut command, &logs).expect("starts");
        let peer = RunningPeer { kind: &PEERS[0], process, notes, peak_kibibytes: 0 };
        PeerCrowd { peers: vec![peer], kubeconfig: PathBuf::new(), logs }
    }

    #[tokio::test]
    async fn a_peer_that_has_ended_is_told_with_its_name_and_what_it_said() {
        let scratch = Scratch::new("peers").expect("a folder");
        let mut crowd = of_script("echo broken >&2; exit 3", &scratch);
        crowd.peers[0].process.wait(Duration::from_secs(10)).await.expect("ends");
        let text = format!("{:#}", crowd.kill().await.expect_err("it ended by itself"));
        assert!(text.contains("the peer watcher ended with Code(3)") && text.contains("broken"), "{text}");
    }

    #[tokio::test]
    async fn a_peer_that_was_started_again_is_waited_for_until_it_has_listed_again() {
        let scratch = Scratch::new("peers").expect("a folder");
        let script = "echo listed > \"$0\"; sleep 0.5; echo listed >> \"$0\"; exec sleep 60";
        let mut crowd = of_script(script, &scratch);
        crowd.peers[0].await_lists(1).await.expect("lists");
        assert_eq!(crowd.peers[0].lists(), 1);
        crowd.peers[0].await_lists(2).await.expect("lists again");
        assert_eq!(crowd.peers[0].lists(), 2);
    }
}

//! Signals: the first one ends the process in order, the second one at once. Time limits end it even if
//! something hangs.
//!
//! A separate thread with its own runtime listens for signals. A task of the main runtime was rejected: it
//! would not run while every worker waits for a file system. The thread writes nothing itself, shares no lock
//! with the rest, and waits for nothing else. So a second signal ends the process even while every log line
//! waits for a reader.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use kubewitness_core::limits;
use kubewitness_portal::ListenerBounds;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::tasks;

/// The time limit of an orderly end, after which it continues as after a second signal. It is longer than the
/// sum of all parts with their own limits: a playground's deliveries (60 s), calls of plugins (20 s) and the
/// last save (5 s), clients (3 s), the journal's closing.
const END: Duration = Duration::from_secs(100);
/// When the process exits after a second signal, whatever hangs. It is longer than the sum of all grace
/// periods, so that an orderly end comes first and can name what hangs.
const LAST_RESORT: Duration = Duration::from_secs(12);
/// How long a reader of standard error has to take the last line.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How an end is requested and observed. Clone freely.
#[derive(Clone, Default)]
pub struct EndRequests {
    /// The first signal: an operator asks for an orderly end.
    pub asked: CancellationToken,
    /// The end has begun, because of a signal or because a task failed.
    pub begun: CancellationToken,
    /// Everything stops at once: the second signal.
    pub abort: CancellationToken,
}

impl EndRequests {
    pub fn new() -> Self {
        let asked = CancellationToken::new();
        // A task that fails also stops the controller, but then no operator asked for it.
        Self { begun: asked.child_token(), asked, abort: CancellationToken::new() }
    }
}

#[derive(Clone, Copy)]
struct StopPatience {
    end: Duration,
    last_resort: Duration,
}

/// From here on a signal causes an orderly end and does not kill the process.
pub async fn listen(ends: &EndRequests) -> Result<()> {
    listen_within(ends, StopPatience { end: END, last_resort: LAST_RESORT }).await
}

async fn listen_within(ends: &EndRequests, patience: StopPatience) -> Result<()> {
    let (ready, is_ready) = oneshot::channel();
    let ends = ends.clone();
    tasks::spawn_thread("signals", move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            // The receiver is gone only if the whole process ends.
            Err(error) => return drop(ready.send(Err(error.into()))),
        };
        runtime.block_on(async {
            match EndSignals::register() {
                Ok(signals) => {
                    drop(ready.send(Ok(())));
                    watch(signals, &ends, patience).await;
                    exit_after(patience.last_resort);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
    })?;
    is_ready.await.context("the thread that listens for signals has ended")?
}

/// Returns if the process has not ended within all of its time limits.
async fn watch(mut signals: EndSignals, ends: &EndRequests, patience: StopPatience) {
    let by_failure = tokio::select! {
        () = signals.next() => false,
        () = ends.begun.cancelled() => true,
    };
    let deadline = Instant::now() + patience.end;
    let log_grace_periods = || {
        info!(
            "draining: calls of plugins get {:?}, then clients {:?}; a second signal stops at once",
            limits::DRAIN,
            ListenerBounds::PORTAL.grace
        );
    };
    let in_time = async {
        if by_failure {
            signals.next().await;
        }
        ends.asked.cancel();
        run_aside(log_grace_periods);
        signals.next().await;
    };
    match tokio::time::timeout_at(deadline, in_time).await {
        Ok(()) => run_aside(|| warn!("stopping at once")),
        Err(_) => run_aside(move || warn!("shutting down has taken {:?}: stopping at once", patience.end)),
    }
    ends.abort.cancel();
    tokio::time::sleep(patience.last_resort).await;
}

/// On a separate thread: without a reader of the log, writing to it blocks forever.
fn run_aside(tell: impl FnOnce() + Send + 'static) {
    // If no thread can be started, it is not logged; the essential work is done.
    tasks::spawn_thread("last words", tell).ok();
}

fn exit_after(after: Duration) -> ! {
    let line = format!("kubewitness: did not end within {after:?} of being told to stop at once");
    // The process exits even if nobody reads this.
    run_aside(move || drop(writeln!(std::io::stderr(), "{line}")));
    std::thread::sleep(LAST_WORDS);
    std::process::exit(1);
}

/// Returns when a signal arrives, and the process continues. For a command that would leave something behind
/// if a signal killed it.
pub async fn asked_to_end() -> Result<()> {
    let mut hung_up = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    let mut signals = EndSignals::register()?;
    tokio::select! {
        () = signals.next() => {}
        _ = hung_up.recv() => {}
    }
    Ok(())
}

struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn register() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests;

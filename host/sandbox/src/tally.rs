//! Counts how a plugin's calls ended and what they cost. A call's own figures are plain numbers of its
//! instance, and are added here once the call has ended. So the hot path takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::calendar;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ports::{CallEnd, CallError, CallOutcome, Verdict};
use kubewitness_core::shorten_text;
use kubewitness_core::views::{CallEndsView, CallFailureView, CallsView, VerdictsView};

use crate::bindings::types::{ObjectRefParam, State, Status};

/// The most bytes of the last failure's message. A guest's text may have pages.
const MESSAGE: usize = 1024;

/// An interface of the host that a guest calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCapability {
    Clock,
    Config,
    Documents,
    Http,
    Kv,
    Ledger,
    Lister,
    Log,
    Mail,
    Outcomes,
    Persons,
    Sql,
}

const CAPABILITIES: [(HostCapability, &str); 12] = [
    (HostCapability::Clock, "clock"),
    (HostCapability::Config, "config"),
    (HostCapability::Documents, "documents"),
    (HostCapability::Http, "http"),
    (HostCapability::Kv, "kv"),
    (HostCapability::Ledger, "ledger"),
    (HostCapability::Lister, "lister"),
    (HostCapability::Log, "log"),
    (HostCapability::Mail, "mail"),
    (HostCapability::Outcomes, "outcomes"),
    (HostCapability::Persons, "persons"),
    (HostCapability::Sql, "sql"),
];

/// The figures of one call while it is in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallWork {
    pub states: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    host_calls: [u64; CAPABILITIES.len()],
}

impl CallWork {
    pub fn note_call(&mut self, capability: HostCapability) {
        self.host_calls[capability as usize] += 1;
    }

    pub fn count_calls(&self, capability: HostCapability) -> u64 {
        self.host_calls[capability as usize]
    }

    /// Counts states that are passed to the guest.
    pub fn note_handed(&mut self, states: &[State<'_>]) {
        self.states += states.len() as u64;
        self.bytes_in += states.iter().map(|state| bytes_of(state) as u64).sum::<u64>();
    }
}

/// The size of a state's texts. Its numbers always have the same size.
fn bytes_of(state: &State<'_>) -> usize {
    let object = |it: &ObjectRefParam<'_>| {
        [it.group, it.version, it.kind, it.namespace, it.name, it.uid].map(str::len).iter().sum::<usize>()
    };
    let status = |it: &Status<'_>| it.phase.len() + it.reason.len() + it.message.len();
    let own = state.id.len() + state.source.len() + state.resource_version.len();
    let extra: usize = state.extra.iter().map(|(name, value)| name.len() + value.len()).sum();
    let owner = state.owner.as_ref().map_or(0, object);
    own + extra
        + object(&state.object)
        + owner
        + status(&state.status)
        + state.previous.as_ref().map_or(0, status)
}

/// The figures of one plugin, over all its versions and instances.
pub struct PluginTally {
    clock: Arc<dyn Clock>,
    ends: CallEnds,
    states: AtomicU64,
    done: AtomicU64,
    retry: AtomicU64,
    reject: AtomicU64,
    guest_ns: AtomicU64,
    host_ns: AtomicU64,
    wait_ns: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    host_calls: [AtomicU64; CAPABILITIES.len()],
    instances: AtomicU64,
    memory: AtomicU64,
    peak_memory: AtomicU64,
    compile_ns: AtomicU64,
    /// 0 if never.
    last_answered_ms: AtomicU64,
    /// Locked only when a call fails, and when the figures are read.
    last_failure: Mutex<Option<FailureKind>>,
}

#[derive(Debug, Default)]
struct CallEnds {
    answered: AtomicU64,
    trapped: AtomicU64,
    timed_out: AtomicU64,
    out_of_memory: AtomicU64,
    invalid: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
}

#[derive(Clone, Debug)]
struct FailureKind {
    at_ms: u64,
    end: CallEnd,
    message: String,
}

impl Default for PluginTally {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock::default()))
    }
}

fn add(to: &AtomicU64, number: u64) {
    to.fetch_add(number, Ordering::Relaxed);
}

fn load_counter(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn as_nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn as_seconds(nanoseconds: &AtomicU64) -> f64 {
    Duration::from_nanos(load_counter(nanoseconds)).as_secs_f64()
}

impl PluginTally {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            ends: CallEnds::default(),
            states: AtomicU64::default(),
            done: AtomicU64::default(),
            retry: AtomicU64::default(),
            reject: AtomicU64::default(),
            guest_ns: AtomicU64::default(),
            host_ns: AtomicU64::default(),
            wait_ns: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            bytes_out: AtomicU64::default(),
            host_calls: Default::default(),
            instances: AtomicU64::default(),
            memory: AtomicU64::default(),
            peak_memory: AtomicU64::default(),
            compile_ns: AtomicU64::default(),
            last_answered_ms: AtomicU64::default(),
            last_failure: Mutex::default(),
        }
    }

    /// Continues with another version of the plugin. The memory of its instances and the time of its
    /// compilation begin anew.
    pub fn begin_version(&self, compile: Duration) {
        self.peak_memory.store(0, Ordering::Relaxed);
        self.compile_ns.store(as_nanoseconds(compile), Ordering::Relaxed);
    }

    pub(crate) fn instance_began(&self) {
        add(&self.instances, 1);
    }

    /// `held` is the memory that the instance had.
    pub(crate) fn instance_ended(&self, held: usize) {
        self.instances.fetch_sub(1, Ordering::Relaxed);
        self.memory.fetch_sub(held as u64, Ordering::Relaxed);
    }

    /// Records that one instance has grown by `by` bytes, to `to` in total.
    pub(crate) fn note_growth(&self, by: usize, to: usize) {
        add(&self.memory, by as u64);
        self.peak_memory.fetch_max(to as u64, Ordering::Relaxed);
    }

    /// Adds the figures of one call, or of the start of an instance.
    pub(crate) fn add_work(&self, work: &CallWork, guest: Duration, host: Duration) {
        add(&self.guest_ns, as_nanoseconds(guest));
        let rest = [
            (&self.states, work.states),
            (&self.bytes_in, work.bytes_in),
            (&self.bytes_out, work.bytes_out),
            (&self.host_ns, as_nanoseconds(host)),
        ];
        let calls = self.host_calls.iter().zip(work.host_calls);
        for (sum, number) in rest.into_iter().chain(calls).filter(|(_, number)| *number > 0) {
            add(sum, number);
        }
    }

    /// Adds the time for which a call waited for its turns.
    pub(crate) fn add_wait(&self, time: Duration) {
        if time > Duration::ZERO {
            add(&self.wait_ns, as_nanoseconds(time));
        }
    }

    pub(crate) fn note_verdicts(&self, verdicts: &[Verdict]) {
        let (mut done, mut retry, mut reject) = (0, 0, 0);
        for verdict in verdicts {
            match verdict {
                Verdict::Done => done += 1,
                Verdict::Retry { .. } => retry += 1,
                Verdict::Reject(_) => reject += 1,
            }
        }
        for (sum, number) in [(&self.done, done), (&self.retry, retry), (&self.reject, reject)] {
            add(sum, number);
        }
    }

    pub(crate) fn note_outcome(&self, call: &Result<CallOutcome, CallError>) {
        let end = call.as_ref().map_or_else(CallError::as_call_end, |_| CallEnd::Answered);
        add(
            match end {
                CallEnd::Answered => &self.ends.answered,
                CallEnd::Trapped => &self.ends.trapped,
                CallEnd::TimedOut => &self.ends.timed_out,
                CallEnd::OutOfMemory => &self.ends.out_of_memory,
                CallEnd::Invalid => &self.ends.invalid,
                CallEnd::Refused => &self.ends.refused,
                CallEnd::Unavailable => &self.ends.unavailable,
            },
            1,
        );
        let at_ms = self.clock.now_ms();
        match call {
            Ok(_) => self.last_answered_ms.store(at_ms, Ordering::Relaxed),
            Err(error) => {
                let message = shorten_text(&error.to_string(), MESSAGE).into_owned();
                let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(FailureKind { at_ms, end, message });
            }
        }
    }

    pub fn calls_view(&self) -> CallsView {
        let CallEnds { answered, trapped, timed_out, out_of_memory, invalid, refused, unavailable } =
            &self.ends;
        let last_failure = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let failure = |FailureKind { at_ms, end, message }| CallFailureView {
            at: calendar::format_rfc3339(at_ms),
            end: end.as_str().into(),
            message,
        };
        let called = |(capability, name): &(HostCapability, &str)| {
            ((*name).to_owned(), load_counter(&self.host_calls[*capability as usize]))
        };
        CallsView {
            ended: CallEndsView {
                answered: load_counter(answered),
                trapped: load_counter(trapped),
                timed_out: load_counter(timed_out),
                out_of_memory: load_counter(out_of_memory),
                invalid: load_counter(invalid),
                refused: load_counter(refused),
                unavailable: load_counter(unavailable),
            },
            states: load_counter(&self.states),
            verdicts: VerdictsView {
                done: load_counter(&self.done),
                retry: load_counter(&self.retry),
                reject: load_counter(&self.reject),
            },
            guest_seconds: as_seconds(&self.guest_ns),
            host_seconds: as_seconds(&self.host_ns),
            wait_seconds: as_seconds(&self.wait_ns),
            bytes_in: load_counter(&self.bytes_in),
            bytes_out: load_counter(&self.bytes_out),
            host_calls: CAPABILITIES.iter().map(called).filter(|(_, calls)| *calls > 0).collect(),
            instances: load_counter(&self.instances),
            memory: load_counter(&self.memory),
            peak_memory: load_counter(&self.peak_memory),
            compile_seconds: as_seconds(&self.compile_ns),
            last_answered_at: Some(load_counter(&self.last_answered_ms))
                .filter(|at| *at > 0)
                .map(calendar::format_rfc3339),
            last_failure: last_failure.map(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_capability_has_its_own_place_and_name() {
        for (place, (capability, name)) in CAPABILITIES.iter().enumerate() {
            assert_eq!(*capability as usize, place, "{name}");
        }
    }

    #[test]
    fn the_reference_of_metrics_names_each_capability() {
        let page = include_str!("../../../docs/reference/metrics.md");
        let line = page.lines().find(|line| line.contains("`kubewitness_plugin_host_calls_total`")).unwrap();
        for (_, name) in CAPABILITIES {
            assert!(line.contains(&format!("`{name}`")), "add {name} to HOST_CALLS in the portal's tests");
        }
    }

    #[test]
    fn a_long_message_of_a_failure_is_cut() {
        let tally = PluginTally::default();
        tally.note_outcome(&Err(CallError::Trap("x".repeat(1 << 20))));
        let failure = tally.calls_view().last_failure.unwrap();
        assert_eq!((failure.end.as_str(), failure.message.len()), ("trapped", MESSAGE + "…".len()));
    }

    #[test]
    fn another_version_has_its_own_peak_and_the_rest_goes_on() {
        let tally = PluginTally::default();
        tally.instance_began();
        tally.note_growth(700, 700);
        tally.instance_ended(700);
        tally.note_outcome(&Ok(CallOutcome::default()));
        tally.begin_version(Duration::from_millis(1500));
        tally.instance_began();
        tally.note_growth(300, 300);
        let view = tally.calls_view();
        assert_eq!((view.instances, view.memory, view.peak_memory), (1, 300, 300));
        assert_eq!((view.ended.answered, view.compile_seconds), (1, 1.5));
    }
}

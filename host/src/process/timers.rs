//! The controller's timers: how long it waits before it looks again, retries, or gives up. Each has its
//! production value here, or in the crate that waits, and is passed as a parameter; nothing reads it from a
//! global.
//!
//! The end-to-end tests run the built program, and would mostly wait for these times. So a build with the
//! simulated cluster uses shorter ones if the environment says so. A production build contains neither the
//! shorter times nor the name of the variable.

use std::time::Duration;

use anyhow::Result;
use kubewitness_capability::ShipPauses;
use kubewitness_dispatch::LongestPauses;
use kubewitness_portal::{AnswerTimes, ListenerBounds};
use kubewitness_watch::WatchTuning;
use kubewitness_watch::election::LeaseTiming;

/// Shortens the timers, for tests.
#[cfg(feature = "playground")]
const VARIABLE: &str = "KUBEWITNESS_TEST_TIMERS";
#[cfg(feature = "playground")]
const SHORT: &str = "short";

#[derive(Clone, Debug)]
pub struct ControllerTimers {
    pub election: LeaseTiming,
    pub replicas: ReplicaTimers,
    pub configuration: ConfigurationTimers,
    pub retention: RetentionTimers,
    /// The pauses of plugins whose calls fail.
    pub breaker: LongestPauses,
    /// How long the API server's answers about people are valid.
    pub answers: AnswerTimes,
    pub client: ClientTimers,
    pub shipping: ShipPauses,
    pub watch: WatchTuning,
}

/// How replicas that share a journal learn of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaTimers {
    /// How long a leader waits for its journal before it leaves the Lease to others, which may reach it. The
    /// Lease of a dead replica lasts as long.
    pub without_journal: Duration,
    /// The pause before the leader tries again to record its term in the journal.
    pub next_term: Duration,
    /// How late a state may be delivered that only another replica has seen.
    pub other_states: Duration,
    /// A sign-out or a mute applies on every replica after this time, plus the time to query the database.
    pub shared_lists: Duration,
}

/// How changes of the configuration are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigurationTimers {
    /// How often a folder is read. A person who saved a file waits no longer than this.
    pub folder: Duration,
    /// How soon a refused or failed part is tried again: a component or a database may be available by then.
    /// A slow failure is limited by its own timeout.
    pub refused: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionTimers {
    /// The pause before the first pass, because other things must be read at startup.
    pub first: Duration,
    /// The pause between two passes. A pass that finds nothing reads one figure for each 1,024 states.
    pub pause: Duration,
}

/// How long clients of the portal may take; see [`ListenerBounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimers {
    pub stall: Duration,
    pub grace: Duration,
}

impl ClientTimers {
    pub fn within(self, bounds: ListenerBounds) -> ListenerBounds {
        ListenerBounds { stall: self.stall, grace: self.grace, ..bounds }
    }
}

impl Default for ControllerTimers {
    fn default() -> Self {
        let ListenerBounds { stall, grace, .. } = ListenerBounds::PORTAL;
        Self {
            election: LeaseTiming::default(),
            replicas: ReplicaTimers {
                without_journal: Duration::from_secs(15),
                next_term: Duration::from_secs(2),
                other_states: Duration::from_secs(1),
                shared_lists: Duration::from_secs(2),
            },
            configuration: ConfigurationTimers {
                folder: Duration::from_secs(1),
                refused: Duration::from_secs(10),
            },
            retention: RetentionTimers { first: Duration::from_secs(5), pause: Duration::from_secs(60) },
            breaker: LongestPauses::default(),
            answers: AnswerTimes::default(),
            client: ClientTimers { stall, grace },
            shipping: ShipPauses::default(),
            watch: WatchTuning::default(),
        }
    }
}

impl ControllerTimers {
    /// The timers of this process.
    pub fn of_process() -> Result<Self> {
        #[cfg(feature = "playground")]
        if let Some(asked) = std::env::var_os(VARIABLE) {
            if asked != SHORT {
                anyhow::bail!("{VARIABLE} is {asked:?}: write `{SHORT}`, or leave it out");
            }
            tracing::warn!("{VARIABLE}: the controller's timers are those of tests");
            return Self::short();
        }
        Ok(Self::default())
    }

    /// The timers of tests: long enough that a busy machine is not considered dead.
    #[cfg(feature = "playground")]
    fn short() -> Result<Self> {
        const MS: Duration = Duration::from_millis(1);
        Ok(Self {
            election: LeaseTiming::new(6000 * MS, 4500 * MS, 1000 * MS)?,
            replicas: ReplicaTimers {
                without_journal: 8000 * MS,
                next_term: 500 * MS,
                other_states: 200 * MS,
                shared_lists: 300 * MS,
            },
            configuration: ConfigurationTimers { folder: 200 * MS, refused: 2000 * MS },
            retention: RetentionTimers { first: 500 * MS, pause: 2000 * MS },
            breaker: LongestPauses { broken: 1000 * MS, fruitless: 500 * MS },
            answers: AnswerTimes {
                known: 1000 * MS,
                unknown: 200 * MS,
                allowed: 1000 * MS,
                denied: 500 * MS,
                namespace: 1000 * MS,
            },
            client: ClientTimers { stall: 5000 * MS, grace: 1000 * MS },
            shipping: ShipPauses { look: 500 * MS, first: 500 * MS, longest: 2000 * MS },
            watch: WatchTuning {
                first_pause: 100 * MS,
                longest_pause: 2000 * MS,
                journal_pause: 500 * MS,
                lookup: 500 * MS,
                others_every: 200 * MS,
                ..WatchTuning::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests of the built program run with shorter times, so nothing else would notice a change.
    #[test]
    fn a_controller_waits_as_long_as_its_documentation_says() {
        let secs = Duration::from_secs;
        let ControllerTimers {
            election,
            replicas,
            configuration,
            retention,
            breaker,
            answers,
            client,
            shipping,
            watch,
        } = ControllerTimers::default();
        assert_eq!(election, LeaseTiming::new(secs(15), secs(10), secs(2)).unwrap());
        let ReplicaTimers { without_journal, next_term, other_states, shared_lists } = replicas;
        assert_eq!(
            [without_journal, next_term, other_states, shared_lists],
            [secs(15), secs(2), secs(1), secs(2)]
        );
        assert_eq!((configuration.folder, configuration.refused), (secs(1), secs(10)));
        assert_eq!((retention.first, retention.pause), (secs(5), secs(60)));
        assert_eq!((breaker.broken, breaker.fruitless), (secs(10), secs(2)));
        let AnswerTimes { known, unknown, allowed, denied, namespace } = answers;
        assert_eq!(
            [known, unknown, allowed, denied, namespace],
            [secs(10), secs(2), secs(10), secs(5), secs(10)]
        );
        assert_eq!((client.stall, client.grace), (secs(30), secs(3)));
        assert_eq!([shipping.look, shipping.first, shipping.longest], [secs(10), secs(5), secs(600)]);
        let pauses = [watch.first_pause, watch.longest_pause, watch.journal_pause, watch.lookup];
        assert_eq!(pauses, [Duration::from_millis(800), secs(30), secs(3), secs(5)]);
        assert_eq!(watch.others_every, secs(1));
    }

    #[cfg(feature = "playground")]
    #[test]
    fn the_timers_of_tests_are_shorter_and_valid() {
        let (short, real) = (ControllerTimers::short().unwrap(), ControllerTimers::default());
        assert!(short.election.lease_seconds() < real.election.lease_seconds());
        assert!(short.replicas.without_journal < real.replicas.without_journal);
        assert!(short.configuration.refused < real.configuration.refused);
        assert!(short.retention.pause < real.retention.pause);
    }
}

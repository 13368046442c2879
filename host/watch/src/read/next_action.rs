//! Decides what a source does next: resolve, list, probe or watch. Pure; the reader executes the decision.
//!
//! ```text
//! resolve ─▶ list ─▶ watch ─▶ probe ─▶ watch …
//!              ▲       │ 410    │ behind, twice
//!              └───────┴────────┴▶ new epoch ─▶ list
//! ```

use std::cmp::Ordering;
use std::time::Duration;

use kubewitness_core::Version;

use crate::connect::request::RequestFailure;
use crate::repair::compare::list_request::ListReason;

/// After this many silent watches in a row, the condition reports it, and a watch must deliver something
/// before the source counts as synced.
const MUTE_WATCHES: u32 = 3;

const MUTE: &str = "watching brings nothing: the server takes each watch and ends it, or sends bytes that are no events; \
                    look at the API server, and at the proxy in front of it";

/// How often in a row a probe must be behind before the epoch grows.
const BEHIND_PROBES: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadAction {
    Resolve,
    List(ListReason),
    Probe,
    Watch,
    /// The epoch grows, then everything is listed.
    NewEpoch {
        server: Version,
    },
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The server ended it, with or without a last frame.
    Closed,
    /// Nothing arrived for longer than the time between bookmarks.
    Idle,
    Broken(RequestFailure),
    /// An ERROR frame ended it.
    ErrorFrame(RequestFailure),
}

/// The next action, the pause before it (`None`: at once), and the condition that people see meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActionStep {
    pub action: ReadAction,
    pub pause: Option<ReadPause>,
    pub condition: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadPause {
    /// The pause that the server asked for.
    pub asked: Option<Duration>,
    /// The kind is not served. It may be installed at any moment, and should be noticed soon after.
    pub unserved: bool,
}

impl ReadPause {
    pub fn as_asked(asked: Option<Duration>) -> Self {
        Self { asked, unserved: false }
    }
}

fn at_once(action: ReadAction) -> ActionStep {
    ActionStep { action, pause: None, condition: None }
}

fn after_pause(action: ReadAction, failure: &RequestFailure, doing: &str) -> ActionStep {
    ActionStep {
        action,
        pause: Some(ReadPause { asked: failure.retry_after(), unserved: failure.status_code() == Some(404) }),
        condition: Some(explain_failure(failure, doing)),
    }
}

/// Explains for people: what was tried, what came back, and who must act.
fn explain_failure(failure: &RequestFailure, doing: &str) -> String {
    let hint = match failure.status_code() {
        Some(401) => "; the credentials are not accepted",
        Some(403) => "; grant list and watch on the resource",
        Some(404) => "; the kind is not, or no longer, served",
        _ => "",
    };
    format!("{doing} failed: {failure}{hint}")
}

#[derive(Clone, Debug, Default)]
pub(crate) struct NextAction {
    behind: u32,
    /// Watches in a row that the server ended at once, or on which nothing could be read.
    mute: u32,
}

impl NextAction {
    /// The resource is known. What follows depends on the witnessed states.
    pub fn after_resolve(checkpoint: Option<&Version>, epoch: u32) -> ActionStep {
        at_once(if checkpoint.is_some() {
            ReadAction::Probe
        } else {
            ReadAction::List(Self::list_reason(epoch))
        })
    }

    /// Why there is no checkpoint. A later epoch begins without one, too.
    fn list_reason(epoch: u32) -> ListReason {
        if epoch == 0 { ListReason::First } else { ListReason::Replaced }
    }

    /// The address was lost or never known.
    pub fn resolve_address() -> ActionStep {
        at_once(ReadAction::Resolve)
    }

    /// A list proves where the server is, so no probe is needed.
    pub fn after_list() -> ActionStep {
        at_once(ReadAction::Watch)
    }

    /// The server has more objects than were witnessed, and contradicts none of them.
    pub fn list_in_doubt() -> ActionStep {
        at_once(ReadAction::List(ListReason::Doubted))
    }

    /// A list showed less than was witnessed.
    pub fn begin_new_epoch(server: Version) -> ActionStep {
        at_once(ReadAction::NewEpoch { server })
    }

    /// Takes the server's version from a consistent list of one item. `seen` is the newest version seen, if
    /// there is a checkpoint.
    pub fn after_probe(&mut self, server: &Version, seen: Option<&Version>, epoch: u32) -> ActionStep {
        let Some(seen) = seen else { return Self::after_resolve(None, epoch) };
        if server.compare_to(seen) != Some(Ordering::Less) {
            self.behind = 0;
            return at_once(ReadAction::Watch);
        }
        self.behind += 1;
        if self.behind >= BEHIND_PROBES {
            self.behind = 0;
            return at_once(ReadAction::NewEpoch { server: server.clone() });
        }
        ActionStep {
            action: ReadAction::Probe,
            pause: Some(ReadPause::as_asked(None)),
            condition: Some(format!(
                "the server is at version {server}, behind {seen}, which was seen before"
            )),
        }
    }

    /// A request other than a watch failed, and is tried again. If the kind is not served, it is looked up
    /// first. Nothing that was witnessed is taken back.
    pub fn after_failure(action: &ReadAction, failure: &RequestFailure) -> ActionStep {
        let doing = match action {
            ReadAction::Resolve => "looking the kind up",
            ReadAction::List(_) => "listing",
            ReadAction::Probe => "asking for the server's version",
            ReadAction::Watch | ReadAction::NewEpoch { .. } => "watching",
        };
        let next = match (failure.status_code(), action) {
            (Some(404), _) => ReadAction::Resolve,
            (Some(410), ReadAction::Watch) => return at_once(ReadAction::List(ListReason::Expired)),
            // Before the next watch, a probe asks for the server's version.
            (_, ReadAction::Watch | ReadAction::NewEpoch { .. }) => ReadAction::Probe,
            (_, same) => same.clone(),
        };
        after_pause(next, failure, doing)
    }

    /// Whether the last watches delivered nothing.
    pub fn is_mute(&self) -> bool {
        self.mute >= MUTE_WATCHES
    }

    /// A watch has ended. A stream that delivered something is resumed at once, any other after a pause.
    pub fn after_stream_end(&mut self, how: &StreamEnd, lived: bool) -> ActionStep {
        self.mute = match how {
            _ if lived => 0,
            StreamEnd::Closed | StreamEnd::Idle => self.mute.saturating_add(1),
            StreamEnd::ErrorFrame(_) | StreamEnd::Broken(_) => self.mute,
        };
        let failure = match how {
            StreamEnd::ErrorFrame(failure) if failure.is_expired() => {
                return at_once(ReadAction::List(ListReason::Expired));
            }
            StreamEnd::Closed | StreamEnd::Idle => None,
            StreamEnd::ErrorFrame(failure) | StreamEnd::Broken(failure) => Some(failure),
        };
        let pause = match failure {
            Some(failure) if !lived || failure.retry_after().is_some() => {
                Some(ReadPause::as_asked(failure.retry_after()))
            }
            None if !lived => Some(ReadPause::as_asked(None)),
            _ => None,
        };
        ActionStep {
            action: ReadAction::Probe,
            pause,
            condition: match failure {
                Some(failure) if !lived => Some(explain_failure(failure, "watching")),
                None if self.is_mute() => Some(MUTE.to_string()),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, retry_after: Option<u64>) -> RequestFailure {
        RequestFailure::Status {
            code,
            reason: "R".into(),
            message: "m".into(),
            retry_after: retry_after.map(Duration::from_secs),
            token: None,
        }
    }

    fn version(text: &str) -> Version {
        Version::new(text)
    }

    #[test]
    fn a_checkpoint_is_probed_and_not_listed() {
        assert_eq!(NextAction::after_resolve(Some(&version("7")), 0).action, ReadAction::Probe);
        assert_eq!(NextAction::after_resolve(None, 0).action, ReadAction::List(ListReason::First));
        assert_eq!(NextAction::after_resolve(None, 1).action, ReadAction::List(ListReason::Replaced));
        let step = NextAction::default().after_probe(&version("7"), Some(&version("7")), 0);
        assert_eq!(step, at_once(ReadAction::Watch));
    }

    #[test]
    fn the_epoch_grows_only_when_the_server_is_behind_twice_in_a_row() {
        let mut course = NextAction::default();
        let (low, high, checkpoint) = (version("5"), version("12"), version("10"));
        assert_eq!(course.after_probe(&low, Some(&checkpoint), 0).action, ReadAction::Probe);
        assert_eq!(course.after_probe(&high, Some(&checkpoint), 0).action, ReadAction::Watch);
        assert_eq!(course.after_probe(&low, Some(&checkpoint), 0).action, ReadAction::Probe);
        assert_eq!(
            course.after_probe(&low, Some(&checkpoint), 0).action,
            ReadAction::NewEpoch { server: low }
        );
    }

    #[test]
    fn versions_without_order_never_make_an_epoch() {
        let mut course = NextAction::default();
        for _ in 0..5 {
            assert_eq!(
                course.after_probe(&version("abc"), Some(&version("10")), 0).action,
                ReadAction::Watch
            );
        }
    }

    #[test]
    fn an_expired_version_leads_to_a_list_in_both_its_forms() {
        let list = ReadAction::List(ListReason::Expired);
        assert_eq!(NextAction::after_failure(&ReadAction::Watch, &status(410, None)).action, list);
        assert_eq!(
            NextAction::default().after_stream_end(&StreamEnd::ErrorFrame(status(410, None)), true).action,
            list
        );
    }

    #[test]
    fn lost_rights_are_a_condition_and_nothing_is_listed_for_them() {
        for code in [401, 403] {
            let step = NextAction::after_failure(&ReadAction::Watch, &status(code, None));
            assert_eq!(step.action, ReadAction::Probe);
            assert!(step.pause.is_some() && step.condition.is_some());
        }
        assert_eq!(
            NextAction::after_failure(&ReadAction::Probe, &status(404, None)).action,
            ReadAction::Resolve
        );
        assert_eq!(
            NextAction::after_failure(&ReadAction::List(ListReason::Expired), &status(403, None)).action,
            ReadAction::List(ListReason::Expired)
        );
    }

    #[test]
    fn a_kind_that_is_not_served_is_looked_up_again_soon() {
        for action in
            [ReadAction::Resolve, ReadAction::Probe, ReadAction::Watch, ReadAction::List(ListReason::First)]
        {
            let step = NextAction::after_failure(&action, &status(404, None));
            assert_eq!((step.action, step.pause.unwrap().unserved), (ReadAction::Resolve, true));
        }
        let step = NextAction::after_failure(&ReadAction::Resolve, &status(503, None));
        assert_eq!((step.action, step.pause.unwrap().unserved), (ReadAction::Resolve, false));
    }

    #[test]
    fn what_the_server_asks_for_is_kept() {
        let step = NextAction::after_failure(&ReadAction::Watch, &status(429, Some(9)));
        assert_eq!(step.pause, Some(ReadPause::as_asked(Some(Duration::from_secs(9)))));
        let step = NextAction::default().after_stream_end(&StreamEnd::ErrorFrame(status(429, Some(9))), true);
        assert_eq!(step.pause, Some(ReadPause::as_asked(Some(Duration::from_secs(9)))));
    }

    #[test]
    fn watches_that_bring_nothing_are_told_of_until_one_brings_something() {
        let mut course = NextAction::default();
        for ended in [StreamEnd::Closed, StreamEnd::Idle] {
            assert_eq!(
                course.after_stream_end(&ended, false).condition,
                None,
                "one or two may be a restart of the server"
            );
        }
        assert!(!course.is_mute());
        let step = course.after_stream_end(&StreamEnd::Closed, false);
        assert!(
            step.pause.is_some()
                && step.condition.is_some_and(|condition| condition.contains("brings nothing"))
        );
        // A failure says nothing of it, and is told itself.
        assert_eq!(
            course.after_stream_end(&StreamEnd::ErrorFrame(status(503, None)), false).condition.unwrap(),
            "watching failed: 503 R: m"
        );
        assert!(course.is_mute());
        assert_eq!(course.after_stream_end(&StreamEnd::Closed, true), at_once(ReadAction::Probe));
        assert!(!course.is_mute());
    }

    #[test]
    fn a_stream_that_lived_is_resumed_at_once() {
        assert_eq!(NextAction::default().after_stream_end(&StreamEnd::Closed, true).pause, None);
        assert!(NextAction::default().after_stream_end(&StreamEnd::Closed, false).pause.is_some());
        assert_eq!(NextAction::default().after_stream_end(&StreamEnd::Idle, true).action, ReadAction::Probe);
    }
}

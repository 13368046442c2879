//! Decides what a source does next: resolve, list, probe or watch. Pure; the reader carries it out.
//!
//! ```text
//! resolve ─▶ list ─▶ watch ─▶ probe ─▶ watch …
//!              ▲        │ 410     │ behind, twice
//!              └────────┴─────────┴▶ new epoch ─▶ list
//! ```

use std::cmp::Ordering;
use std::time::Duration;

use kubewitness_core::Version;

use crate::connect::request::Failure;
use crate::repair::compare::list_request::ListReason;

/// After this many watches in a row that brought nothing, people are told, and a watch must bring something before the
/// source counts as synced.
const MUTE_WATCHES: u32 = 3;

const MUTE: &str = "watching brings nothing: the server takes each watch and ends it, or sends bytes that are no events; \
                    look at the API server, and at the proxy in front of it";

/// How often in a row a probe must be behind before the epoch grows.
const BEHIND_PROBES: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
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
pub(crate) enum Ended {
    /// The server ended it, with or without a last word.
    Closed,
    /// Nothing arrived for longer than the time between bookmarks.
    Idle,
    Broken(Failure),
    /// An ERROR frame ended it.
    Told(Failure),
}

/// The next action, the pause before it (`None`: at once), and what people are told meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub action: Action,
    pub pause: Option<Pause>,
    pub condition: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// The pause that the server asked for.
    pub asked: Option<Duration>,
    /// The kind is not served. It may be installed at any moment and should be seen soon after.
    pub unserved: bool,
}

impl Pause {
    pub fn asked(asked: Option<Duration>) -> Self {
        Self { asked, unserved: false }
    }
}

fn at_once(action: Action) -> Step {
    Step { action, pause: None, condition: None }
}

fn after_pause(action: Action, failure: &Failure, doing: &str) -> Step {
    Step {
        action,
        pause: Some(Pause { asked: failure.retry_after(), unserved: failure.code() == Some(404) }),
        condition: Some(explain(failure, doing)),
    }
}

/// Explains for people: what was tried, what came back, and who must act.
fn explain(failure: &Failure, doing: &str) -> String {
    let hint = match failure.code() {
        Some(401) => "; the credentials are not accepted",
        Some(403) => "; grant get, list and watch on the resource",
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
    pub fn resolved(checkpoint: Option<&Version>, epoch: u32) -> Step {
        at_once(if checkpoint.is_some() { Action::Probe } else { Action::List(Self::list_reason(epoch)) })
    }

    /// Why there is no checkpoint. A later epoch begins without one, too.
    fn list_reason(epoch: u32) -> ListReason {
        if epoch == 0 { ListReason::First } else { ListReason::Replaced }
    }

    /// The address was lost or never known.
    pub fn unresolved() -> Step {
        at_once(Action::Resolve)
    }

    /// A list proves where the server is, so no probe is needed.
    pub fn listed() -> Step {
        at_once(Action::Watch)
    }

    /// The server has more objects than were witnessed, and contradicts none of them.
    pub fn doubted() -> Step {
        at_once(Action::List(ListReason::Doubted))
    }

    /// A list showed less than was witnessed.
    pub fn replaced(server: Version) -> Step {
        at_once(Action::NewEpoch { server })
    }

    /// Takes the server's version from a consistent list of one item. `seen` is the newest version seen, if
    /// there is a checkpoint.
    pub fn probed(&mut self, server: &Version, seen: Option<&Version>, epoch: u32) -> Step {
        let Some(seen) = seen else { return Self::resolved(None, epoch) };
        if server.compare(seen) != Some(Ordering::Less) {
            self.behind = 0;
            return at_once(Action::Watch);
        }
        self.behind += 1;
        if self.behind >= BEHIND_PROBES {
            self.behind = 0;
            return at_once(Action::NewEpoch { server: server.clone() });
        }
        Step {
            action: Action::Probe,
            pause: Some(Pause::asked(None)),
            condition: Some(format!(
                "the server is at version {server}, behind {seen}, which was seen before"
            )),
        }
    }

    /// A request other than a watch failed, and is tried again. If the kind is not served, it is looked up
    /// first. Nothing that was witnessed is taken back.
    pub fn failed(action: &Action, failure: &Failure) -> Step {
        let doing = match action {
            Action::Resolve => "looking the kind up",
            Action::List(_) => "listing",
            Action::Probe => "asking for the server's version",
            Action::Watch | Action::NewEpoch { .. } => "watching",
        };
        let next = match (failure.code(), action) {
            (Some(404), _) => Action::Resolve,
            (Some(410), Action::Watch) => return at_once(Action::List(ListReason::Expired)),
            // Before the next watch a probe asks where the server is.
            (_, Action::Watch | Action::NewEpoch { .. }) => Action::Probe,
            (_, same) => same.clone(),
        };
        after_pause(next, failure, doing)
    }

    /// Whether the last watches brought nothing.
    pub fn is_mute(&self) -> bool {
        self.mute >= MUTE_WATCHES
    }

    /// A watch ended. A stream that had lived is resumed at once, any other after a pause.
    pub fn ended(&mut self, how: &Ended, lived: bool) -> Step {
        self.mute = match how {
            _ if lived => 0,
            Ended::Closed | Ended::Idle => self.mute.saturating_add(1),
            Ended::Told(_) | Ended::Broken(_) => self.mute,
        };
        let failure = match how {
            Ended::Told(failure) if failure.is_expired() => {
                return at_once(Action::List(ListReason::Expired));
            }
            Ended::Closed | Ended::Idle => None,
            Ended::Told(failure) | Ended::Broken(failure) => Some(failure),
        };
        let pause = match failure {
            Some(failure) if !lived || failure.retry_after().is_some() => {
                Some(Pause::asked(failure.retry_after()))
            }
            None if !lived => Some(Pause::asked(None)),
            _ => None,
        };
        Step {
            action: Action::Probe,
            pause,
            condition: match failure {
                Some(failure) if !lived => Some(explain(failure, "watching")),
                None if self.is_mute() => Some(MUTE.to_string()),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, retry_after: Option<u64>) -> Failure {
        Failure::Status {
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
        assert_eq!(NextAction::resolved(Some(&version("7")), 0).action, Action::Probe);
        assert_eq!(NextAction::resolved(None, 0).action, Action::List(ListReason::First));
        assert_eq!(NextAction::resolved(None, 1).action, Action::List(ListReason::Replaced));
        let step = NextAction::default().probed(&version("7"), Some(&version("7")), 0);
        assert_eq!(step, at_once(Action::Watch));
    }

    #[test]
    fn the_epoch_grows_only_when_the_server_is_behind_twice_in_a_row() {
        let mut course = NextAction::default();
        let (low, high, checkpoint) = (version("5"), version("12"), version("10"));
        assert_eq!(course.probed(&low, Some(&checkpoint), 0).action, Action::Probe);
        assert_eq!(course.probed(&high, Some(&checkpoint), 0).action, Action::Watch);
        assert_eq!(course.probed(&low, Some(&checkpoint), 0).action, Action::Probe);
        assert_eq!(course.probed(&low, Some(&checkpoint), 0).action, Action::NewEpoch { server: low });
    }

    #[test]
    fn versions_without_order_never_make_an_epoch() {
        let mut course = NextAction::default();
        for _ in 0..5 {
            assert_eq!(course.probed(&version("abc"), Some(&version("10")), 0).action, Action::Watch);
        }
    }

    #[test]
    fn an_expired_version_leads_to_a_list_in_both_its_forms() {
        let list = Action::List(ListReason::Expired);
        assert_eq!(NextAction::failed(&Action::Watch, &status(410, None)).action, list);
        assert_eq!(NextAction::default().ended(&Ended::Told(status(410, None)), true).action, list);
    }

    #[test]
    fn lost_rights_are_a_condition_and_nothing_is_listed_for_them() {
        for code in [401, 403] {
            let step = NextAction::failed(&Action::Watch, &status(code, None));
            assert_eq!(step.action, Action::Probe);
            assert!(step.pause.is_some() && step.condition.is_some());
        }
        assert_eq!(NextAction::failed(&Action::Probe, &status(404, None)).action, Action::Resolve);
        assert_eq!(
            NextAction::failed(&Action::List(ListReason::Expired), &status(403, None)).action,
            Action::List(ListReason::Expired)
        );
    }

    #[test]
    fn a_kind_that_is_not_served_is_looked_up_again_soon() {
        for action in [Action::Resolve, Action::Probe, Action::Watch, Action::List(ListReason::First)] {
            let step = NextAction::failed(&action, &status(404, None));
            assert_eq!((step.action, step.pause.unwrap().unserved), (Action::Resolve, true));
        }
        let step = NextAction::failed(&Action::Resolve, &status(503, None));
        assert_eq!((step.action, step.pause.unwrap().unserved), (Action::Resolve, false));
    }

    #[test]
    fn what_the_server_asks_for_is_kept() {
        let step = NextAction::failed(&Action::Watch, &status(429, Some(9)));
        assert_eq!(step.pause, Some(Pause::asked(Some(Duration::from_secs(9)))));
        let step = NextAction::default().ended(&Ended::Told(status(429, Some(9))), true);
        assert_eq!(step.pause, Some(Pause::asked(Some(Duration::from_secs(9)))));
    }

    #[test]
    fn watches_that_bring_nothing_are_told_of_until_one_brings_something() {
        let mut course = NextAction::default();
        for ended in [Ended::Closed, Ended::Idle] {
            assert_eq!(
                course.ended(&ended, false).condition,
                None,
                "one or two may be a restart of the server"
            );
        }
        assert!(!course.is_mute());
        let step = course.ended(&Ended::Closed, false);
        assert!(step.pause.is_some() && step.condition.is_some_and(|told| told.contains("brings nothing")));
        // A failure says nothing of it, and is told itself.
        assert_eq!(
            course.ended(&Ended::Told(status(503, None)), false).condition.unwrap(),
            "watching failed: 503 R: m"
        );
        assert!(course.is_mute());
        assert_eq!(course.ended(&Ended::Closed, true), at_once(Action::Probe));
        assert!(!course.is_mute());
    }

    #[test]
    fn a_stream_that_lived_is_resumed_at_once() {
        assert_eq!(NextAction::default().ended(&Ended::Closed, true).pause, None);
        assert!(NextAction::default().ended(&Ended::Closed, false).pause.is_some());
        assert_eq!(NextAction::default().ended(&Ended::Idle, true).action, Action::Probe);
    }
}

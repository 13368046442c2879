//! Decides what one event means, given what is known about its object. Pure: no cache, no journal.

use std::cmp::Ordering;

use kubewitness_core::Version;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JudgedEvent {
    /// ADDED, MODIFIED, or an item of a list.
    Present,
    Deleted,
    /// An item of the first list of a new epoch: the known version belongs to another history.
    RelistedObject,
}

/// The parts of an event on which a decision depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedEvent<'a> {
    pub event: JudgedEvent,
    pub version: &'a Version,
    /// Whether it matches the source's selector.
    pub matches: bool,
    /// Everything up to here was witnessed or lies in a gap; `None` if that is not known.
    pub complete: Option<&'a Version>,
    /// The version at which the watch began. If a version between the two arrives now, it comes out of order.
    pub opened: Option<&'a Version>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventMeaning {
    Present,
    Gone,
    Left,
    /// This version of this object was witnessed.
    Duplicate,
    /// An older version than the witnessed one, from a lagging server.
    Stale,
    /// A version of the object that had this name before the known one. It was missed: the process was killed
    /// after the newer object had been read back, and now the watch delivers the older one.
    Past,
    /// An older version than the known one, out of order. The journal knows whether it was witnessed.
    Late,
    /// An unknown object in an event that is out of order. It may have ended.
    Unheard,
    /// The object is outside the selector and was never in it.
    Outside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventJudgement {
    /// Another uid had this name and has ended. Its `gone` comes first.
    pub rival_gone: bool,
    pub meaning: EventMeaning,
}

/// `known` is the witnessed version of this uid, `rival` that of another uid under the same name.
pub(crate) fn judge_event(
    seen: &ObservedEvent<'_>,
    known: Option<&Version>,
    rival: Option<&Version>,
) -> EventJudgement {
    let alone = |meaning| EventJudgement { rival_gone: false, meaning };
    // The newer object of this name is known, so this event is a replay, or comes from a lagging server.
    if let (None, Some(rival)) = (known, rival)
        && seen.event != JudgedEvent::RelistedObject
        && is_upto(seen.version, rival)
    {
        let missed = seen.complete.is_some_and(|complete| seen.version.is_newer_than(complete));
        return alone(match (seen.event, missed) {
            (_, true) if seen.matches => EventMeaning::Past,
            (_, true) => EventMeaning::Outside,
            // Its `gone` was witnessed when the newer object arrived.
            (JudgedEvent::Deleted, false) => EventMeaning::Duplicate,
            (_, false) => EventMeaning::Stale,
        });
    }
    // Everything up to here was witnessed. So an unknown object has ended or left since.
    if known.is_none() && seen.complete.is_some_and(|complete| is_upto(seen.version, complete)) {
        return alone(match seen.event {
            JudgedEvent::Deleted => EventMeaning::Duplicate,
            _ if seen.matches && is_out_of_order(seen) => EventMeaning::Unheard,
            _ => EventMeaning::Stale,
        });
    }
    if seen.event == JudgedEvent::Deleted {
        // The ended object had the name until then.
        return EventJudgement {
            rival_gone: known.is_none() && rival.is_some(),
            meaning: judge_deleted(seen, known),
        };
    }
    EventJudgement { rival_gone: rival.is_some(), meaning: judge_present(seen, known) }
}

fn is_out_of_order(seen: &ObservedEvent<'_>) -> bool {
    seen.opened.is_some_and(|opened| seen.version.is_newer_than(opened))
}

pub(crate) fn is_upto(version: &Version, bound: &Version) -> bool {
    version.compare_to(bound).is_some_and(Ordering::is_le)
}

fn judge_deleted(seen: &ObservedEvent<'_>, known: Option<&Version>) -> EventMeaning {
    match known {
        Some(known) if seen.version.compare_to(known) == Some(Ordering::Less) => EventMeaning::Stale,
        Some(_) => EventMeaning::Gone,
        // The object was never seen, or its `gone` is repeated. The id is the same, so it counts once.
        None if seen.matches => EventMeaning::Gone,
        None => EventMeaning::Outside,
    }
}

fn judge_present(seen: &ObservedEvent<'_>, known: Option<&Version>) -> EventMeaning {
    if let Some(known) = known.filter(|_| seen.event != JudgedEvent::RelistedObject) {
        match seen.version.compare_to(known) {
            Some(Ordering::Equal) => return EventMeaning::Duplicate,
            Some(Ordering::Less) if seen.matches && is_out_of_order(seen) => return EventMeaning::Late,
            Some(Ordering::Less) => return EventMeaning::Stale,
            Some(Ordering::Greater) | None => {}
        }
    }
    match (seen.matches, known) {
        (true, _) => EventMeaning::Present,
        (false, Some(_)) => EventMeaning::Left,
        (false, None) => EventMeaning::Outside,
    }
}

/// The meaning of an item of a list, compared with the states that were witnessed before the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemComparison {
    Same,
    /// The version differs from the witnessed one; others may lie between.
    Moved,
    /// The object was not witnessed, or was outside the selector.
    New,
    /// A list is consistent and can't be behind, so the server's history is another one.
    Behind,
}

pub(crate) fn compare_item(listed: &Version, known: Option<&Version>) -> ItemComparison {
    let Some(known) = known else { return ItemComparison::New };
    match listed.compare_to(known) {
        Some(Ordering::Equal) => ItemComparison::Same,
        Some(Ordering::Less) => ItemComparison::Behind,
        Some(Ordering::Greater) | None => ItemComparison::Moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(
        event: JudgedEvent,
        version: &str,
        matches: bool,
        known: Option<&str>,
        rival: Option<&str>,
    ) -> (bool, EventMeaning) {
        let version = Version::new(version);
        let (known, rival) = (known.map(Version::new), rival.map(Version::new));
        let complete = Version::new("9");
        let opened = Version::new("9");
        let seen = ObservedEvent {
            event,
            version: &version,
            matches,
            complete: Some(&complete),
            opened: Some(&opened),
        };
        let judgement = judge_event(&seen, known.as_ref(), rival.as_ref());
        (judgement.rival_gone, judgement.meaning)
    }

    #[test]
    fn the_same_version_is_a_duplicate_and_a_lower_one_stale() {
        assert_eq!(
            judged(JudgedEvent::Present, "10", true, Some("10"), None),
            (false, EventMeaning::Duplicate)
        );
        assert_eq!(judged(JudgedEvent::Present, "9", true, Some("10"), None), (false, EventMeaning::Stale));
        assert_eq!(judged(JudgedEvent::Deleted, "9", true, Some("10"), None), (false, EventMeaning::Stale));
        assert_eq!(
            judged(JudgedEvent::Present, "11", true, Some("10"), None),
            (false, EventMeaning::Present)
        );
    }

    #[test]
    fn what_comes_in_the_wrong_order_on_one_watch_is_not_taken_for_stale() {
        let judged = |event, version: &str, matches, known: Option<&str>| {
            let (version, known) = (Version::new(version), known.map(Version::new));
            let (complete, opened) = (Version::new("19"), Version::new("9"));
            let seen = ObservedEvent {
                event,
                version: &version,
                matches,
                complete: Some(&complete),
                opened: Some(&opened),
            };
            judge_event(&seen, known.as_ref(), None).meaning
        };
        assert_eq!(judged(JudgedEvent::Present, "19", true, Some("20")), EventMeaning::Late);
        assert_eq!(judged(JudgedEvent::Present, "9", true, Some("20")), EventMeaning::Stale);
        assert_eq!(judged(JudgedEvent::Present, "19", true, None), EventMeaning::Unheard);
        assert_eq!(judged(JudgedEvent::Present, "9", true, None), EventMeaning::Stale);
        assert_eq!(judged(JudgedEvent::Present, "19", false, None), EventMeaning::Stale);
        assert_eq!(judged(JudgedEvent::Deleted, "19", true, None), EventMeaning::Duplicate);
    }

    #[test]
    fn leaving_the_selector_is_not_a_deletion_and_entering_it_again_is_present() {
        assert_eq!(judged(JudgedEvent::Present, "11", false, Some("10"), None), (false, EventMeaning::Left));
        assert_eq!(judged(JudgedEvent::Present, "12", false, None, None), (false, EventMeaning::Outside));
        assert_eq!(judged(JudgedEvent::Present, "13", true, None, None), (false, EventMeaning::Present));
        assert_eq!(judged(JudgedEvent::Deleted, "14", false, None, None), (false, EventMeaning::Outside));
    }

    #[test]
    fn an_object_that_is_deleted_after_its_labels_changed_is_gone() {
        assert_eq!(judged(JudgedEvent::Deleted, "14", false, Some("10"), None), (false, EventMeaning::Gone));
    }

    #[test]
    fn a_new_uid_under_an_old_name_ends_the_old_one_first() {
        assert_eq!(judged(JudgedEvent::Present, "20", true, None, Some("10")), (true, EventMeaning::Present));
        assert_eq!(
            judged(JudgedEvent::Present, "20", false, None, Some("10")),
            (true, EventMeaning::Outside)
        );
    }

    #[test]
    fn the_old_bearer_of_a_name_replayed_does_not_end_the_new_one() {
        assert_eq!(judged(JudgedEvent::Present, "8", true, None, Some("20")), (false, EventMeaning::Stale));
        assert_eq!(
            judged(JudgedEvent::Deleted, "9", true, None, Some("20")),
            (false, EventMeaning::Duplicate)
        );
    }

    #[test]
    fn an_old_event_of_an_object_that_has_ended_does_not_bring_it_back() {
        assert_eq!(judged(JudgedEvent::Present, "9", true, None, None), (false, EventMeaning::Stale));
        assert_eq!(judged(JudgedEvent::Deleted, "8", true, None, None), (false, EventMeaning::Duplicate));
    }

    #[test]
    fn an_old_bearer_of_a_name_that_was_not_witnessed_yet_is_of_the_past() {
        assert_eq!(judged(JudgedEvent::Present, "13", true, None, Some("20")), (false, EventMeaning::Past));
        assert_eq!(judged(JudgedEvent::Deleted, "15", true, None, Some("20")), (false, EventMeaning::Past));
        assert_eq!(
            judged(JudgedEvent::Deleted, "15", false, None, Some("20")),
            (false, EventMeaning::Outside)
        );
    }

    #[test]
    fn versions_without_order_are_taken_as_they_arrive() {
        assert_eq!(
            judged(JudgedEvent::Present, "abc", true, Some("xyz"), None),
            (false, EventMeaning::Present)
        );
        assert_eq!(
            judged(JudgedEvent::Present, "abc", true, Some("abc"), None),
            (false, EventMeaning::Duplicate)
        );
        assert_eq!(
            judged(JudgedEvent::Present, "abc", true, None, Some("xyz")),
            (true, EventMeaning::Present)
        );
    }

    #[test]
    fn in_a_new_epoch_a_lower_version_is_news() {
        assert_eq!(
            judged(JudgedEvent::RelistedObject, "10", true, Some("11"), None),
            (false, EventMeaning::Present)
        );
        assert_eq!(
            judged(JudgedEvent::RelistedObject, "10", true, None, Some("11")),
            (true, EventMeaning::Present)
        );
    }

    #[test]
    fn a_list_that_shows_less_than_was_witnessed_is_of_another_history() {
        let v = Version::new;
        assert_eq!(compare_item(&v("5"), Some(&v("7"))), ItemComparison::Behind);
        assert_eq!(compare_item(&v("7"), Some(&v("7"))), ItemComparison::Same);
        assert_eq!(compare_item(&v("12"), Some(&v("7"))), ItemComparison::Moved);
        assert_eq!(compare_item(&v("abc"), Some(&v("7"))), ItemComparison::Moved);
        assert_eq!(compare_item(&v("12"), None), ItemComparison::New);
    }
}

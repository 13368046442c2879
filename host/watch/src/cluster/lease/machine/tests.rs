use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::cluster::lease::record::{LeaseClaim, new_lease_object};

/// A machine `a` and the Leases that it is shown.
struct MachineBench {
    machine: LeaseMachine,
    began: Instant,
    writes: i64,
}

impl MachineBench {
    fn new() -> Self {
        let began = Instant::now();
        let machine =
            LeaseMachine::new("a".to_string(), LeaseTiming::default(), JitterDice::new(Some(5)), began);
        Self { machine, began, writes: 0 }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.began + Duration::from_secs_f64(seconds)
    }

    /// A Lease as the next write of it would be.
    fn lease(&mut self, uid: &str, holder: &str) -> LeaseRecord {
        self.writes += 1;
        let stamp = Timestamp::from_second(self.writes).unwrap();
        let mut object =
            new_lease_object("ns", "l", &LeaseClaim { identity: holder, lasts_seconds: 15, stamp });
        object["metadata"]["uid"] = json!(uid);
        object["metadata"]["resourceVersion"] = json!(self.writes.to_string());
        LeaseRecord::from_value(object).unwrap()
    }

    fn held(&self, seconds: f64) -> Option<u64> {
        self.machine.valid_hold(self.at(seconds)).map(|hold| hold.term)
    }

    fn takes(&self, seconds: f64) -> bool {
        matches!(self.machine.next_step(self.at(seconds)), LeaseStep::Claim(_))
    }

    fn wins(&mut self, sent: f64, answered: f64) {
        let lease = self.lease("u", "a");
        let (sent, answered) = (self.at(sent), self.at(answered));
        self.machine.on_write_accepted(sent, answered, lease);
    }

    fn finds(&mut self, seconds: f64, lease: Option<LeaseRecord>) {
        let now = self.at(seconds);
        self.machine.lease_read(now, lease);
    }
}

#[test]
fn a_lease_that_is_not_there_is_made_at_once() {
    let mut bench = MachineBench::new();
    assert_eq!(bench.machine.next_step(bench.at(0.0)), LeaseStep::Read);
    bench.finds(0.1, None);
    assert_eq!(bench.machine.next_step(bench.at(0.1)), LeaseStep::Create);
    bench.wins(0.1, 0.2);
    assert_eq!(bench.held(0.2), Some(1));
}

#[test]
fn anothers_hold_is_over_when_its_record_stood_still_for_as_long_as_it_says() {
    let mut bench = MachineBench::new();
    let theirs = bench.lease("u", "b");
    for seconds in [1.0, 8.0, 15.9] {
        bench.finds(seconds, Some(theirs.clone()));
        assert!(!bench.takes(seconds) && bench.held(seconds).is_none(), "at {seconds}");
    }
    bench.finds(16.0, Some(theirs));
    assert!(bench.takes(16.0));
}

#[test]
fn whatever_changes_in_anothers_record_begins_its_time_anew() {
    let mut bench = MachineBench::new();
    let (theirs, renewed) = (bench.lease("u", "b"), bench.lease("u", "b"));
    bench.finds(0.0, Some(theirs));
    bench.finds(14.0, Some(renewed.clone()));
    bench.finds(28.9, Some(renewed.clone()));
    assert!(!bench.takes(28.9));
    bench.finds(29.0, Some(renewed));
    assert!(bench.takes(29.0));
}

#[test]
fn what_was_released_is_taken_at_once_and_so_is_what_is_ours_without_our_knowing() {
    for holder in ["", "a"] {
        let mut bench = MachineBench::new();
        let theirs = bench.lease("u", "b");
        bench.finds(0.0, Some(theirs));
        let freed = bench.lease("u", holder);
        bench.finds(2.0, Some(freed));
        assert!(bench.takes(2.0) && bench.held(2.0).is_none(), "`{holder}`");
    }
}

#[test]
fn our_hold_counts_from_before_the_request_and_not_from_the_answer() {
    let mut bench = MachineBench::new();
    bench.finds(0.0, None);
    bench.wins(1.0, 4.0);
    assert_eq!((bench.held(10.9), bench.held(11.0)), (Some(1), None));
}

#[test]
fn a_renewal_goes_on_with_the_term_and_one_after_the_end_begins_another() {
    let mut bench = MachineBench::new();
    bench.finds(0.0, None);
    bench.wins(0.0, 0.1);
    bench.wins(9.0, 9.9);
    assert_eq!(bench.held(18.9), Some(1));
    // The request was sent before the end and answered after it. Meanwhile the lease was not reported as
    // held.
    bench.wins(18.9, 19.1);
    assert_eq!(bench.held(19.1), Some(2));
}

#[test]
fn an_answer_that_comes_too_late_proves_nothing_any_more() {
    let mut bench = MachineBench::new();
    bench.finds(0.0, None);
    bench.wins(0.0, 10.0);
    assert_eq!(bench.held(10.0), None);
    bench.wins(10.1, 10.2);
    assert_eq!(bench.held(10.2), Some(1), "the first was no term");
}

#[test]
fn a_hold_ends_at_once_when_another_is_read() {
    let mut bench = MachineBench::new();
    bench.finds(0.0, None);
    bench.wins(0.0, 0.1);
    let theirs = bench.lease("u", "b");
    bench.finds(1.0, Some(theirs));
    assert_eq!(bench.held(1.0), None);
}

#[test]
fn a_lease_that_somebody_else_wrote_between_two_reads_begins_another_term_and_our_own_late_write_does_not() {
    for (is_unanswered, term) in [(false, 2), (true, 1)] {
        let mut bench = MachineBench::new();
        bench.wins(0.0, 0.1);
        if is_unanswered {
            bench.machine.on_request_failed(bench.at(2.0));
        } else {
            bench.machine.on_write_refused(bench.at(2.0));
        }
        let changed = bench.lease("u", "a");
        bench.finds(4.5, Some(changed));
        assert!(bench.takes(4.5), "{is_unanswered}");
        bench.wins(4.5, 4.6);
        assert_eq!(bench.held(4.6), Some(term), "{is_unanswered}");
    }
}

#[test]
fn a_holder_renews_every_period_and_reads_at_once_after_a_conflict_but_not_twice() {
    let mut bench = MachineBench::new();
    bench.finds(0.0, None);
    // Somebody sets a label meanwhile, and the holder's content is unchanged.
    let labelled = bench.lease("u", "a");
    let (sent, answered) = (bench.at(0.0), bench.at(0.1));
    bench.machine.on_write_accepted(sent, answered, labelled.clone());
    assert!(matches!(bench.machine.next_step(bench.at(1.9)), LeaseStep::Wait(_)));
    assert!(bench.takes(2.5));
    let now = bench.at(2.6);
    bench.machine.on_write_refused(now);
    assert_eq!(bench.machine.next_step(now), LeaseStep::Read);
    bench.finds(2.7, Some(labelled));
    assert_eq!((bench.takes(2.7), bench.held(2.7)), (true, Some(1)));
    let now = bench.at(2.8);
    bench.machine.on_write_refused(now);
    assert!(matches!(bench.machine.next_step(now), LeaseStep::Wait(_)));
}

#[test]
fn a_deleted_lease_is_made_again_at_once_by_its_holder_and_by_others_when_its_hold_is_over() {
    let mut holder = MachineBench::new();
    holder.finds(0.0, None);
    holder.wins(0.0, 0.1);
    holder.finds(3.0, None);
    assert_eq!((holder.machine.next_step(holder.at(3.0)), holder.held(3.0)), (LeaseStep::Create, Some(1)));

    let mut other = MachineBench::new();
    let theirs = other.lease("u", "b");
    other.finds(1.0, Some(theirs));
    other.finds(3.0, None);
    assert!(matches!(other.machine.next_step(other.at(3.0)), LeaseStep::Wait(_)));
    other.finds(15.9, None);
    assert!(matches!(other.machine.next_step(other.at(15.9)), LeaseStep::Wait(_)));
    // A lease that a third party has created and released meanwhile does not end it either.
    let anew = other.lease("v", "");
    other.finds(15.95, Some(anew));
    assert!(!other.takes(15.95));
    other.finds(16.0, None);
    assert_eq!(other.machine.next_step(other.at(16.0)), LeaseStep::Create);
}

#[test]
fn a_lease_is_waited_for_no_longer_than_our_own_whatever_duration_it_says() {
    let mut bench = MachineBench::new();
    let mut theirs = bench.lease("u", "b");
    theirs.lasts = None;
    bench.finds(0.0, Some(theirs.clone()));
    bench.finds(14.9, Some(theirs.clone()));
    assert!(!bench.takes(14.9));
    bench.finds(15.0, Some(theirs.clone()));
    assert!(bench.takes(15.0));
    // Somebody else may have written it, and a duration of a week would leave a week without a leader.
    theirs.lasts = Some(Duration::from_secs(1_000_000));
    theirs.uid = "v".to_string();
    bench.finds(16.0, Some(theirs.clone()));
    bench.finds(30.9, Some(theirs.clone()));
    assert!(!bench.takes(30.9) && !bench.machine.is_left(bench.at(30.9)));
    bench.finds(31.0, Some(theirs.clone()));
    assert!(bench.takes(31.0) && bench.machine.is_left(bench.at(31.0)));
    // It does not delay anybody once it is deleted, either.
    theirs.uid = "w".to_string();
    bench.finds(32.0, Some(theirs));
    bench.finds(33.0, None);
    assert!(matches!(bench.machine.next_step(bench.at(33.0)), LeaseStep::Wait(_)));
    bench.finds(47.0, None);
    assert_eq!(bench.machine.next_step(bench.at(47.0)), LeaseStep::Create);
}

#[test]
fn a_shorter_duration_than_our_own_counts_as_it_says() {
    let mut bench = MachineBench::new();
    let mut theirs = bench.lease("u", "b");
    theirs.lasts = Some(Duration::from_secs(5));
    bench.finds(0.0, Some(theirs.clone()));
    bench.finds(5.0, Some(theirs));
    assert!(bench.takes(5.0));
}

#[test]
fn who_resigns_holds_nothing_and_knows_whether_there_is_something_to_give_back() {
    let mut bench = MachineBench::new();
    assert!(!bench.machine.give_up_hold());
    bench.finds(0.0, None);
    let now = bench.at(0.1);
    bench.machine.on_request_failed(now);
    assert!(bench.machine.give_up_hold(), "the write may have come through");
    bench.wins(3.0, 3.1);
    assert!(bench.machine.give_up_hold());
    assert_eq!(bench.held(3.1), None);
    let theirs = bench.lease("u", "b");
    bench.finds(4.0, Some(theirs));
    assert!(!bench.machine.give_up_hold());
}

//! The judge catches each kind of lie. A judge that finds nothing proves nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kubewitness_core::{Change, Gap, ObjectRef, State, StateId, Status, Version};
use kubewitness_faults::{
    JournalRecord, OracleRule, ResourceHistory, ServerTruth, TruthEvent, TruthFloor, WrittenEntry, judge,
};
use serde_json::json;

const SOURCE: &str = "watched";

fn entry(event: TruthEvent, version: u64, name: &str, uid: &str) -> WrittenEntry {
    WrittenEntry {
        version,
        event,
        namespace: "team".into(),
        name: name.into(),
        uid: uid.into(),
        in_scope: true,
        document: Some(Arc::new(json!({"at": version}))),
    }
}

/// Object `a` ends, and its name is used again; `b` lives on; `brief` comes and goes.
fn truth() -> ServerTruth {
    let entries = vec![
        entry(TruthEvent::Written, 10, "a", "a1"),
        entry(TruthEvent::Written, 20, "b", "b1"),
        entry(TruthEvent::Written, 30, "a", "a1"),
        entry(TruthEvent::Written, 32, "brief", "c1"),
        entry(TruthEvent::Written, 34, "b", "b1"),
        entry(TruthEvent::Deleted, 36, "brief", "c1"),
        entry(TruthEvent::Written, 40, "a", "a1"),
        entry(TruthEvent::Deleted, 50, "a", "a1"),
        entry(TruthEvent::Written, 60, "a", "a2"),
        entry(TruthEvent::Written, 70, "b", "b1"),
    ];
    let floors = vec![TruthFloor { since_ms: 500, version: 38 }];
    ServerTruth { histories: vec![ResourceHistory { floors, ..ResourceHistory::new(entries, 20) }] }
}

/// Tells a story in the order in which it is written down.
#[derive(Default)]
struct StoryTeller(JournalRecord);

impl StoryTeller {
    fn state(mut self, change: Change, version: &str, name: &str, uid: &str) -> Self {
        let object = ObjectRef {
            group: "batch".into(),
            version: "v1".into(),
            kind: "Job".into(),
            namespace: "team".into(),
            name: name.into(),
            uid: uid.into(),
        };
        let (version, seq) = (Version::new(version), self.0.states.len() as u64 + 1);
        let id = match change {
            Change::Gap => {
                self.0.gaps.last().map(|gap| StateId::of(SOURCE, 0, &object, change, &version, Some(gap)))
            }
            _ => Some(StateId::of(SOURCE, 0, &object, change, &version, None)),
        };
        if matches!(change, Change::Present | Change::Left) {
            let at: u64 = version.as_str().parse().unwrap();
            self.0.documents.insert(seq, Some(json!({"at": at})));
        }
        self.0.states.push(Arc::new(State {
            id: id.unwrap(),
            seq,
            source: SOURCE.into(),
            epoch: 0,
            change,
            object: Arc::new(object),
            owner: None,
            resource_version: version,
            status: Arc::new(Status::default()),
            previous: None,
            observed_ms: 1000 + seq,
            late: false,
            quotes_none_under: None,
        }));
        self
    }

    fn present(self, version: u64, name: &str, uid: &str) -> Self {
        self.state(Change::Present, &version.to_string(), name, uid)
    }

    fn gone(self, version: &str, name: &str, uid: &str) -> Self {
        self.state(Change::Gone, version, name, uid)
    }

    fn gap(mut self, after: &str, before: &str, of: Option<(&str, &str)>, recorded_ms: u64) -> Self {
        let object = of.map(|(_, uid)| ObjectRef { uid: uid.into(), ..ObjectRef::default() });
        self.0.gaps.push(Gap {
            source: SOURCE.into(),
            object,
            epoch: 0,
            after: after.into(),
            before: before.into(),
            reason: "Compacted".into(),
            message: String::new(),
            recorded_ms,
        });
        match of {
            Some((name, uid)) => self.state(Change::Gap, before, name, uid),
            None => self,
        }
    }
}

/// The whole story.
fn honest() -> StoryTeller {
    StoryTeller::default()
        .present(10, "a", "a1")
        .present(20, "b", "b1")
        .present(30, "a", "a1")
        .present(32, "brief", "c1")
        .present(34, "b", "b1")
        .gone("36", "brief", "c1")
        .present(40, "a", "a1")
        .gone("50", "a", "a1")
        .present(60, "a", "a2")
        .present(70, "b", "b1")
}

/// Not looked at between 20 and 70, while compaction took what was below 38.
fn holed() -> StoryTeller {
    StoryTeller::default()
        .present(10, "a", "a1")
        .present(20, "b", "b1")
        .gap("20", "38", None, 600)
        .gap("20", "30", Some(("a", "a1")), 600)
        .present(30, "a", "a1")
        .present(40, "a", "a1")
        .gone("50", "a", "a1")
        .present(60, "a", "a2")
        .gap("20", "34", Some(("b", "b1")), 600)
        .present(34, "b", "b1")
        .present(70, "b", "b1")
}

fn rules(told: &JournalRecord) -> HashSet<OracleRule> {
    judge(&truth(), told).into_iter().map(|fault| fault.rule).collect()
}

/// The lie is found, whatever else is.
fn found(told: &StoryTeller, rule: OracleRule) {
    let faults = judge(&truth(), &told.0);
    assert!(faults.iter().any(|fault| fault.rule == rule), "{rule:?} was not found, but {faults:?}");
}

fn without(mut told: StoryTeller, place: usize) -> StoryTeller {
    told.0.states.remove(place);
    told
}

fn swapped(mut told: StoryTeller, one: usize, other: usize) -> StoryTeller {
    told.0.states.swap(one, other);
    told.0.documents.clear();
    for (place, state) in told.0.states.iter_mut().enumerate() {
        Arc::make_mut(state).seq = place as u64 + 1;
    }
    told
}

#[test]
fn the_truth_is_no_lie() {
    assert_eq!(judge(&truth(), &honest().0), []);
    assert_eq!(judge(&truth(), &holed().0), []);
}

#[test]
fn a_lost_version_a_lost_end_and_a_lost_life_are_found() {
    for place in 1..honest().0.states.len() {
        found(&without(honest(), place), OracleRule::Lost);
    }
    // What was overwritten before the first list is nobody's loss, what was there then is.
    found(&without(honest(), 0), OracleRule::Lost);
}

#[test]
fn what_the_checkpoint_has_not_reached_is_not_lost() {
    let mut told = without(honest(), 9);
    told.0.up_to = Some(69);
    assert_eq!(judge(&truth(), &told.0), []);
    told.0.up_to = Some(70);
    found(&told, OracleRule::Lost);
}

#[test]
fn a_version_twice_an_end_twice_and_an_id_twice_are_found() {
    found(&honest().present(70, "b", "b1"), OracleRule::Twice);
    found(&honest().gone("50", "a", "a1"), OracleRule::Twice);
}

#[test]
fn a_wrong_order_of_versions_and_of_names_is_found() {
    // 30 and 40 of `a1`.
    found(&swapped(honest(), 2, 6), OracleRule::Order);
    // Its end before its last version.
    found(&swapped(honest(), 6, 7), OracleRule::Order);
    // Its name's next bearer before its end.
    found(&swapped(honest(), 7, 8), OracleRule::Order);
    // Back to the old bearer.
    found(&swapped(honest(), 6, 8), OracleRule::Order);
}

#[test]
fn a_life_that_is_told_after_its_names_next_bearer_is_found() {
    let told = StoryTeller::default().present(20, "b", "b1").present(34, "b", "b1").present(60, "a", "a2");
    let told = told.present(32, "brief", "c1").gone("36", "brief", "c1").present(70, "b", "b1");
    let told = told.present(10, "a", "a1").present(30, "a", "a1").present(40, "a", "a1");
    let mut told = told.gone("50", "a", "a1");
    found(&told, OracleRule::Order);
    // After a kill it may be, but then with its end.
    told.0.late_allowed = true;
    assert_eq!(judge(&truth(), &told.0), []);
    found(&without(told, 9), OracleRule::Order);
}

#[test]
fn states_and_ends_that_never_were_are_found() {
    found(&honest().present(71, "b", "b1"), OracleRule::Invented);
    found(&honest().present(71, "x", "x1"), OracleRule::Invented);
    found(&honest().state(Change::Left, "70", "b", "b1"), OracleRule::Invented);
    found(&honest().gone("", "b", "b1"), OracleRule::FalseGone);
    let mut epoch = honest().present(71, "b", "b1");
    Arc::make_mut(epoch.0.states.last_mut().unwrap()).epoch = 1;
    found(&epoch, OracleRule::Invented);
}

#[test]
fn a_gap_over_what_was_told_is_found() {
    let told = honest().gap("34", "70", Some(("b", "b1")), 600);
    assert_eq!(
        rules(&told.0),
        HashSet::from([OracleRule::Bounds]),
        "it is empty of versions, and ends with nothing"
    );
    found(&honest().gap("20", "70", Some(("b", "b1")), 600), OracleRule::FalseGap);
}

#[test]
fn a_gap_over_what_could_be_read_is_found() {
    // At 38, the oldest version that can be read, `a1` is as it was at 30.
    let told = StoryTeller::default()
        .present(10, "a", "a1")
        .present(20, "b", "b1")
        .gap("20", "38", None, 600)
        .gap("20", "40", Some(("a", "a1")), 600)
        .present(40, "a", "a1")
        .gone("50", "a", "a1")
        .present(60, "a", "a2")
        .gap("20", "34", Some(("b", "b1")), 600)
        .present(34, "b", "b1")
        .present(70, "b", "b1");
    found(&told, OracleRule::FalseGap);
    // The same gaps before compaction came.
    let mut early = holed();
    early.0.gaps.iter_mut().for_each(|gap| gap.recorded_ms = 400);
    found(&early, OracleRule::FalseGap);
    // A hole of the source that reaches beyond what was compacted.
    let mut wide = holed();
    wide.0.gaps[0].before = "45".into();
    found(&wide, OracleRule::FalseGap);
    wide.0.unread_allowed = true;
    assert_eq!(judge(&truth(), &wide.0), []);
}

#[test]
fn a_life_that_was_never_seen_must_lie_whole_in_a_gap_of_the_source() {
    let mut told = holed();
    told.0.gaps.remove(0);
    found(&told, OracleRule::Lost);
    let mut short = holed();
    short.0.gaps[0].before = "36".into();
    found(&short, OracleRule::Lost);
    let mut late = holed();
    late.0.gaps[0].after = "32".into();
    found(&late, OracleRule::Lost);
}

#[test]
fn gaps_that_lie_on_each_other_are_found() {
    let told = StoryTeller::default()
        .present(10, "a", "a1")
        .present(20, "b", "b1")
        .gap("20", "38", None, 600)
        .gap("30", "37", None, 600);
    found(&told, OracleRule::Overlap);
    let told = StoryTeller::default()
        .present(20, "b", "b1")
        .gap("20", "70", Some(("b", "b1")), 600)
        .gap("30", "70", Some(("b", "b1")), 600)
        .present(70, "b", "b1");
    found(&told, OracleRule::Overlap);
}

#[test]
fn bounds_that_are_not_exact_are_found() {
    for (after, before) in [("20", "33"), ("20", "35"), ("10", "34"), ("", "34"), ("33", "34")] {
        let told = StoryTeller::default()
            .present(10, "a", "a1")
            .present(20, "b", "b1")
            .gap(after, before, Some(("b", "b1")), 600)
            .present(34, "b", "b1")
            .present(70, "b", "b1");
        found(&told, OracleRule::Bounds);
    }
    // Nothing is told of it behind the gap.
    found(&honest().gap("70", "90", Some(("b", "b1")), 600), OracleRule::Bounds);
    // The source's own.
    found(&honest().gap("38", "39", None, 600), OracleRule::Bounds);
    found(&honest().gap("x", "39", None, 600), OracleRule::Bounds);
}

#[test]
fn an_end_has_its_version_wherever_it_could_be_read() {
    let mut told = without(honest(), 5);
    found(&told, OracleRule::Lost);
    // Of `c1`, which ended below what can be read, nobody can tell when.
    told = told.gone("", "brief", "c1");
    assert_eq!(judge(&truth(), &told.0), []);
    let told = without(honest(), 7);
    found(&swapped(told.gone("", "a", "a1"), 7, 9), OracleRule::Bounds);
    found(&without(honest(), 5).gone("37", "brief", "c1"), OracleRule::Bounds);
}

#[test]
fn a_gap_before_an_unknown_end_reaches_to_what_can_be_read_and_no_further() {
    let told = |before: &str| {
        let mut told =
            StoryTeller::default().present(10, "a", "a1").present(20, "b", "b1").present(32, "brief", "c1");
        told = told.gap("32", before, Some(("brief", "c1")), 600).gone("", "brief", "c1");
        judge(&truth(), &told.0).into_iter().any(|fault| fault.rule == OracleRule::Bounds)
    };
    assert!(!told("38"));
    assert!(told("60"));
}

#[test]
fn what_a_history_had_still_to_say_is_excused_only_where_another_took_its_place() {
    let told = StoryTeller::default()
        .present(10, "a", "a1")
        .present(20, "b", "b1")
        .present(30, "a", "a1")
        .present(32, "brief", "c1")
        .present(34, "b", "b1")
        .gap("34", "", None, 600);
    let mut truth = truth();
    assert!(judge(&truth, &told.0).iter().any(|fault| fault.rule == OracleRule::FalseGap));
    truth.histories[0].over = true;
    assert_eq!(judge(&truth, &told.0), []);
    let bounded = without(told, 4).gap("20", "71", None, 600);
    assert!(judge(&truth, &bounded.0).iter().any(|fault| fault.rule == OracleRule::FalseGap));
}

#[test]
fn leaving_the_scope_is_told_once_and_is_no_end() {
    let mut truth = truth();
    for entry in truth.histories[0].entries.iter_mut().filter(|entry| &*entry.uid == "a1") {
        entry.in_scope = entry.version == 10;
    }
    let left = |versions: &[&str]| {
        let mut told = StoryTeller::default()
            .present(10, "a", "a1")
            .present(20, "b", "b1")
            .present(32, "brief", "c1")
            .present(34, "b", "b1")
            .gone("36", "brief", "c1");
        for version in versions {
            told = told.state(Change::Left, version, "a", "a1");
        }
        told.present(60, "a", "a2").present(70, "b", "b1").0
    };
    assert_eq!(judge(&truth, &left(&["30"])), []);
    assert!(judge(&truth, &left(&[])).iter().any(|fault| fault.rule == OracleRule::Lost));
    let as_end = honest();
    assert!(judge(&truth, &as_end.0).iter().any(|fault| fault.rule == OracleRule::Invented));
}

#[test]
fn a_poisoned_version_is_kept_as_poison_and_not_lost() {
    let mut told = without(honest(), 4);
    told.0.poisoned.insert(("b1".to_string(), 34));
    assert_eq!(judge(&truth(), &told.0), []);
}

#[test]
fn a_document_that_is_not_what_was_written_is_found() {
    let mut told = honest();
    told.0.documents.insert(1, Some(json!({"at": 11})));
    found(&told, OracleRule::Content);
    told.0.documents = HashMap::from([(1, None)]);
    found(&told, OracleRule::Content);
}

#[test]
fn current_objects_that_are_not_the_servers_are_found() {
    let live = truth().histories[0].live();
    let with = |change: fn(&mut std::collections::BTreeMap<String, String>)| {
        let mut told = honest();
        let mut current = live.clone();
        change(&mut current);
        told.0.current = Some(current);
        rules(&told.0).contains(&OracleRule::Current)
    };
    assert!(!with(|_| {}));
    assert!(with(|current| drop(current.insert("b1".to_string(), "34".to_string()))));
    assert!(with(|current| drop(current.remove("a2"))));
    assert!(with(|current| drop(current.insert("a1".to_string(), "40".to_string()))));
}

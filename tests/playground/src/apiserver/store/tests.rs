//! Tests of the store, against lists of what existed at each version.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn draft(name: &str, n: u64) -> ObjectDraft {
    let object = json!({
        "metadata": {"name": name, "namespace": "a", "uid": format!("uid-{name}"), "labels": {"n": n.to_string()}},
        "data": {"n": n},
    });
    ObjectDraft::new(object.as_object().unwrap(), &[])
}

fn store() -> (ObjectStore, TableId) {
    let store = ObjectStore::new(HistoryLimits { age: None, ..HistoryLimits::default() }, true);
    let table = store.table("things");
    (store, table)
}

fn names(store: &ObjectStore, table: TableId, at: AsOf) -> Vec<(String, u64)> {
    let request = PageRequest { prefix: "a/", after: None, name: None, at, limit: None, matches: &|_| true };
    store.page(table, &request).unwrap().items.iter().map(|r| (r.name.to_string(), r.version)).collect()
}

fn events(store: &ObjectStore, table: TableId, after: u64, max: usize) -> (Vec<u64>, u64) {
    let batch = store.changes_after(table, after, max, CacheWindow::ALL).unwrap();
    (batch.changes.iter().map(|c| c.record.version).collect(), batch.upto)
}

#[test]
fn a_write_for_another_version_is_refused() {
    let (store, table) = store();
    let first = store.put(table, draft("x", 1), None).unwrap();
    assert!(store.put(table, draft("x", 2), None).is_err());
    let second = store.put(table, draft("x", 2), Some(first.version)).unwrap();
    assert!(store.put(table, draft("x", 3), Some(first.version)).is_err());
    assert!(store.remove(table, "a/x", first.version).is_err());
    assert_eq!(store.remove(table, "a/x", second.version).unwrap().version, 3);
    assert_eq!(store.version(), 3);
}

#[test]
fn every_past_version_can_be_listed_until_it_is_compacted() {
    let (store, table) = store();
    store.put(table, draft("x", 1), None).unwrap();
    store.put(table, draft("x", 2), Some(1)).unwrap();
    store.put(table, draft("y", 1), None).unwrap();
    store.remove(table, "a/x", 2).unwrap();
    assert_eq!(names(&store, table, AsOf::Exact(1)), [("x".into(), 1)]);
    assert_eq!(names(&store, table, AsOf::Exact(3)), [("x".into(), 2), ("y".into(), 3)]);
    assert_eq!(names(&store, table, AsOf::Newest), [("y".into(), 3)]);
    assert_eq!(store.compact(Some(3), WindowPolicy::Forget), 3);
    assert_eq!(names(&store, table, AsOf::Exact(3)), [("x".into(), 2), ("y".into(), 3)]);
    assert_eq!(store.get_at(table, "a/x", AsOf::Exact(2)).unwrap_err(), TooOld { oldest: 3 });
    store.compact(None, WindowPolicy::Forget);
    assert_eq!(names(&store, table, AsOf::Newest), [("y".into(), 3)]);
}

#[test]
fn a_batch_never_splits_a_version() {
    let (store, table) = store();
    for name in ["x", "y", "z"] {
        store.put(table, draft(name, 1), None).unwrap();
    }
    let keys = ["a/x", "a/y", "a/z", "a/none"].map(str::to_owned);
    assert_eq!(store.remove_together(table, &keys), 3);
    assert_eq!(events(&store, table, 2, 2), (vec![3, 4, 4, 4], 4));
    assert_eq!(events(&store, table, 0, 2), (vec![1, 2], 2));
    assert_eq!(events(&store, table, 4, 2), (vec![], 4));
}

#[test]
fn a_watch_window_can_be_shorter_than_the_history() {
    let (store, table) = store();
    store.put(table, draft("x", 1), None).unwrap();
    store.put(table, draft("x", 2), Some(1)).unwrap();
    let window = CacheWindow { since: 2, upto: 3 };
    assert_eq!(store.changes_after(table, 1, 9, window).unwrap_err(), TooOld { oldest: 2 });
    assert_eq!(names(&store, table, AsOf::Exact(1)), [("x".into(), 1)]);
    store.put(table, draft("x", 3), Some(2)).unwrap();
    store.put(table, draft("x", 4), Some(3)).unwrap();
    let batch = store.changes_after(table, 2, 9, window).unwrap();
    assert_eq!((batch.changes.len(), batch.upto, batch.behind), (1, 3, 0));
}

#[test]
fn what_a_cache_holds_outlives_compaction_until_it_is_let_go() {
    let (store, table) = store();
    store.put(table, draft("x", 1), None).unwrap();
    assert_eq!(store.pin(7, Some(1)), Some(1));
    store.put(table, draft("x", 2), Some(1)).unwrap();
    store.compact(None, WindowPolicy::Forget);
    assert_eq!(names(&store, table, AsOf::Cached(1)), [("x".into(), 1)]);
    assert!(store.get_at(table, "a/x", AsOf::Exact(1)).is_err());
    assert_eq!(store.pin(7, None), None);
    assert_eq!(names(&store, table, AsOf::Cached(1)), [("x".into(), 2)]);
    assert_eq!(store.pin(7, Some(1)), Some(2));
}

#[test]
fn a_watch_window_may_outlive_the_history() {
    let (store, table) = store();
    store.put(table, draft("x", 1), None).unwrap();
    store.put(table, draft("x", 2), Some(1)).unwrap();
    store.compact(None, WindowPolicy::Keep);
    assert!(store.get_at(table, "a/x", AsOf::Exact(1)).is_err());
    assert_eq!(events(&store, table, 0, 9), (vec![1, 2], 2));
}

#[test]
fn limits_compact_by_themselves_and_the_truth_stays() {
    let limits = HistoryLimits { versions: 100, age: None, ..HistoryLimits::default() };
    let store = ObjectStore::new(limits, true);
    let table = store.table("things");
    let mut last = None;
    for n in 0..1000 {
        last = Some(store.put(table, draft("x", n), last).unwrap().version);
    }
    assert!(store.get_at(table, "a/x", AsOf::Exact(800)).is_err());
    assert_eq!(store.get_at(table, "a/x", AsOf::Exact(950)).unwrap().1.unwrap().version, 950);
    let account = store.account(Some(table));
    let truth = account.entries;
    assert_eq!((truth.len(), account.dropped), (1000, 0));
    assert_eq!((truth[0].event, truth[1].event), (StoreEvent::Added, StoreEvent::Modified));
}

#[test]
fn owners_find_what_they_own() {
    let (store, table) = store();
    let object = json!({"metadata": {
        "name": "p", "namespace": "a", "uid": "u", "ownerReferences": [{"uid": "owner"}],
    }});
    store.put(table, ObjectDraft::new(object.as_object().unwrap(), &[]), None).unwrap();
    assert_eq!(store.owned_by("owner"), [(table, Arc::from("a/p"))]);
    store.remove(table, "a/p", 1).unwrap();
    assert!(store.owned_by("owner").is_empty());
}

#[test]
fn pages_continue_where_they_ended() {
    let (store, table) = store();
    for n in 0..5 {
        store.put(table, draft(&format!("p{n}"), n), None).unwrap();
    }
    let even = |r: &VersionRecord| r.label("n").is_some_and(|n| n != "1");
    let page = |after: Option<&str>| {
        let request = PageRequest {
            prefix: "a/",
            after,
            name: None,
            at: AsOf::Exact(5),
            limit: Some(2),
            matches: &even,
        };
        store.page(table, &request).unwrap()
    };
    let first = page(None);
    assert_eq!((first.items.len(), first.remaining, first.last.as_deref()), (2, 2, Some("a/p2")));
    let second = page(Some("a/p2"));
    assert_eq!((second.items.len(), second.remaining, second.last), (2, 0, None));
}

#[derive(Debug, Clone)]
enum StoreStep {
    Write(u8),
    Remove(u8),
    Together(u8, u8),
    Compact(u8),
    CompactHistory(u8),
}

fn step() -> impl Strategy<Value = StoreStep> {
    prop_oneof![
        8 => (0..4_u8).prop_map(StoreStep::Write),
        4 => (0..4_u8).prop_map(StoreStep::Remove),
        1 => (0..4_u8, 0..4_u8).prop_map(|(a, b)| StoreStep::Together(a, b)),
        1 => any::<u8>().prop_map(StoreStep::Compact),
        1 => any::<u8>().prop_map(StoreStep::CompactHistory),
    ]
}

/// The objects at each version: name to the version of its content.
type VersionSnapshots = Vec<BTreeMap<String, u64>>;

fn run(store: &ObjectStore, table: TableId, step: &StoreStep, snapshots: &mut VersionSnapshots) {
    let name = |n: &u8| format!("o{n}");
    let mut now = snapshots.last().cloned().unwrap_or_default();
    match step {
        StoreStep::Write(n) => {
            let expected = now.get(&name(n)).copied();
            let version = store.put(table, draft(&name(n), u64::from(*n)), expected).unwrap().version;
            now.insert(name(n), version);
        }
        StoreStep::Remove(n) => match now.remove(&name(n)) {
            Some(version) => drop(store.remove(table, &format!("a/{}", name(n)), version).unwrap()),
            None => return,
        },
        StoreStep::Together(a, b) => {
            let keys = [a, b].map(|n| format!("a/{}", name(n)));
            let mut keys = keys.to_vec();
            keys.dedup();
            if store.remove_together(table, &keys) == 0 {
                return;
            }
            now.retain(|key, _| *key != name(a) && *key != name(b));
        }
        StoreStep::Compact(at) => {
            let version = store.version();
            store.compact(Some(version * u64::from(*at) / 255), WindowPolicy::Forget);
            return;
        }
        StoreStep::CompactHistory(at) => {
            let version = store.version();
            store.compact(Some(version * u64::from(*at) / 255), WindowPolicy::Keep);
            return;
        }
    }
    snapshots.push(now);
}

/// Applies the events of a watch to a list.
fn replay(mut state: BTreeMap<String, u64>, changes: &[StoreChange]) -> BTreeMap<String, u64> {
    for change in changes {
        let (record, before) = (&change.record, change.previous.as_ref());
        assert_eq!(state.get(&*record.name).copied(), before.map(|b| b.version));
        if record.deleted {
            state.remove(&*record.name);
        } else {
            state.insert(record.name.to_string(), record.version);
        }
    }
    state
}

proptest! {
    #[test]
    fn lists_and_watches_agree_with_a_model(steps in prop::collection::vec(step(), 1..80)) {
        let (store, table) = store();
        let mut snapshots: VersionSnapshots = vec![BTreeMap::new()];
        for step in &steps {
            run(&store, table, step, &mut snapshots);
        }
        let newest = store.version();
        prop_assert_eq!(snapshots.len() as u64, newest + 1);
        let floor = store.compact(Some(0), WindowPolicy::Forget);
        for (version, expected) in (0..).zip(&snapshots) {
            let request = PageRequest { prefix: "", after: None, name: None, at: AsOf::Exact(version), limit: None, matches: &|_| true };
            let page = store.page(table, &request);
            prop_assert_eq!(page.is_ok(), version >= floor);
            let Ok(page) = page else { continue };
            let listed: BTreeMap<String, u64> =
                page.items.iter().map(|r| (r.name.to_string(), r.version)).collect();
            prop_assert_eq!(&listed, expected);
            if let Ok(batch) = store.changes_after(table, version, usize::MAX / 2, CacheWindow::ALL) {
                prop_assert_eq!(batch.upto, newest);
                prop_assert_eq!(&replay(listed, &batch.changes), &snapshots[snapshots.len() - 1]);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_truth_says_what_can_be_read(steps in prop::collection::vec((0..7_u8, 0..3_u8), 1..80)) {
        let (store, table) = store();
        for (number, (what, which)) in (0_u64..).zip(steps) {
            let key = format!("a/o{which}");
            let live = store.get(table, &key).map(|r| r.version);
            match what {
                0..=2 => {
                    let mut draft = draft(&format!("o{which}"), number);
                    draft.uid = format!("uid-{number}").into();
                    store.put(table, draft, live).unwrap();
                }
                3 => drop(live.map(|version| store.remove(table, &key, version).unwrap())),
                4 => drop(store.compact(store.version().checked_sub(which.into()), WindowPolicy::Forget)),
                5 => drop(store.back_up("b")),
                _ => drop(store.restore("b", u64::from(which) * 5)),
            }
        }
        let account = store.account(Some(table));
        prop_assert_eq!(account.epoch as usize + 1, account.epochs.len());
        for entry in &account.entries {
            let at = entry.version.max(account.floor);
            let found = store.get_at(table, &format!("a/{}", entry.name), AsOf::Exact(at)).unwrap().1;
            let shown = at <= account.version
                && entry.event != StoreEvent::Deleted
                && found.is_some_and(|r| r.uid == entry.uid && r.version == entry.version);
            prop_assert_eq!(entry.unreadable_since.is_none(), shown, "{:?} at {}", entry, at);
        }
    }
}

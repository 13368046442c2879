//! Random appends against a model that is too simple to be wrong.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use kubewitness_core::ports::{Backlog, DocumentReader, StateWitness, WitnessedState};
use kubewitness_core::{Change, Seq, Version};
use kubewitness_journal::Journal;
use proptest::prelude::*;

use crate::support::{RandomHistory, SOURCE, StoreKind, TestJournal, gap, job, of, on, sharing, state};

#[derive(Clone, Debug)]
enum ModelStep {
    /// An append by one of the replicas that share the journal.
    Append(usize, Vec<(usize, u8, u64)>),
    Reopen,
}

const REPLICAS: usize = 3;

fn step() -> impl Strategy<Value = ModelStep> {
    let one = (0usize..4, 0u8..10, 1u64..30);
    prop_oneof![
        8 => (0..REPLICAS, proptest::collection::vec(one, 1..12)).prop_map(|(by, states)| ModelStep::Append(by, states)),
        1 => Just(ModelStep::Reopen),
    ]
}

fn witnessed((object, change, version): (usize, u8, u64), bases: &HashMap<usize, Bytes>) -> WitnessedState {
    let text = version.to_string();
    let mut state = match change {
        0 => state(&job(object), Change::Gone, if version % 2 == 0 { &text } else { "" }),
        1 => state(&job(object), Change::Left, &text),
        2 => gap(&job(object), &text, &(version + 5).to_string()),
        _ => state(&job(object), Change::Present, &text),
    };
    state.base = bases.get(&object).cloned();
    state
}

#[derive(Default)]
struct JournalModel {
    /// The id, whether it is late, the document, and the object.
    states: Vec<(String, bool, Bytes, usize)>,
    newest: HashMap<usize, u64>,
    current: BTreeMap<usize, u64>,
    ends: RandomHistory,
}

impl JournalModel {
    fn append(&mut self, object: usize, state: &WitnessedState) -> Option<Seq> {
        let known = self.states.iter().any(|(id, ..)| id == state.id.as_str());
        let version: Option<u64> = state.resource_version.as_str().parse().ok();
        let newest = self.newest.get(&object).copied();
        let stale = version.is_some_and(|version| newest.is_some_and(|newest| version < newest));
        let is_version = matches!(state.change, Change::Present | Change::Left);
        if state.change != Change::Gap {
            // The observed state counts, unless it is an older version, or an older end of a known object.
            let heard = if is_version || known { !stale } else { true };
            if heard {
                match state.change {
                    Change::Present => drop(self.current.insert(object, version.unwrap())),
                    _ => drop(self.current.remove(&object)),
                }
                if let Some(version) =
                    version.filter(|_| !stale && (!known || state.change == Change::Present))
                {
                    self.newest.insert(object, version);
                }
            }
        }
        if known {
            return None;
        }
        let late = is_version && stale;
        self.states.push((state.id.as_str().into(), late, state.document.clone(), object));
        Some(self.states.len() as Seq)
    }

    fn document_before(&self, index: usize) -> Option<Bytes> {
        let (_, _, _, object) = self.states[index];
        let mut before = self.states[..index].iter().rev().filter(|(_, _, _, other)| *other == object);
        before
            .find(|(id, _, document, _)| !id.contains("/gap:") && !document.is_empty())
            .map(|(_, _, document, _)| document.clone())
    }
}

async fn run(steps: Vec<ModelStep>, shared: bool) {
    let mut desk = if shared { TestJournal::shared("one").await } else { TestJournal::new().await };
    let mut others = Vec::new();
    for name in ["two", "three"].into_iter().filter(|_| shared) {
        others.push(Journal::open_at(&desk.place, sharing(name)).await.unwrap());
    }
    let mut model = JournalModel::default();
    let mut bases = HashMap::new();
    for step in steps {
        match step {
            ModelStep::Reopen if shared => {
                let one = others.remove(0);
                one.close().await.unwrap();
                others.push(Journal::open_at(&desk.place, sharing("again")).await.unwrap());
            }
            ModelStep::Reopen => desk = desk.reopen().await,
            ModelStep::Append(by, states) => {
                let states: Vec<_> = states.into_iter().filter(|one| model.ends.may_come(*one)).collect();
                let batch: Vec<_> = states.iter().map(|one| witnessed(*one, &bases)).collect();
                for (one, state) in states.iter().zip(&batch) {
                    bases.insert(one.0, state.document.clone());
                }
                let expected: Vec<_> =
                    states.iter().zip(&batch).map(|(one, state)| model.append(one.0, state)).collect();
                let journal = by.checked_sub(1).and_then(|by| others.get(by)).unwrap_or(&desk.journal);
                assert_eq!(journal.append_batch(of(SOURCE, 0, batch)).await.unwrap().seqs, expected);
            }
        }
        let warm = desk.journal.load_warm_start(SOURCE).await.unwrap();
        let current: BTreeMap<_, _> = warm
            .objects
            .iter()
            .map(|current| {
                let number = (0..4).find(|n| job(*n) == current.object).unwrap();
                assert_eq!(
                    kubewitness_core::document::unpack_document(&current.packed).unwrap(),
                    crate::support::document(&current.object, current.resource_version.as_str())
                );
                (number, current.resource_version.clone())
            })
            .collect();
        let expected: BTreeMap<_, _> = model
            .current
            .iter()
            .map(|(object, version)| (*object, Version::new(&version.to_string())))
            .collect();
        assert_eq!(current, expected);
    }
    desk.journal.await_earlier_writes().await.unwrap();
    let states = desk.journal.read(0, 10_000).await.unwrap();
    assert_eq!(states.len(), model.states.len());
    for (index, (state, (id, late, document, _))) in states.iter().zip(&model.states).enumerate() {
        assert_eq!((state.id.as_str(), state.late, state.seq), (id.as_str(), *late, index as Seq + 1));
        assert_eq!(&desk.journal.document_at(state.seq).await.unwrap().unwrap_or_default(), document);
        assert_eq!(desk.journal.document_before(state.seq).await.unwrap(), model.document_before(index));
    }
    desk.assert_sound().await;
}

fn run_on(kind: StoreKind, steps: Vec<ModelStep>, shared: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(on(kind, "model::any_appends_leave_what_a_naive_model_says", run(steps, shared)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_appends_leave_what_a_naive_model_says(steps in proptest::collection::vec(step(), 1..12)) {
        run_on(StoreKind::Sqlite, steps, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_appends_leave_in_postgres_what_a_naive_model_says(
        steps in proptest::collection::vec(step(), 1..12),
    ) {
        run_on(StoreKind::Postgres, steps, false);
    }
}

proptest! {
    // The two shared stores resemble the others, so few cases suffice.
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn any_appends_leave_in_mariadb_what_a_naive_model_says(
        steps in proptest::collection::vec(step(), 1..12),
    ) {
        run_on(StoreKind::MariaDb, steps, false);
    }

    #[test]
    fn any_appends_leave_in_mysql_what_a_naive_model_says(steps in proptest::collection::vec(step(), 1..12)) {
        run_on(StoreKind::Mysql, steps, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn what_replicas_append_by_turns_leaves_in_postgres_what_a_naive_model_says(
        steps in proptest::collection::vec(step(), 1..12),
    ) {
        run_on(StoreKind::Postgres, steps, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn what_replicas_append_by_turns_leaves_in_mariadb_what_a_naive_model_says(
        steps in proptest::collection::vec(step(), 1..12),
    ) {
        run_on(StoreKind::MariaDb, steps, true);
    }

    #[test]
    fn what_replicas_append_by_turns_leaves_in_mysql_what_a_naive_model_says(
        steps in proptest::collection::vec(step(), 1..12),
    ) {
        run_on(StoreKind::Mysql, steps, true);
    }
}

//! Imports accept any consistent export, whoever wrote it, and refuse contradictions.

use super::*;

#[derive(Clone, Debug)]
enum ExportForgery {
    Reverse,
    Swap(usize, usize),
    Repeat(usize, usize),
    Drop(usize),
    Late(usize),
}

fn forgery() -> impl Strategy<Value = ExportForgery> {
    prop_oneof![
        Just(ExportForgery::Reverse),
        (0..64_usize, 0..64_usize).prop_map(|(one, other)| ExportForgery::Swap(one, other)),
        (0..64_usize, 0..64_usize).prop_map(|(one, place)| ExportForgery::Repeat(one, place)),
        (0..64_usize).prop_map(ExportForgery::Drop),
        (0..64_usize).prop_map(ExportForgery::Late),
    ]
}

fn states_of(lines: &[Value]) -> Vec<State> {
    lines.iter().map(|line| serde_json::from_value(line["state"].clone()).unwrap()).collect()
}

fn is_version(state: &State) -> bool {
    matches!(state.change, Change::Present | Change::Left)
}

/// Whether no honest writer could have written these states. If not, an import may refuse them for other
/// reasons.
fn is_refused(states: &[State]) -> bool {
    let mut ids = HashSet::new();
    if !states.iter().all(|state| ids.insert(state.id.clone())) {
        return true;
    }
    let mut newest: std::collections::HashMap<&str, u64> = Default::default();
    states.iter().any(|state| {
        let version = state.resource_version.as_number();
        let before = newest.get(state.object.uid.as_str()).copied();
        let is_older = version.zip(before).is_some_and(|(version, before)| version < before);
        if let Some(version) = version.filter(|_| state.change != Change::Gap && !state.late && !is_older) {
            newest.insert(&state.object.uid, version);
        }
        is_version(state) && is_older != state.late
    })
}

async fn whatever_is_written_is_taken_in(batches: Vec<Vec<(usize, u8, u64)>>, changes: Vec<ExportForgery>) {
    let desk = TestJournal::new().await;
    let mut ends = RandomHistory::default();
    for batch in batches {
        let batch = batch.into_iter().filter(|one| ends.may_come(*one));
        let states = batch.map(|(object, change, version)| {
            let text = version.to_string();
            match change {
                0 => state(&job(object), Change::Gone, if version % 2 == 0 { &text } else { "" }),
                1 => state(&job(object), Change::Left, &text),
                2 => gap(&job(object), &text, &(version + 5).to_string()),
                _ => present(&job(object), version),
            }
        });
        desk.append(states.collect()).await;
    }
    desk.assert_sound().await;
    let text = exported(&desk.place).await;
    let (again, done) = import(&text).await;
    done.unwrap();
    again.assert_sound().await;
    assert_eq!(exported(&again.place).await, text);

    for change in changes {
        let mut forged = ForgedExport::of(&text);
        let count = forged.states.len();
        if count == 0 {
            return;
        }
        match change {
            ExportForgery::Reverse => forged.states.reverse(),
            ExportForgery::Swap(one, other) => forged.states.swap(one % count, other % count),
            ExportForgery::Repeat(one, place) => {
                forged.states.insert(place % count, forged.states[one % count].clone());
            }
            ExportForgery::Drop(one) => drop(forged.states.remove(one % count)),
            ExportForgery::Late(one) => {
                let late = &mut forged.states[one % count]["state"]["late"];
                *late = (!late.as_bool().unwrap()).into();
            }
        }
        let forged = forged.renumbered();
        let (taken, done) = import(&forged.text()).await;
        let is_refused = is_refused(&states_of(&forged.states));
        assert!(!is_refused || done.is_err(), "{change:?} was taken in");
        match done {
            Ok(_) => {
                // The import was accepted, so the journal must be sound and contain just these states.
                taken.assert_sound().await;
                let exported_states = states_of(&ForgedExport::of(&exported(&taken.place).await).states);
                assert_eq!(exported_states, states_of(&forged.states));
            }
            Err(_) => {
                let report = taken.verify().await;
                let is_marked = report.problems.iter().any(|problem| problem.code == "unfinished");
                assert!(is_marked || report.states_checked == 0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_written_is_taken_in_and_what_contradicts_itself_is_not(
        batches in proptest::collection::vec(proptest::collection::vec((0usize..4, 0u8..10, 1u64..30), 1..12), 1..6),
        changes in proptest::collection::vec(forgery(), 1..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let body = whatever_is_written_is_taken_in(batches, changes);
        runtime.block_on(on(StoreKind::Sqlite, "import::whatever_is_written_is_taken_in", body));
    }
}

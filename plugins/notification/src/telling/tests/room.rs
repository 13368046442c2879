//! The bounds of reports and digests: the size of a report, and ids of digests.

use super::*;

#[test]
fn a_report_is_bounded_whatever_an_object_says() {
    let world = world(json!({"settle": "0s"}));
    let mut state = moved(1, "a", "Failed");
    let long = "\u{1}".repeat(253);
    (state.object.name, state.object.namespace) = (long.clone(), long.clone());
    (state.object.kind, state.object.uid) = (long.clone(), long);
    world.hear(&[state]);
    world.after(0);
    let kv = world.host.kv.borrow();
    let reports: Vec<_> = kv.iter().filter(|(key, _)| key.starts_with("report/")).map(size).collect();
    assert!(reports.len() == 2 && reports.iter().all(|bytes| *bytes <= 1024), "{reports:?}");
}

#[test]
fn digests_of_numbers_alone_have_different_ids() {
    let config = configured(json!({"digest": {"above": 1, "every": "1s"}}));
    let mut book = OutboxBook::default();
    let mut ids = HashSet::new();
    for now_ms in [10_000, 20_000, 30_000] {
        book.count(NoteCounts { more: vec![("ops".into(), 5)], ..NoteCounts::default() });
        let [sending] = &book.due_sendings(&config, now_ms)[..] else { panic!("one digest is due") };
        assert_eq!(
            book.clone().due_sendings(&config, now_ms)[0].message.id,
            sending.message.id,
            "a repeat has the same"
        );
        assert!(ids.insert(sending.message.id.clone()), "{}", sending.message.id);
        book.note_answer(&config, sending, &SendAnswer::Taken, now_ms);
    }
}

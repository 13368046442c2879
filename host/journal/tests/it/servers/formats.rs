//! Journals that an older or a newer program created.

use super::*;

pub async fn a_journal_of_the_first_format_is_made_one_of_this() {
    let beside = SharedJournal::new();
    let journal = open_at(&beside.place()).await;
    journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    journal.close().await.unwrap();
    beside.run(
        "DROP TABLE kw_discrepancies; DROP TABLE kw_replicas; DROP TABLE kw_agreed; DROP TABLE kw_watches; ALTER TABLE kw_journal DROP COLUMN term; \
                UPDATE kw_journal SET format = 1",
    );
    assert!(matches!(verify_at(&beside.place()).await, Err(OpenError::Older { found: 1, .. })));
    let journal = open_at(&beside.place()).await;
    let found = DiscrepancyView { found_ms: 7, ..DiscrepancyView::default() };
    let append = AppendBatch { discrepancies: vec![found], ..of(SOURCE, 0, vec![present(&job(1), 2)]) };
    assert_eq!(journal.append_batch(append).await.unwrap().newest, 2);
    assert_eq!(journal.audit_differences(SOURCE).await.unwrap().count, 1);
    journal.close().await.unwrap();
    let report = verify_at(&beside.place()).await.unwrap();
    assert!(report.ok, "{:#?}", report.problems);
}

pub async fn a_journal_of_a_newer_format_is_refused_and_left_alone() {
    let beside = SharedJournal::new();
    open_at(&beside.place()).await.close().await.unwrap();
    beside.run("UPDATE kw_journal SET format = 99");
    let error = refused(&beside.place()).await;
    assert!(matches!(error, OpenError::Newer { found: 99, known: 10, .. }), "{error}");
    assert!(matches!(verify_at(&beside.place()).await, Err(OpenError::Newer { .. })));
    assert_eq!(beside.run("SELECT format FROM kw_journal").trim(), "99");
}

/// The state in which the first program with journals on servers left them.
pub async fn a_journal_of_format_1_gets_sums_and_can_be_cut() {
    let desk = sound().await;
    let sealed = [
        "streams",
        "discrepancies",
        "kinds",
        "owned",
        "anchors",
        "gaps",
        "poison",
        "plugins",
        "letters",
        "kv",
        "replays",
    ];
    for table in sealed {
        desk.run(&format!("ALTER TABLE @{table} DROP COLUMN sum")).await;
    }
    let statuses: i64 = desk.ask("SELECT max(id) FROM kw_statuses").await.parse().unwrap();
    for id in 1..=statuses {
        let body = match StoreKind::here() {
            StoreKind::Postgres => "convert_from(body, 'UTF8')",
            _ => "CONVERT(body USING utf8mb4)",
        };
        let body = desk.ask(&format!("SELECT {body} FROM kw_statuses WHERE id = {id}")).await;
        let sum = kubewitness_core::document::checksum(body.as_bytes());
        desk.run(&format!("UPDATE @statuses SET sum = {sum} WHERE id = {id}")).await;
    }
    desk.run("ALTER TABLE @streams DROP COLUMN taken").await;
    desk.run("DROP TABLE @taken").await;
    desk.run("DROP TABLE @replicas").await;
    desk.run("DROP TABLE @agreed").await;
    desk.run("DROP TABLE @watches").await;
    desk.run("ALTER TABLE @journal DROP COLUMN term").await;
    desk.run(match StoreKind::here() {
        StoreKind::Postgres => "DROP INDEX kw_objects_by_end",
        _ => "DROP INDEX kw_objects_by_end ON kw_objects",
    })
    .await;
    desk.run("UPDATE @journal SET format = 1").await;
    let older = verify_at(&desk.place).await.unwrap_err();
    assert!(matches!(older, OpenError::Older { found: 1, known: 10, .. }), "{older}");
    let TestJournal { folder, place, .. } = desk;
    let desk = TestJournal { journal: open_at(&place).await, folder, place };
    desk.assert_sound().await;
    let count = Some(20);
    let spec = kubewitness_core::config::RetentionSpec { count, past_cursors: true, ..Default::default() };
    let mut retention = kubewitness_journal::SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(0);
    let report = retention.run_pass(&spec).await.unwrap();
    assert!(report.states > 50, "{report:?}");
    desk.assert_sound().await;
}

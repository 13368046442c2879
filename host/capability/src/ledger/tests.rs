use super::*;

async fn ledger(folder: &Path) -> (Ledger, Databases) {
    let spec: LedgerSpec =
        serde_json::from_value(serde_json::json!({"name": "trail", "path": "ledger.jsonl"})).unwrap();
    let databases = Databases::default();
    (Ledger::open(&spec, folder, &databases).await.unwrap(), databases)
}

#[tokio::test]
async fn a_record_and_a_call_have_no_more_bytes_than_their_bounds_and_what_is_refused_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = ledger(folder.path()).await;
    let mut held = ledger.hold(&databases).await.unwrap();
    let long = held.append(vec![b"short".to_vec(), vec![b'x'; RECORD_BYTES + 1]]);
    assert!(matches!(&long, Err(GrantError::TooLarge(told)) if told.contains("a record")), "{long:?}");
    assert!(!held.has_records());

    let record = vec![b'x'; RECORD_BYTES];
    let fitting = CALL_BYTES / (RECORD_BYTES + 1);
    assert_eq!(held.append(vec![record.clone(); fitting]), Ok(fitting as u64));
    let much = held.append(vec![record]);
    assert!(matches!(&much, Err(GrantError::TooLarge(told)) if told.contains("a call")), "{much:?}");
}

#[tokio::test]
async fn a_call_waits_for_a_ledger_that_another_holds_no_longer_than_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = ledger(folder.path()).await;
    let held = ledger.hold(&databases).await.unwrap();
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    let late = ledger.hold(&databases).await.err();
    assert!(matches!(&late, Some(GrantError::Unavailable(told)) if told.contains("busy")), "{late:?}");
    assert_eq!(before.elapsed().as_secs(), WAIT.as_secs());
    drop(held);
    assert!(ledger.hold(&databases).await.is_ok());
}

use super::*;

async fn ledger(folder: &Path) -> (Ledger, Databases) {
    let spec: LedgerSpec =
        serde_json::from_value(serde_json::json!({"name": "trail", "path": "ledger.jsonl"})).unwrap();
    let databases = Databases::default();
    (Ledger::open(&spec, None, folder, &databases).await.unwrap(), databases)
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

async fn append(ledger: &Ledger, databases: &Databases, seq: Seq) -> Result<(), GrantError> {
    let mut held = ledger.hold(databases).await?;
    held.append(vec![format!("state {seq}").into_bytes()])?;
    held.write("p", &[Mark { seq, print: 1 }], None).await?.keep().await
}

#[tokio::test]
async fn a_ledger_that_is_taken_away_fails_its_calls_and_goes_on_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = ledger(folder.path()).await;
    append(&ledger, &databases, 1).await.unwrap();
    let (path, moved) = (folder.path().join("ledger.jsonl"), folder.path().join("ledger.jsonl.1"));
    for empty in [false, true] {
        std::fs::rename(&path, &moved).unwrap();
        if empty {
            std::fs::write(&path, "").unwrap();
        }
        for _ in 0..3 {
            let refused = append(&ledger, &databases, 2).await;
            assert!(matches!(refused, Err(GrantError::Unavailable(_))), "{refused:?}");
        }
        std::fs::rename(&moved, &path).unwrap();
    }
    append(&ledger, &databases, 2).await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "state 1\nstate 2\n");
    assert_eq!(ledger.receipts("p", 0, &databases).await.unwrap().len(), 2);
}

/// Signed after each record, and closed with each root.
async fn signed_ledger(folder: &Path, rotates: bool) -> (Ledger, Databases) {
    let rotate = rotates.then(|| serde_json::json!({"size": "1"}));
    let spec = serde_json::from_value(serde_json::json!({
        "name": "trail", "path": "ledger.jsonl", "rotate": rotate, "signing": {"key": "seal", "records": 1},
    }));
    let databases = Databases::default();
    let key = Some(Arc::new(Key::fresh()));
    (Ledger::open(&spec.unwrap(), key, folder, &databases).await.unwrap(), databases)
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_record_that_begins_as_a_statement_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = signed_ledger(folder.path(), false).await;
    append(&ledger, &databases, 1).await.unwrap();
    ledger.tend().await.unwrap();
    let root = lines(&folder.path().join("ledger.jsonl")).remove(1);
    let mut held = ledger.hold(&databases).await.unwrap();
    assert_eq!(held.last(), Some(b"state 1".to_vec()), "a plugin sees no statement");
    let refused = held.append(vec![root.into_bytes()]);
    assert!(matches!(&refused, Err(GrantError::Invalid(told)) if told.contains("statement")), "{refused:?}");
}

#[tokio::test]
async fn a_root_covers_no_record_that_does_not_count_yet() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = signed_ledger(folder.path(), false).await;
    append(&ledger, &databases, 1).await.unwrap();
    let mut held = ledger.hold(&databases).await.unwrap();
    held.append(vec![b"undone".to_vec()]).unwrap();
    let written = held.write("p", &[Mark { seq: 2, print: 1 }], None).await.unwrap();
    // The call holds the ledger, and its records are taken back.
    ledger.tend().await.unwrap();
    drop(written);
    append(&ledger, &databases, 3).await.unwrap();
    ledger.sign_off().await.unwrap();
    let lines = lines(&folder.path().join("ledger.jsonl"));
    let kinds: Vec<_> = lines.iter().map(|line| line.contains("\"root\",")).collect();
    assert_eq!(kinds, [false, true, false, true], "{lines:#?}");
    assert!(!lines.concat().contains("undone"));
}

#[tokio::test]
async fn a_file_is_closed_while_nobody_writes_and_under_settings_that_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = signed_ledger(folder.path(), true).await;
    append(&ledger, &databases, 1).await.unwrap();
    ledger.tend().await.unwrap();
    let closed = |file: u64| folder.path().join(format!("ledger-00000{file}.jsonl"));
    assert_eq!((lines(&closed(1)).len(), lines(&folder.path().join("ledger.jsonl")).len()), (2, 1));
    // The same files: they stay open, and nobody else can open them.
    let other = Arc::new(Key::fresh());
    let ledger = ledger.with(&ledger.spec, Some(other.clone()));
    append(&ledger, &databases, 2).await.unwrap();
    append(&ledger, &databases, 3).await.unwrap();
    assert!(lines(&closed(2)).last().unwrap().contains(&other.id()));
    assert_eq!(ledger.receipts("p", 0, &databases).await.unwrap().len(), 3);
}

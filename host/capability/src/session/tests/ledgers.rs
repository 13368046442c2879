//! Tests of ledgers in a call, alone and together with rows.

use super::*;

#[tokio::test]
async fn a_ledger_alone_keeps_its_own_receipt() {
    let world = SessionWorld::new();
    let spec = plugin(json!({"ledger": [{"name": "audit", "ledger": "trail"}]}));
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &spec).await;
    let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
    assert_eq!(session.ledger_last("audit").await, Ok(None));
    assert_eq!(session.ledger_append("audit", vec![b"one".to_vec(), b"two".to_vec()]).await, Ok(2));
    assert_eq!(session.ledger_last("audit").await, Ok(Some(b"two".to_vec())));
    assert_eq!(world.records(), "", "nothing before the commit");
    session.commit_effects(&[1, 2]).await.unwrap();
    assert_eq!(world.records(), "one\ntwo\n");
    drop((plugin, capabilities));
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &spec).await;
    assert_eq!(applied(&plugin, &[1, 2, 3]).await, [1, 2]);
    let mut session = plugin.open(&batch(&[3])).await.unwrap();
    assert_eq!(session.ledger_append("audit", vec![b"three".to_vec()]).await, Ok(3));
}

#[tokio::test]
async fn calls_continue_a_ledger_one_after_the_other() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let chain = |seq: Seq| {
        let plugin = plugin.clone();
        async move {
            let mut session = plugin.open(&batch(&[seq])).await.unwrap();
            let last = session.ledger_last("audit").await.unwrap();
            let before = last.map_or(0, |last| String::from_utf8(last).unwrap().parse::<u64>().unwrap());
            tokio::task::yield_now().await;
            session.ledger_append("audit", vec![(before + 1).to_string().into_bytes()]).await.unwrap();
            session.commit_effects(&[seq]).await.unwrap();
        }
    };
    futures::future::join_all((1..=20).map(chain)).await;
    let expected: String = (1..=20).map(|n| format!("{n}\n")).collect();
    assert_eq!(world.records(), expected);
}

/// The kill comes after the ledger's records are on disk, before or after the rows are committed.
#[tokio::test]
async fn the_database_decides_for_the_ledger_after_a_crash() {
    for commit in [false, true] {
        let world = SessionWorld::new();
        let capabilities = world.open().await;
        let plugin = grants(&capabilities, &everything()).await;
        let mut session = plugin.open(&batch(&[1])).await.unwrap();
        insert(&mut session, &[1]).await;
        session.commit_effects(&[1]).await.unwrap();
        let granted =
            Arc::clone(&capabilities.resolve_access("p", &everything(), &backing(0)).map(Arc::new).unwrap());
        let mut call = CallSession::new(granted, vec![2], marks(&[2]), HashSet::new(), None);
        call.sql_write("main", rows(&[2]), None).await.unwrap();
        call.ledger_append("audit", vec![b"two".to_vec()]).await.unwrap();
        let receipt = call.make_receipt(call.receipt_marks(&[2]).unwrap()).unwrap();
        let written = call.write_ledger(&receipt).await.unwrap();
        assert_eq!(world.records(), "two\n");
        if commit {
            call.sql.take().unwrap().commit_with_receipt(&receipt).await.unwrap();
        }
        drop((written, call, plugin, capabilities));
        let capabilities = world.open().await;
        let plugin = grants(&capabilities, &everything()).await;
        let expected: (&[Seq], &str, usize) = if commit { (&[1, 2], "two\n", 2) } else { (&[1], "", 1) };
        let found = (applied(&plugin, &[1, 2]).await, world.records(), stored(&plugin).await);
        assert_eq!((found.0.as_slice(), found.1.as_str(), found.2), expected);
    }
}

#[tokio::test]
async fn a_failed_commit_takes_the_ledgers_records_back() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    // This constraint is only checked when the transaction ends.
    let parent = "CREATE TABLE c (p INTEGER REFERENCES t (seq) DEFERRABLE INITIALLY DEFERRED)";
    session.sql_execute("main", parent, vec![vec![]]).await.unwrap();
    session.sql_execute("main", "INSERT INTO c VALUES (77)", vec![vec![]]).await.unwrap();
    session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
    let refused = session.commit_effects(&[1]).await;
    assert!(matches!(&refused, Err(GrantError::Invalid(why)) if why.contains("FOREIGN KEY")), "{refused:?}");
    assert_eq!(applied(&plugin, &[1]).await, [] as [Seq; 0]);
    assert_eq!((stored(&plugin).await, world.records()), (0, String::new()));
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    assert_eq!(session.ledger_append("audit", vec![b"one".to_vec()]).await, Ok(1));
    session.commit_effects(&[1]).await.unwrap();
    assert_eq!((applied(&plugin, &[1]).await, world.records()), (vec![1], "one\n".to_owned()));
}

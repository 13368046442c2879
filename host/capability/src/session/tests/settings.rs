//! Tests of the settings of grants: missing and unusable ones, and what a change preserves.

use base64::Engine as _;

use super::*;

#[tokio::test]
async fn what_was_not_granted_says_which_grant_to_add() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &plugin(json!({}))).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    let mut refusals = vec![
        session.sql_dialect("main").map(drop).unwrap_err(),
        session.sql_query("main", "SELECT 1", vec![]).await.map(drop).unwrap_err(),
        session.http_send("hook", HttpRequest::default()).await.map(drop).unwrap_err(),
        session.ledger_append("audit", vec![]).await.map(drop).unwrap_err(),
        session.ledger_last("audit").await.map(drop).unwrap_err(),
        session.ledger_sign("key", b"").map(drop).unwrap_err(),
        session.lister_get("jobs", "", "").await.map(drop).unwrap_err(),
        session.lister_list("jobs", "", "", 1).map(drop).unwrap_err(),
        session.kv_set("a", vec![]).unwrap_err(),
        session.kv_delete("a").unwrap_err(),
    ];
    refusals.retain(|refusal| !matches!(refusal, GrantError::Denied(why) if why.contains("spec.grants")));
    assert_eq!(refusals, []);
    assert_eq!((session.kv_get("seen"), session.kv_keys("", 9)), (None, vec![]));
    assert_eq!(plugin.plugin_config(), r#"{"a":1}"#);
}

#[tokio::test]
async fn settings_that_point_nowhere_are_faults_of_their_fields() {
    let world = SessionWorld::new();
    let spec = plugin(json!({"sql": [{"name": "main", "database": "other"}]}));
    let error = world.open().await.grant_plugin("p", &spec, backing(0)).await.err().unwrap();
    assert!(matches!(error, CapabilityError::Manifest(fault) if fault.field == "spec.grants.sql[0]"));
    // The address is of another kind of database than the settings state.
    let address = world.folder.path().join("address");
    std::fs::write(&address, "postgres://me:hush@x/y").unwrap();
    std::fs::create_dir_all(world.folder.path().join("audit")).unwrap();
    let host: HostSpec = serde_json::from_value(json!({
        "sources": [],
        "databases": [
            {"name": "a", "sqlite": {"path": ""}},
            {"name": "e", "postgres": {"urlFrom": {"env": "KUBEWITNESS_TEST_NO_SUCH"}}},
            {"name": "f", "mysql": {"urlFrom": {"file": address}}},
        ],
        "destinations": [{"name": "b", "url": "http://me:hush@x/"}],
        "ledgers": [{"name": "c", "path": "audit"}],
        "keys": [{"name": "d", "valueFrom": {"env": "KUBEWITNESS_TEST_NO_SUCH"}}],
    }))
    .unwrap();
    let capabilities = OpenCapabilities::open(&host, world.folder.path()).await.unwrap();
    let faults = capabilities.closed_entries();
    let mut fields: Vec<_> = faults.iter().map(|fault| fault.field.as_str()).collect();
    fields.sort_unstable();
    let expected = [
        "spec.databases[0].sqlite.path",
        "spec.databases[1].postgres.urlFrom",
        "spec.databases[2].mysql.urlFrom",
        "spec.destinations[0].url",
        "spec.keys[0].valueFrom",
        "spec.ledgers[0].path",
    ];
    assert_eq!(fields, expected);
    assert!(faults.iter().all(|fault| !fault.message.contains("hush")));
}

#[tokio::test]
async fn what_cannot_be_opened_fails_only_the_plugins_that_are_granted_it_and_is_opened_later() {
    let world = SessionWorld::new();
    let database = world.folder.path().join("platform.db");
    std::fs::write(&database, "this is no database, and long enough to be looked at").unwrap();
    let capabilities = world.open().await;
    let closed = capabilities.grant_plugin("p", &everything(), backing(0)).await.err().unwrap();
    let CapabilityError::Closed(fault) = &closed else { panic!("{closed:?}") };
    assert_eq!(fault.field, "spec.databases[0].sqlite.path");
    assert!(fault.message.contains("platform.db can't be opened"), "{fault:?}");
    let only_ledger = plugin(json!({"ledger": [{"name": "audit", "ledger": "trail"}]}));
    grants(&capabilities, &only_ledger).await;

    let again = capabilities.reload_settings(&world.settings(), world.folder.path()).await.unwrap();
    assert_eq!(
        again.closed_entries(),
        std::slice::from_ref(fault),
        "an entry that was closed before may stay so"
    );
    std::fs::remove_file(&database).unwrap();
    let again = again.reload_settings(&world.settings(), world.folder.path()).await.unwrap();
    assert_eq!(again.closed_entries(), []);
    grants(&again, &everything()).await;
}

#[tokio::test]
async fn a_change_to_something_that_cannot_be_opened_is_refused_while_the_old_settings_run() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    std::fs::create_dir(world.folder.path().join("more.db")).unwrap();
    let mut changed = world.settings();
    changed
        .databases
        .push(serde_json::from_value(json!({"name": "more", "sqlite": {"path": "more.db"}})).unwrap());
    let faults = capabilities.reload_settings(&changed, world.folder.path()).await.err().unwrap();
    assert_eq!(faults[0].field, "spec.databases[1].sqlite.path");
}

#[tokio::test]
async fn changed_settings_share_what_stayed_the_same() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    let changed: HostSpec = serde_json::from_value(json!({
        "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
        "databases": [
            {"name": "platform", "sqlite": {"path": "platform.db"}},
            {"name": "more", "sqlite": {"path": "more.db"}},
        ],
        "ledgers": [{"name": "trail", "path": "audit/ledger.jsonl"}],
    }))
    .unwrap();
    let reloaded = capabilities.reload_settings(&changed, world.folder.path()).await.unwrap();
    session.commit_effects(&[1]).await.unwrap();
    assert_eq!(applied(&grants(&reloaded, &everything()).await, &[1]).await, [1]);
}

#[tokio::test]
async fn the_value_of_a_key_that_signs_a_ledger_is_no_plugins_key_under_another_name() {
    let world = SessionWorld::new();
    // A private key in PKCS#8.
    let key = |byte: u8| {
        let head = hex::decode("302e020100300506032b657004220420").unwrap();
        base64::engine::general_purpose::STANDARD.encode([head, vec![byte; 32]].concat())
    };
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", key(1));
    let file = |name: &str, text: &str| {
        let path = world.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        json!({"name": name, "valueFrom": {"file": path}})
    };
    let host: HostSpec = serde_json::from_value(json!({
        "sources": [],
        "ledgers": [{"name": "trail", "path": "sealed.jsonl", "signing": {"key": "seal"}}],
        "keys": [file("seal", &key(1)), file("twin", &pem), file("own", &key(2))],
    }))
    .unwrap();
    let capabilities = OpenCapabilities::open(&host, world.folder.path()).await.unwrap();
    let [fault] = &capabilities.closed_entries()[..] else { panic!("{:?}", capabilities.closed_entries()) };
    assert_eq!(fault.field, "spec.keys[1].valueFrom");
    assert!(fault.message.contains("the same value as the key `seal`"), "{fault:?}");
    let granted = |key: &str| plugin(json!({"keys": [{"name": "k", "key": key}]}));
    grants(&capabilities, &granted("own")).await;
    let refused = capabilities.grant_plugin("p", &granted("twin"), backing(0)).await.err().unwrap();
    assert!(matches!(refused, CapabilityError::Closed(_)), "{refused:?}");
}

//! Tests of the effects of one call, over the real capabilities.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::{HostSpec, PluginSpec, SqlAccess};
use kubewitness_core::index::Indexes;
use kubewitness_core::ports::{
    Current, Delivery, Documents, Grants, JournalError, Kept, Lister, Notes, OnConflict, SelectError,
    Selected, Selection,
};
use kubewitness_core::views::Counts;
use kubewitness_core::{Change, State, Version};
use serde_json::json;

use super::*;
use crate::{Backing, Capabilities, CapabilityError, Subscribed};

mod kills;
mod requests;
mod servers;

struct Papers;

#[async_trait]
impl Documents for Papers {
    async fn document(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        let variables = r#"[{"name":"HF_TOKEN","value":"hush"}]"#;
        Ok(Some(Bytes::from(format!(r#"{{"seq":{seq},"env":{variables}}}"#))))
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Err(JournalError::Fatal("/data/journal.db: page 7".into()))
    }

    async fn newest_of(&self, _: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        Ok(Vec::new())
    }
}

struct Cache;

#[async_trait]
impl Lister for Cache {
    fn get(&self, source: &str, _: &str, _: &str) -> Result<Option<Current>, SelectError> {
        self.select(source, &Selection::default()).map(|_| None)
    }

    fn select(&self, source: &str, selection: &Selection) -> Result<Selected, SelectError> {
        if source != "jobs" {
            return Err(SelectError::Source { source_name: source.into(), known: vec!["jobs".into()] });
        }
        if let Some((name, key)) = &selection.index {
            Indexes::new(&[]).key(name, key)?;
        }
        Ok(Selected::default())
    }

    fn tally(&self, _: &str, _: &Selection, _: &mut Counts) -> Result<(), SelectError> {
        Ok(())
    }

    fn count(&self, _: &str) -> usize {
        0
    }

    /// It never has what is at 99.
    async fn shows(&self, source: &str, seq: Seq) {
        if source == "jobs" && seq == 99 {
            std::future::pending::<()>().await;
        }
    }
}

/// The journal's part of a plugin's `kv`: what a kill leaves.
#[derive(Default)]
struct Paper {
    kept: Mutex<BTreeMap<String, Vec<u8>>>,
    later: Mutex<Vec<KvWrite>>,
    is_away: AtomicBool,
}

impl Paper {
    fn keep(&self, writes: &[KvWrite]) {
        let mut kept = self.kept.lock().unwrap();
        for KvWrite { key, value } in self.later.lock().unwrap().drain(..).chain(writes.iter().cloned()) {
            match value {
                Some(value) => drop(kept.insert(key, value)),
                None => drop(kept.remove(&key)),
            }
        }
    }

    /// After a kill.
    fn read(&self) -> Vec<(String, Vec<u8>)> {
        self.later.lock().unwrap().clear();
        self.kept.lock().unwrap().clone().into_iter().collect()
    }
}

#[async_trait]
impl Notes for Paper {
    async fn note(&self, _: &str, notes: Vec<KvWrite>, _: Kept) -> Result<(), JournalError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(JournalError::Unavailable("the disk is full".into()));
        }
        self.keep(&notes);
        Ok(())
    }

    fn note_later(&self, _: &str, notes: Vec<KvWrite>) {
        self.later.lock().unwrap().extend(notes);
    }
}

struct World {
    folder: tempfile::TempDir,
    paper: Arc<Paper>,
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), paper: Arc::default() }
    }

    fn ledger(&self) -> PathBuf {
        self.folder.path().join("audit/ledger.jsonl")
    }

    fn records(&self) -> String {
        std::fs::read_to_string(self.ledger()).unwrap()
    }

    fn settings(&self) -> HostSpec {
        serde_json::from_value(json!({
            "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
            "databases": [{"name": "platform", "sqlite": {"path": "platform.db"}}],
            "ledgers": [{"name": "trail", "path": "audit/ledger.jsonl"}],
        }))
        .unwrap()
    }

    async fn open(&self) -> Capabilities {
        Capabilities::open(&self.settings(), self.folder.path()).await.unwrap()
    }

    /// A plugin as a start finds it, after a kill of the process that had it before.
    async fn started(&self, capabilities: &Capabilities, spec: &PluginSpec) -> Arc<dyn Grants> {
        let notes = self.paper.clone();
        let backing = Backing { kv: self.paper.read(), notes, ..backing(0) };
        capabilities.grants("p", spec, backing).await.unwrap()
    }
}

fn plugin(grants: impl serde::Serialize) -> PluginSpec {
    serde_json::from_value(json!({
        "module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}], "grants": grants, "config": {"a": 1},
    }))
    .unwrap()
}

fn everything() -> PluginSpec {
    plugin(json!({
        "sql": [{"name": "main", "database": "platform"}],
        "ledger": [{"name": "audit", "ledger": "trail"}],
        "kv": true,
        "lister": ["jobs"],
    }))
}

fn backing(cursor: Seq) -> Backing {
    Backing {
        documents: Arc::new(Papers),
        lister: Arc::new(Cache),
        subscribed: Subscribed::of([Some(("batch".to_owned(), "Job".to_owned()))]),
        clock: Arc::new(SystemClock::default()),
        uses: Arc::default(),
        kv: vec![("seen".into(), b"1".to_vec())],
        told: Default::default(),
        notes: Arc::new(Paper::default()),
        version: "v1".into(),
        cursor,
        newest: cursor,
    }
}

async fn grants(capabilities: &Capabilities, spec: &PluginSpec) -> Arc<dyn Grants> {
    capabilities.grants("p", spec, backing(0)).await.unwrap()
}

fn delivery(seq: Seq, id: &str) -> Delivery {
    let state = State {
        id: StateId::parse(id),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change: Change::Present,
        object: Arc::default(),
        owner: None,
        resource_version: Version::new("1"),
        status: Arc::default(),
        previous: None,
        observed_ms: 0,
        late: false,
    };
    Delivery { state: Arc::new(state), attempt: 1, resync: false }
}

fn batch(seqs: &[Seq]) -> Vec<Delivery> {
    seqs.iter().map(|seq| delivery(*seq, &format!("id-{seq}"))).collect()
}

fn rows(seqs: &[Seq]) -> TableWrite {
    TableWrite {
        table: "t".into(),
        columns: vec!["seq".into()],
        key: vec!["seq".into()],
        on_conflict: OnConflict::Ignore,
        rows: seqs.iter().map(|seq| vec![SqlValue::Integer(*seq as i64)]).collect(),
    }
}

const CREATE: &str = "CREATE TABLE IF NOT EXISTS t (seq INTEGER PRIMARY KEY)";

async fn insert(session: &mut Box<dyn Session>, seqs: &[Seq]) {
    session.sql_execute("main", CREATE, vec![vec![]]).await.unwrap();
    session.sql_write("main", rows(seqs), None).await.unwrap();
}

async fn stored(grants: &Arc<dyn Grants>) -> usize {
    let mut session = grants.open(&[]).await.unwrap();
    session.sql_execute("main", CREATE, vec![vec![]]).await.unwrap();
    let rows = session.sql_query("main", "SELECT seq FROM t", vec![]).await.unwrap();
    session.rollback().await;
    rows.len()
}

async fn applied(grants: &Arc<dyn Grants>, seqs: &[Seq]) -> Vec<Seq> {
    let session = grants.open(&batch(seqs)).await.unwrap();
    let mut applied: Vec<_> = session.applied().iter().copied().collect();
    session.rollback().await;
    applied.sort_unstable();
    applied
}

#[tokio::test]
async fn what_was_done_is_applied_and_what_was_not_comes_again() {
    let world = World::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1, 2, 3])).await.unwrap();
    insert(&mut session, &[1, 3]).await;
    session.commit(&[3, 1]).await.unwrap();
    assert_eq!(applied(&plugin, &[1, 2, 3]).await, [1, 3]);
    drop((plugin, capabilities));
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    assert_eq!(applied(&plugin, &[1, 2, 3]).await, [1, 3]);
    // Another journal's state at the same position.
    let session = plugin.open(&[delivery(1, "other")]).await.unwrap();
    assert!(session.applied().is_empty());
}

#[tokio::test]
async fn a_receipt_belongs_to_its_plugin_and_goes_behind_the_cursor() {
    let world = World::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1, 9000])).await.unwrap();
    insert(&mut session, &[1, 9000]).await;
    session.commit(&[1, 9000]).await.unwrap();
    let other = capabilities.grants("q", &everything(), backing(0)).await.unwrap();
    assert_eq!(applied(&other, &[1, 9000]).await, [] as [Seq; 0]);
    capabilities.prune("p", 9000).await.unwrap();
    assert_eq!(applied(&plugin, &[1, 9000]).await, [] as [Seq; 0]);
    drop((plugin, other, capabilities));
    let capabilities = world.open().await;
    assert_eq!(applied(&grants(&capabilities, &everything()).await, &[1, 9000]).await, [] as [Seq; 0]);
}

#[tokio::test]
async fn rolled_back_means_nothing_anywhere() {
    let world = World::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
    session.kv_set("seen", b"2".to_vec()).unwrap();
    session.rollback().await;
    assert_eq!((stored(&plugin).await, world.records()), (0, String::new()));
    let session = plugin.open(&batch(&[1])).await.unwrap();
    assert_eq!((session.applied().len(), session.kv_get("seen")), (0, Some(b"1".to_vec())));
}

#[tokio::test]
async fn a_ledger_alone_keeps_its_own_receipt() {
    let world = World::new();
    let spec = plugin(json!({"ledger": [{"name": "audit", "ledger": "trail"}]}));
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &spec).await;
    let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
    assert_eq!(session.ledger_last("audit").await, Ok(None));
    assert_eq!(session.ledger_append("audit", vec![b"one".to_vec(), b"two".to_vec()]).await, Ok(2));
    assert_eq!(session.ledger_last("audit").await, Ok(Some(b"two".to_vec())));
    assert_eq!(world.records(), "", "nothing before the commit");
    session.commit(&[1, 2]).await.unwrap();
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
    let world = World::new();
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
            session.commit(&[seq]).await.unwrap();
        }
    };
    futures::future::join_all((1..=20).map(chain)).await;
    let expected: String = (1..=20).map(|n| format!("{n}\n")).collect();
    assert_eq!(world.records(), expected);
}

/// Killed after the ledger's records are on disk, before or after the rows are committed.
#[tokio::test]
async fn the_database_decides_for_the_ledger_after_a_crash() {
    for commit in [false, true] {
        let world = World::new();
        let capabilities = world.open().await;
        let plugin = grants(&capabilities, &everything()).await;
        let mut session = plugin.open(&batch(&[1])).await.unwrap();
        insert(&mut session, &[1]).await;
        session.commit(&[1]).await.unwrap();
        let granted =
            Arc::clone(&capabilities.resolve("p", &everything(), &backing(0)).map(Arc::new).unwrap());
        let mut call = CallSession::new(granted, HashMapOf::batch(&[2]), HashSet::new(), None);
        call.sql_write("main", rows(&[2]), None).await.unwrap();
        call.ledger_append("audit", vec![b"two".to_vec()]).await.unwrap();
        let receipt = call.receipt(call.marks(&[2]).unwrap()).unwrap();
        let written = call.write_ledger(&receipt).await.unwrap();
        assert_eq!(world.records(), "two\n");
        if commit {
            call.sql.take().unwrap().commit(&receipt).await.unwrap();
        }
        drop((written, call, plugin, capabilities));
        let capabilities = world.open().await;
        let plugin = grants(&capabilities, &everything()).await;
        let expected: (&[Seq], &str, usize) = if commit { (&[1, 2], "two\n", 2) } else { (&[1], "", 1) };
        let found = (applied(&plugin, &[1, 2]).await, world.records(), stored(&plugin).await);
        assert_eq!((found.0.as_slice(), found.1.as_str(), found.2), expected);
    }
}

struct HashMapOf;

impl HashMapOf {
    fn batch(seqs: &[Seq]) -> Batch {
        batch(seqs).iter().map(|one| (one.state.seq, Mark::of(&one.state))).collect()
    }
}

#[tokio::test]
async fn a_failed_commit_takes_the_ledgers_records_back() {
    let world = World::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    // Only checked when the transaction ends.
    let parent = "CREATE TABLE c (p INTEGER REFERENCES t (seq) DEFERRABLE INITIALLY DEFERRED)";
    session.sql_execute("main", parent, vec![vec![]]).await.unwrap();
    session.sql_execute("main", "INSERT INTO c VALUES (77)", vec![vec![]]).await.unwrap();
    session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
    let refused = session.commit(&[1]).await;
    assert!(matches!(&refused, Err(GrantError::Invalid(why)) if why.contains("FOREIGN KEY")), "{refused:?}");
    assert_eq!(applied(&plugin, &[1]).await, [] as [Seq; 0]);
    assert_eq!((stored(&plugin).await, world.records()), (0, String::new()));
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    assert_eq!(session.ledger_append("audit", vec![b"one".to_vec()]).await, Ok(1));
    session.commit(&[1]).await.unwrap();
    assert_eq!((applied(&plugin, &[1]).await, world.records()), (vec![1], "one\n".to_owned()));
}

#[tokio::test]
async fn kv_is_handed_back_by_the_commit_and_seen_by_the_next_call() {
    let world = World::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    session.kv_set("new", b"x".to_vec()).unwrap();
    session.kv_delete("seen").unwrap();
    let writes = session.commit(&[1]).await.unwrap();
    assert_eq!(writes.len(), 2);
    assert!(writes.contains(&KvWrite { key: "seen".into(), value: None }));
    let session = plugin.open(&batch(&[2])).await.unwrap();
    assert_eq!(session.kv_keys("", 10), ["new"]);
    assert_eq!(applied(&plugin, &[1]).await, [] as [Seq; 0], "nothing that a repeat could do twice");
}

#[tokio::test]
async fn kv_of_a_call_with_a_receipt_is_there_after_a_kill_before_the_progress_is_saved() {
    for effect in ["rows", "records"] {
        let world = World::new();
        let capabilities = world.open().await;
        let killed = world.started(&capabilities, &everything()).await;
        let mut session = killed.open(&batch(&[1])).await.unwrap();
        match effect {
            "rows" => insert(&mut session, &[1]).await,
            _ => drop(session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap()),
        }
        session.kv_set("new", b"x".to_vec()).unwrap();
        // The kill: what the commit hands back never gets to the journal.
        drop(session.commit(&[1]).await.unwrap());
        drop((killed, capabilities));
        let capabilities = world.open().await;
        let plugin = world.started(&capabilities, &everything()).await;
        let session = plugin.open(&batch(&[1, 2])).await.unwrap();
        assert!(session.applied().contains(&1), "{effect}");
        assert_eq!(session.kv_get("new"), Some(b"x".to_vec()), "{effect}");
        let writes = session.commit(&[]).await.unwrap();
        assert!(writes.contains(&KvWrite { key: "new".into(), value: Some(b"x".to_vec()) }), "{writes:?}");
        world.paper.keep(&writes);
        let left = world.paper.read();
        assert_eq!(left, [("new".to_owned(), b"x".to_vec())], "the save removes the note");
    }
}

#[tokio::test]
async fn kv_of_a_call_whose_commit_failed_is_not_there_after_a_kill() {
    let world = World::new();
    let capabilities = world.open().await;
    let killed = world.started(&capabilities, &everything()).await;
    let mut session = killed.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    let parent = "CREATE TABLE c (p INTEGER REFERENCES t (seq) DEFERRABLE INITIALLY DEFERRED)";
    session.sql_execute("main", parent, vec![vec![]]).await.unwrap();
    session.sql_execute("main", "INSERT INTO c VALUES (77)", vec![vec![]]).await.unwrap();
    session.kv_set("new", b"undone".to_vec()).unwrap();
    session.commit(&[1]).await.unwrap_err();
    let mut session = killed.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    drop(session.commit(&[1]).await.unwrap());
    drop((killed, capabilities));
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &everything()).await;
    let session = plugin.open(&batch(&[1])).await.unwrap();
    assert!(session.applied().contains(&1));
    assert_eq!(session.kv_get("new"), None);
    world.paper.keep(&session.commit(&[]).await.unwrap());
    assert_eq!(world.paper.read(), [], "no note is left");
}

#[tokio::test]
async fn nothing_is_committed_while_the_journal_can_not_note_it() {
    let world = World::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &everything()).await;
    world.paper.is_away.store(true, Ordering::Relaxed);
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    session.kv_set("new", b"x".to_vec()).unwrap();
    assert!(matches!(session.commit(&[1]).await, Err(GrantError::Unavailable(_))));
    assert_eq!((applied(&plugin, &[1]).await, stored(&plugin).await), (vec![], 0));
}

#[tokio::test]
async fn what_was_not_granted_says_which_grant_to_add() {
    let world = World::new();
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
    assert_eq!(plugin.config(), r#"{"a":1}"#);
}

#[tokio::test]
async fn documents_are_those_of_this_call_and_errors_name_no_files() {
    let world = World::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    assert!(session.document(1).await.unwrap().unwrap().starts_with(br#"{"seq":1,"#));
    assert!(matches!(session.document(2).await, Err(GrantError::Invalid(_))));
    let error = session.document_before(1).await.unwrap_err();
    assert!(!error.to_string().contains("journal.db"), "{error}");
}

#[tokio::test]
async fn settings_that_point_nowhere_are_faults_of_their_fields() {
    let world = World::new();
    let spec = plugin(json!({"sql": [{"name": "main", "database": "other"}]}));
    let error = world.open().await.grants("p", &spec, backing(0)).await.err().unwrap();
    assert!(matches!(error, CapabilityError::Manifest(fault) if fault.field == "spec.grants.sql[0]"));
    // Of another kind of database than it is said to be.
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
    let capabilities = Capabilities::open(&host, world.folder.path()).await.unwrap();
    let faults = capabilities.closed();
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
    let world = World::new();
    let database = world.folder.path().join("platform.db");
    std::fs::write(&database, "this is no database, and long enough to be looked at").unwrap();
    let capabilities = world.open().await;
    let closed = capabilities.grants("p", &everything(), backing(0)).await.err().unwrap();
    let CapabilityError::Closed(fault) = &closed else { panic!("{closed:?}") };
    assert_eq!(fault.field, "spec.databases[0].sqlite.path");
    assert!(fault.message.contains("platform.db can't be opened"), "{fault:?}");
    let only_ledger = plugin(json!({"ledger": [{"name": "audit", "ledger": "trail"}]}));
    grants(&capabilities, &only_ledger).await;

    let again = capabilities.reload(&world.settings(), world.folder.path()).await.unwrap();
    assert_eq!(again.closed(), std::slice::from_ref(fault), "an entry that was closed before may stay so");
    std::fs::remove_file(&database).unwrap();
    let again = again.reload(&world.settings(), world.folder.path()).await.unwrap();
    assert_eq!(again.closed(), []);
    grants(&again, &everything()).await;
}

#[tokio::test]
async fn a_change_to_something_that_cannot_be_opened_is_refused_while_the_old_settings_run() {
    let world = World::new();
    let capabilities = world.open().await;
    std::fs::create_dir(world.folder.path().join("more.db")).unwrap();
    let mut changed = world.settings();
    changed
        .databases
        .push(serde_json::from_value(json!({"name": "more", "sqlite": {"path": "more.db"}})).unwrap());
    let faults = capabilities.reload(&changed, world.folder.path()).await.err().unwrap();
    assert_eq!(faults[0].field, "spec.databases[1].sqlite.path");
}

#[tokio::test]
async fn changed_settings_share_what_stayed_the_same() {
    let world = World::new();
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
    let reloaded = capabilities.reload(&changed, world.folder.path()).await.unwrap();
    session.commit(&[1]).await.unwrap();
    assert_eq!(applied(&grants(&reloaded, &everything()).await, &[1]).await, [1]);
}

#[test]
fn an_unknown_index_is_invalid_and_a_source_that_does_not_run_unavailable() {
    let granted = crate::objects::lister::Granted::new(
        Arc::new(Cache),
        &["jobs".to_string(), "pods".to_string()],
        None,
    );
    assert_eq!(granted.list("jobs", "", "", 9), Ok(vec![]));
    assert_eq!(granted.list("jobs", "label", "team=vision", 9), Ok(vec![]));
    let known = "there is no index `rack`; this source has namespace, owner, node, label";
    assert_eq!(granted.list("jobs", "rack", "7", 9), Err(GrantError::Invalid(known.into())));
    let label = granted.list("jobs", "label", "team", 9);
    assert!(matches!(label, Err(GrantError::Invalid(why)) if why.contains("`key=value`")));
    assert!(matches!(granted.list("pods", "", "", 9), Err(GrantError::Unavailable(_))));
    assert!(matches!(granted.list("nodes", "", "", 9), Err(GrantError::Denied(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_the_cache_to_show_its_states_and_no_longer_than_a_moment() {
    let granted = crate::objects::lister::Granted::new(Arc::new(Cache), &["jobs".to_string()], None);
    assert_eq!(granted.shows(&[delivery(98, "a")]).await, Ok(()));
    let late = granted.shows(&[delivery(98, "a"), delivery(99, "b")]).await;
    assert!(matches!(late, Err(GrantError::Unavailable(why)) if why.contains("`jobs`")));
    let elsewhere = crate::objects::lister::Granted::new(Arc::new(Cache), &["pods".to_string()], None);
    assert_eq!(elsewhere.shows(&[delivery(99, "b")]).await, Ok(()));
}

async fn document_for(capabilities: &Capabilities, granted: serde_json::Value) -> String {
    let grants = grants(capabilities, &plugin(granted)).await;
    let mut session = grants.open(&batch(&[1])).await.unwrap();
    let document = session.document(1).await.unwrap().unwrap();
    session.rollback().await;
    String::from_utf8(document.to_vec()).unwrap()
}

#[tokio::test]
async fn a_plugin_reads_digests_in_the_place_of_secrets_unless_it_is_granted_raw_documents() {
    let world = World::new();
    let redacted = document_for(&world.open().await, json!({})).await;
    assert!(redacted.starts_with(r#"{"seq":1,"env":[{"name":"HF_TOKEN","value":"redacted:"#), "{redacted}");
    assert!(!redacted.contains("hush"));
    // The key lies in the data folder: a digest is the same after a restart, and another elsewhere.
    assert_eq!(document_for(&world.open().await, json!({"documents": "redacted"})).await, redacted);
    assert_ne!(document_for(&World::new().open().await, json!({})).await, redacted);
    assert!(document_for(&world.open().await, json!({"documents": "raw"})).await.contains("hush"));
}

#[tokio::test]
async fn a_plugin_gets_the_digest_of_raw_bytes_only_with_a_grant_for_it() {
    let world = World::new();
    let raw = document_for(&world.open().await, json!({"documents": "raw"})).await;
    let expected = hex::encode(ring::digest::digest(&ring::digest::SHA256, raw.as_bytes()));
    for (granted, digest) in [
        (json!({}), None),
        (json!({"documents": "digest"}), Some(&expected)),
        (json!({"documents": "raw"}), Some(&expected)),
    ] {
        let grants = grants(&world.open().await, &plugin(granted)).await;
        let states = batch(&[1]);
        let mut session = grants.open(&states).await.unwrap();
        assert_eq!(session.show(&states[0].state).await.unwrap().document_digest.as_ref(), digest);
        session.rollback().await;
    }
    assert!(!document_for(&world.open().await, json!({"documents": "digest"})).await.contains("hush"));
}

#[tokio::test]
async fn a_plugin_is_told_where_it_will_never_hear_of_the_owner() {
    let world = World::new();
    let grants = grants(&world.open().await, &plugin(json!({}))).await;
    let batch = batch(&[1]);
    let mut session = grants.open(&batch).await.unwrap();
    for (kind, expected) in [(None, true), (Some("Job"), true), (Some("JobSet"), false)] {
        let owner = |kind: &str| {
            Arc::new(ObjectRef { group: "batch".into(), kind: kind.into(), ..ObjectRef::default() })
        };
        let state = Arc::new(State { owner: kind.map(owner), ..(*batch[0].state).clone() });
        assert_eq!(session.show(&state).await.unwrap().has_subscribed_owner, expected, "{kind:?}");
    }
    session.rollback().await;
}

#[tokio::test]
async fn the_use_of_whole_documents_is_to_read_one_and_that_of_digests_is_to_be_handed_one() {
    let world = World::new();
    for (granted, shown, read) in [("raw", 0, 1), ("digest", 1, 1), ("redacted", 0, 0)] {
        let spec = plugin(json!({"documents": granted}));
        let uses = Arc::new(uses::Uses::of(&spec.grants));
        let backing = Backing { uses: uses.clone(), ..backing(0) };
        let grants = world.open().await.grants("p", &spec, backing).await.unwrap();
        let states = batch(&[1]);
        let mut session = grants.open(&states).await.unwrap();
        let calls = || uses.all().map(|(_, calls)| calls).sum::<u64>();
        session.show(&states[0].state).await.unwrap();
        assert_eq!(calls(), shown, "{granted}");
        session.document(1).await.unwrap();
        assert_eq!(calls(), read, "{granted}");
        session.rollback().await;
    }
}

#[tokio::test]
async fn without_a_redaction_key_only_plugins_that_may_see_secrets_are_called_and_the_others_wait_for_it() {
    let world = World::new();
    let place = world.folder.path().join("redaction.key");
    std::fs::create_dir(&place).unwrap();
    let capabilities = world.open().await;
    let faults = capabilities.closed();
    assert!(faults.len() == 1 && faults[0].message.contains("the redaction key can't be read"), "{faults:?}");
    let waiting = grants(&capabilities, &plugin(json!({}))).await;
    let refused = waiting.open(&batch(&[1])).await.err().unwrap();
    assert!(matches!(&refused, GrantError::Unavailable(why) if why.contains("Move away")), "{refused:?}");
    assert!(document_for(&capabilities, json!({"documents": "raw"})).await.contains("hush"));

    std::fs::remove_dir(&place).unwrap();
    let again = capabilities.reload(&world.settings(), world.folder.path()).await.unwrap();
    assert_eq!(again.closed(), []);
    waiting.open(&batch(&[1])).await.unwrap().rollback().await;
}

#[tokio::test]
async fn a_request_in_a_tick_ends_before_the_tick_is_cut_off() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new();
    let mut settings = world.settings();
    let url = format!("http://{}", silent.local_addr().unwrap());
    settings.destinations.push(kubewitness_core::config::DestinationSpec::of("people", &url));
    let capabilities = Capabilities::open(&settings, world.folder.path()).await.unwrap();
    let mut spec = plugin(json!({"http": [{"name": "people", "destination": "people"}], "kv": true}));
    spec.tick = Some(serde_json::from_value(json!({"every": "10s", "timeout": "800ms"})).unwrap());
    let plugin = grants(&capabilities, &spec).await;
    let mut tick = plugin.open(&[]).await.unwrap();
    let begun = std::time::Instant::now();
    let request =
        || HttpRequest { method: "POST".into(), path: String::new(), headers: vec![], body: vec![] };
    for _ in 0..3 {
        let cut = tick.http_send("people", request()).await;
        assert!(
            matches!(&cut, Err(GrantError::Timeout(why)) if why.contains("the tick had left")),
            "{cut:?}"
        );
    }
    assert!(begun.elapsed() < Duration::from_millis(800), "the plugin has time to note what it sent");
    tick.kv_set("told", b"1".to_vec()).unwrap();
    assert_eq!(tick.commit(&[]).await.unwrap().len(), 1);
}

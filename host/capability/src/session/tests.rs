//! Tests of the effects of one call, over the real capabilities.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::{HostSpec, PluginSpec, SqlAccess};
use kubewitness_core::index::IndexSet;
use kubewitness_core::ports::{
    CurrentObject, DocumentReader, GrantProvider, JournalError, NoOutcomes, NoteDurability, NoteStore,
    ObjectLister, ObjectSelection, OnConflict, SelectError, SelectedObjects, StateDelivery,
};
use kubewitness_core::views::ObjectCounts;
use kubewitness_core::{Change, State, Version};
use serde_json::json;

use super::*;
use crate::receipts::ReceiptMark;
use crate::{CapabilityError, OpenCapabilities, PluginServices, StartPositions, SubscribedKinds};

mod documents;
mod kills;
mod ledgers;
mod losses;
mod outcomes;
mod requests;
mod returns;
mod servers;
mod settings;
mod turns;

struct SessionPapers;

#[async_trait]
impl DocumentReader for SessionPapers {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
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

struct EmptyCache;

#[async_trait]
impl ObjectLister for EmptyCache {
    fn get(&self, source: &str, _: &str, _: &str) -> Result<Option<CurrentObject>, SelectError> {
        self.select_objects(source, &ObjectSelection::default()).map(|_| None)
    }

    fn select_objects(
        &self,
        source: &str,
        selection: &ObjectSelection,
    ) -> Result<SelectedObjects, SelectError> {
        if source != "jobs" {
            return Err(SelectError::Source { source_name: source.into(), known: vec!["jobs".into()] });
        }
        if let Some((name, key)) = &selection.index {
            IndexSet::new(&[]).key(name, key)?;
        }
        Ok(SelectedObjects::default())
    }

    fn tally_objects(&self, _: &str, _: &ObjectSelection, _: &mut ObjectCounts) -> Result<(), SelectError> {
        Ok(())
    }

    fn count(&self, _: &str) -> usize {
        0
    }

    /// Waits until the state is shown. The state at 99 never is.
    async fn await_shown(&self, source: &str, seq: Seq) {
        if source == "jobs" && seq == 99 {
            std::future::pending::<()>().await;
        }
    }
}

/// The journal's part of a plugin's `kv`, which survives a kill.
#[derive(Default)]
struct KvPaper {
    kept: Mutex<BTreeMap<String, Vec<u8>>>,
    later: Mutex<Vec<KvWrite>>,
    is_away: AtomicBool,
}

impl KvPaper {
    fn keep(&self, writes: &[KvWrite]) {
        let mut kept = self.kept.lock().unwrap();
        for KvWrite { key, value } in self.later.lock().unwrap().drain(..).chain(writes.iter().cloned()) {
            match value {
                Some(value) => drop(kept.insert(key, value)),
                None => drop(kept.remove(&key)),
            }
        }
    }

    /// The content after a kill.
    fn read(&self) -> Vec<(String, Vec<u8>)> {
        self.later.lock().unwrap().clear();
        self.kept.lock().unwrap().clone().into_iter().collect()
    }
}

#[async_trait]
impl NoteStore for KvPaper {
    async fn save_notes(&self, _: &str, notes: Vec<KvWrite>, _: NoteDurability) -> Result<(), JournalError> {
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

struct SessionWorld {
    folder: tempfile::TempDir,
    paper: Arc<KvPaper>,
}

impl SessionWorld {
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

    async fn open(&self) -> OpenCapabilities {
        OpenCapabilities::open(&self.settings(), self.folder.path()).await.unwrap()
    }

    /// A plugin as a start loads it after its previous process was killed.
    async fn started(&self, capabilities: &OpenCapabilities, spec: &PluginSpec) -> Arc<dyn GrantProvider> {
        let notes = self.paper.clone();
        let backing = PluginServices { kv: self.paper.read(), notes, ..backing(0) };
        capabilities.grant_plugin("p", spec, backing).await.unwrap()
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

fn backing(cursor: Seq) -> PluginServices {
    PluginServices {
        documents: Arc::new(SessionPapers),
        lister: Arc::new(EmptyCache),
        outcomes: Arc::new(NoOutcomes),
        subscribed: SubscribedKinds::of([Some(("batch".to_owned(), "Job".to_owned()))]),
        clock: Arc::new(SystemClock::default()),
        uses: Arc::default(),
        kv: vec![("seen".into(), b"1".to_vec())],
        shared_mutes: Default::default(),
        reports: Default::default(),
        notes: Arc::new(KvPaper::default()),
        version: "v1".into(),
        positions: StartPositions { cursor, furthest_cursor: cursor, furthest: cursor, newest: cursor },
    }
}

async fn grants(capabilities: &OpenCapabilities, spec: &PluginSpec) -> Arc<dyn GrantProvider> {
    capabilities.grant_plugin("p", spec, backing(0)).await.unwrap()
}

fn delivery(seq: Seq, id: &str) -> StateDelivery {
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
        quotes_none_under: None,
    };
    StateDelivery { state: Arc::new(state), attempt: 1, resync: false }
}

fn batch(seqs: &[Seq]) -> Vec<StateDelivery> {
    seqs.iter().map(|seq| delivery(*seq, &format!("id-{seq}"))).collect()
}

/// The same states in the form of the session.
fn marks(seqs: &[Seq]) -> CallBatch {
    batch(seqs).iter().map(|delivery| (delivery.state.seq, ReceiptMark::of(&delivery.state))).collect()
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

async fn insert(session: &mut Box<dyn EffectSession>, seqs: &[Seq]) {
    session.sql_execute("main", CREATE, vec![vec![]]).await.unwrap();
    session.sql_write("main", rows(seqs), None).await.unwrap();
}

async fn stored(grants: &Arc<dyn GrantProvider>) -> usize {
    let mut session = grants.open(&[]).await.unwrap();
    session.sql_execute("main", CREATE, vec![vec![]]).await.unwrap();
    let rows = session.sql_query("main", "SELECT seq FROM t", vec![]).await.unwrap();
    session.roll_back_effects().await;
    rows.len()
}

async fn applied(grants: &Arc<dyn GrantProvider>, seqs: &[Seq]) -> Vec<Seq> {
    applied_of(grants, batch(seqs)).await
}

/// The same, with states that a resync delivers again.
async fn applied_again(grants: &Arc<dyn GrantProvider>, seqs: &[Seq]) -> Vec<Seq> {
    let batch = batch(seqs).into_iter().map(|delivery| StateDelivery { resync: true, ..delivery }).collect();
    applied_of(grants, batch).await
}

async fn applied_of(grants: &Arc<dyn GrantProvider>, batch: Vec<StateDelivery>) -> Vec<Seq> {
    let session = grants.open(&batch).await.unwrap();
    let mut applied: Vec<_> = session.applied_states().iter().copied().collect();
    session.roll_back_effects().await;
    applied.sort_unstable();
    applied
}

#[tokio::test]
async fn what_was_done_is_applied_and_what_was_not_comes_again() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1, 2, 3])).await.unwrap();
    insert(&mut session, &[1, 3]).await;
    session.commit_effects(&[3, 1]).await.unwrap();
    assert_eq!(applied(&plugin, &[1, 2, 3]).await, [1, 3]);
    drop((plugin, capabilities));
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    assert_eq!(applied(&plugin, &[1, 2, 3]).await, [1, 3]);
    // Another journal has another state at this position.
    let session = plugin.open(&[delivery(1, "other")]).await.unwrap();
    assert!(session.applied_states().is_empty());
}

#[tokio::test]
async fn a_receipt_belongs_to_its_plugin_and_goes_behind_the_cursor() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1, 9000])).await.unwrap();
    insert(&mut session, &[1, 9000]).await;
    session.commit_effects(&[1, 9000]).await.unwrap();
    let other = capabilities.grant_plugin("q", &everything(), backing(0)).await.unwrap();
    assert_eq!(applied(&other, &[1, 9000]).await, [] as [Seq; 0]);
    let minute = Duration::from_secs(60);
    capabilities.prune_receipts("p", 9000, minute).await.unwrap();
    assert_eq!(
        applied_again(&plugin, &[1, 9000]).await,
        [] as [Seq; 0],
        "what is asked for again is done again"
    );
    assert_eq!(applied(&plugin, &[1, 9000]).await, [1, 9000], "what is owed is done once");
    // A journal that lost its newest commits gives the same state another position.
    let moved = [delivery(9001, "id-9000")];
    assert_eq!(plugin.open(&moved).await.unwrap().applied_states().len(), 1);
    let owed = kubewitness_core::ports::DurableCursor { cursor: 9000, receipts_from: Some(1) };
    capabilities.prune_receipts("p", owed, minute * 10).await.unwrap();
    assert_eq!(
        plugin.open(&moved).await.unwrap().applied_states().len(),
        1,
        "it may be applied, and not yet finished"
    );
    capabilities.prune_receipts("p", 9000, minute * 20).await.unwrap();
    assert!(plugin.open(&moved).await.unwrap().applied_states().is_empty(), "minutes later it is gone");
    drop((plugin, other, capabilities));
    let capabilities = world.open().await;
    let again = applied(&grants(&capabilities, &everything()).await, &[1, 9000]).await;
    assert_eq!(again, [1, 9000], "the database keeps the newest commits");
}

/// The past of a source that was added to a running plugin is before positions that its cursor has passed.
#[tokio::test]
async fn receipts_of_a_past_stay_while_a_cursor_that_went_back_has_not_passed_them_again() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let far = 10_000_000;
    drop(capabilities.grant_plugin("p", &everything(), backing(far)).await.unwrap());
    let minute = Duration::from_secs(60);
    capabilities.prune_receipts("p", far, minute).await.unwrap();
    let plugin = capabilities.grant_plugin("p", &everything(), backing(5)).await.unwrap();
    let mut session = plugin.open(&batch(&[7, 9000])).await.unwrap();
    insert(&mut session, &[7, 9000]).await;
    session.commit_effects(&[7, 9000]).await.unwrap();
    capabilities.prune_receipts("p", 8, minute * 10).await.unwrap();
    assert_eq!(applied_again(&plugin, &[7, 9000]).await, [9000]);
    drop((plugin, capabilities));
    let capabilities = world.open().await;
    let plugin = capabilities.grant_plugin("p", &everything(), backing(5)).await.unwrap();
    assert_eq!(applied(&plugin, &[7, 9000]).await, [7, 9000], "nothing was removed");
    for later in 1..=2 {
        capabilities.prune_receipts("p", far, minute * later).await.unwrap();
    }
    assert_eq!(applied(&plugin, &[7, 9000]).await, [] as [Seq; 0]);
}

/// The caller asks the dispatcher before it removes receipts, and the dispatcher may continue before they are
/// removed.
#[tokio::test]
async fn the_receipt_of_an_owed_state_stays_although_the_cursor_was_read_before_it_was_handed_over() {
    let (world, minute) = (SessionWorld::new(), Duration::from_secs(60));
    let capabilities = world.open().await;
    let far = 10_000_000;
    let plugin = capabilities.grant_plugin("p", &everything(), backing(far)).await.unwrap();
    let mut session = plugin.open(&batch(&[7])).await.unwrap();
    insert(&mut session, &[7]).await;
    session.commit_effects(&[7]).await.unwrap();
    capabilities.prune_receipts("p", far, minute).await.unwrap();
    drop((plugin, capabilities));
    let capabilities = world.open().await;
    assert_eq!(applied(&grants(&capabilities, &everything()).await, &[7]).await, [7]);
}

#[tokio::test]
async fn rolled_back_means_nothing_anywhere() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
    session.kv_set("seen", b"2".to_vec()).unwrap();
    session.roll_back_effects().await;
    assert_eq!((stored(&plugin).await, world.records()), (0, String::new()));
    let session = plugin.open(&batch(&[1])).await.unwrap();
    assert_eq!((session.applied_states().len(), session.kv_get("seen")), (0, Some(b"1".to_vec())));
}

#[tokio::test]
async fn a_call_whose_states_are_not_all_done_keeps_nothing_however_often_it_comes() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    for settled in [&[][..], &[1, 2]] {
        let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
        session
            .sql_execute("main", "CREATE TABLE IF NOT EXISTS log (seq INTEGER)", vec![vec![]])
            .await
            .unwrap();
        let row = vec![vec![SqlValue::Integer(1)]];
        session.sql_execute("main", "INSERT INTO log (seq) VALUES (?)", row).await.unwrap();
        insert(&mut session, &[1, 2]).await;
        session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
        session.kv_set("seen", b"2".to_vec()).unwrap();
        assert_eq!(*session.undo_effects(settled).await.unwrap(), []);
    }
    assert_eq!((stored(&plugin).await, world.records()), (0, String::new()));
    let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
    assert_eq!((session.applied_states().len(), session.kv_get("seen")), (0, Some(b"1".to_vec())));
    session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
    session.commit_effects(&[1, 2]).await.unwrap();
    assert_eq!(world.records(), "one\n");
}

#[tokio::test]
async fn kv_is_handed_back_by_the_commit_and_seen_by_the_next_call() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    session.kv_set("new", b"x".to_vec()).unwrap();
    session.kv_delete("seen").unwrap();
    let writes = session.commit_effects(&[1]).await.unwrap();
    assert_eq!(writes.len(), 2);
    assert!(writes.contains(&KvWrite { key: "seen".into(), value: None }));
    let session = plugin.open(&batch(&[2])).await.unwrap();
    assert_eq!(session.kv_keys("", 10), ["new"]);
    assert_eq!(applied(&plugin, &[1]).await, [] as [Seq; 0], "nothing that a repeat could do twice");
}

#[tokio::test]
async fn kv_of_a_call_with_a_receipt_is_there_after_a_kill_before_the_progress_is_saved() {
    for effect in ["rows", "records"] {
        let world = SessionWorld::new();
        let capabilities = world.open().await;
        let killed = world.started(&capabilities, &everything()).await;
        let mut session = killed.open(&batch(&[1])).await.unwrap();
        match effect {
            "rows" => insert(&mut session, &[1]).await,
            _ => drop(session.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap()),
        }
        session.kv_set("new", b"x".to_vec()).unwrap();
        // The kill: the effects of the commit never reach the journal.
        drop(session.commit_effects(&[1]).await.unwrap());
        drop((killed, capabilities));
        let capabilities = world.open().await;
        let plugin = world.started(&capabilities, &everything()).await;
        let session = plugin.open(&batch(&[1, 2])).await.unwrap();
        assert!(session.applied_states().contains(&1), "{effect}");
        assert_eq!(session.kv_get("new"), Some(b"x".to_vec()), "{effect}");
        let writes = session.commit_effects(&[]).await.unwrap();
        assert!(writes.contains(&KvWrite { key: "new".into(), value: Some(b"x".to_vec()) }), "{writes:?}");
        world.paper.keep(&writes);
        let left = world.paper.read();
        assert_eq!(left, [("new".to_owned(), b"x".to_vec())], "the save removes the note");
    }
}

#[tokio::test]
async fn kv_of_a_call_whose_commit_failed_is_not_there_after_a_kill() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let killed = world.started(&capabilities, &everything()).await;
    let mut session = killed.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    let parent = "CREATE TABLE c (p INTEGER REFERENCES t (seq) DEFERRABLE INITIALLY DEFERRED)";
    session.sql_execute("main", parent, vec![vec![]]).await.unwrap();
    session.sql_execute("main", "INSERT INTO c VALUES (77)", vec![vec![]]).await.unwrap();
    session.kv_set("new", b"undone".to_vec()).unwrap();
    session.commit_effects(&[1]).await.unwrap_err();
    let mut session = killed.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    drop(session.commit_effects(&[1]).await.unwrap());
    drop((killed, capabilities));
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &everything()).await;
    let session = plugin.open(&batch(&[1])).await.unwrap();
    assert!(session.applied_states().contains(&1));
    assert_eq!(session.kv_get("new"), None);
    world.paper.keep(&session.commit_effects(&[]).await.unwrap());
    assert_eq!(world.paper.read(), [], "no note is left");
}

#[tokio::test]
async fn nothing_is_committed_while_the_journal_can_not_note_it() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &everything()).await;
    world.paper.is_away.store(true, Ordering::Relaxed);
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    insert(&mut session, &[1]).await;
    session.kv_set("new", b"x".to_vec()).unwrap();
    assert!(matches!(session.commit_effects(&[1]).await, Err(GrantError::Unavailable(_))));
    assert_eq!((applied(&plugin, &[1]).await, stored(&plugin).await), (vec![], 0));
}

#[tokio::test]
async fn a_request_in_a_tick_ends_before_the_tick_is_cut_off() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = SessionWorld::new();
    let mut settings = world.settings();
    let url = format!("http://{}", silent.local_addr().unwrap());
    settings.destinations.push(kubewitness_core::config::DestinationSpec::of("people", &url));
    let capabilities = OpenCapabilities::open(&settings, world.folder.path()).await.unwrap();
    let mut spec = plugin(json!({"http": [{"name": "people", "destination": "people"}], "kv": true}));
    spec.tick = Some(serde_json::from_value(json!({"every": "10s", "timeout": "6s"})).unwrap());
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
    // An eighth of the time remains, which suffices even on a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(6), "the plugin has time to note what it sent");
    tick.kv_set("told", b"1".to_vec()).unwrap();
    assert_eq!(tick.commit_effects(&[]).await.unwrap().len(), 1);
}

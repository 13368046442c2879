//! Tests of calls with a database on a server, which may be away, and to which other processes may write.

use std::sync::atomic::AtomicUsize;

use kubewitness_core::intents::commits::NotedCommit;

use super::*;
use crate::sql::TransactionMode;

/// A server that is away, or that is slow to report receipts.
struct SlowServer {
    applied: Vec<ReceiptMark>,
    answers: tokio::sync::Semaphore,
}

impl SlowServer {
    fn new(applied: Vec<ReceiptMark>) -> Arc<Self> {
        Arc::new(Self { applied, answers: tokio::sync::Semaphore::new(0) })
    }
}

#[async_trait]
impl crate::sql::DatabaseEngine for SlowServer {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Postgres
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn begin_in(&self, _: TransactionMode, _: &str) -> Result<Box<dyn SqlTransaction>, GrantError> {
        Err(GrantError::Unavailable("away".into()))
    }

    async fn survey_receipts(
        &self,
        _: &str,
        _: TransactionMode,
        _: &[NotedCommit],
    ) -> Result<crate::sql::ReceiptSurvey, GrantError> {
        self.answers.acquire().await.unwrap().forget();
        Ok(crate::sql::ReceiptSurvey { marks: self.applied.clone(), ..Default::default() })
    }

    async fn forget_receipts(&self, _: &str, _: Seq) -> Result<(), GrantError> {
        Ok(())
    }

    async fn was_committed(&self, _: &str) -> Result<bool, GrantError> {
        Err(GrantError::Unavailable("away".into()))
    }
}

async fn granted_with(world: &SessionWorld, server: &Arc<SlowServer>) -> PluginAccess {
    let capabilities = world.open().await;
    let mut granted = capabilities.resolve_access("p", &everything(), &backing(0)).unwrap();
    granted.sql.insert(
        "main".into(),
        GrantedDatabase { name: "platform".into(), engine: server.clone(), access: SqlAccess::Schema },
    );
    granted
}

#[tokio::test]
async fn a_statement_that_needs_more_access_than_is_granted_is_refused_before_the_database_hears_of_it() {
    let world = SessionWorld::new();
    let mut granted = granted_with(&world, &SlowServer::new(vec![])).await;
    granted.sql.get_mut("main").unwrap().access = SqlAccess::Read;
    granted.uses = Arc::new(uses::GrantUses::of(&everything().grants));
    let granted = Arc::new(granted);
    let mut call = CallSession::new(granted.clone(), vec![1], marks(&[1]), HashSet::new(), None);
    let refusal = |needed: &str| {
        format!(
            "denied: the database `main` is granted with `access: read`, and this needs `access: {needed}` in \
             spec.grants.sql"
        )
    };
    let write = call.sql_write("main", rows(&[1]), None).await.unwrap_err();
    assert_eq!(write.to_string(), refusal("write"));
    let hidden =
        call.sql_query("main", "WITH x AS (DELETE FROM t RETURNING a) SELECT a FROM x", vec![]).await;
    assert_eq!(hidden.unwrap_err().to_string(), refusal("write"));
    let table = call.sql_execute("main", "CREATE TABLE t (a INTEGER)", vec![vec![]]).await.unwrap_err();
    assert_eq!(table.to_string(), refusal("schema"));
    // This server is away, so the error proves that the statement was allowed.
    let read = call.sql_query("main", "SELECT 1", vec![]).await;
    assert_eq!(read, Err(GrantError::Unavailable("away".into())));
    assert_eq!(granted.uses.granted_and_needed("sql:main").unwrap().1, Some(SqlAccess::Schema));
}

#[tokio::test]
async fn a_call_that_cannot_have_its_database_is_not_made_whatever_the_plugin_answers() {
    let world = SessionWorld::new();
    let granted = granted_with(&world, &SlowServer::new(vec![])).await;
    let mut call = CallSession::new(Arc::new(granted), vec![1], marks(&[1]), HashSet::new(), None);
    assert!(matches!(call.sql_write("main", rows(&[1]), None).await, Err(GrantError::Unavailable(_))));
    call.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
    assert_eq!(Box::new(call).commit_effects(&[1]).await, Err(GrantError::Unavailable("away".into())));
    assert_eq!(world.records(), "");
}

/// A database in which another process applies the first state before the second read of the receipts.
struct SharedDatabase {
    engine: crate::sql::SharedEngine,
    readings: AtomicUsize,
}

#[async_trait]
impl crate::sql::DatabaseEngine for SharedDatabase {
    fn dialect(&self) -> SqlDialect {
        self.engine.dialect()
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn begin_in(
        &self,
        mode: TransactionMode,
        plugin: &str,
    ) -> Result<Box<dyn SqlTransaction>, GrantError> {
        self.engine.begin_in(mode, plugin).await
    }

    async fn survey_receipts(
        &self,
        _: &str,
        _: TransactionMode,
        _: &[NotedCommit],
    ) -> Result<crate::sql::ReceiptSurvey, GrantError> {
        let is_first = self.readings.fetch_add(1, Ordering::SeqCst) == 0;
        let marks = if is_first { vec![] } else { vec![ReceiptMark::of(&delivery(1, "a").state)] };
        Ok(crate::sql::ReceiptSurvey { marks, ..Default::default() })
    }

    async fn forget_receipts(&self, plugin: &str, through: Seq) -> Result<(), GrantError> {
        self.engine.forget_receipts(plugin, through).await
    }

    async fn was_committed(&self, token: &str) -> Result<bool, GrantError> {
        self.engine.was_committed(token).await
    }
}

#[tokio::test]
async fn a_call_writes_nothing_if_receipts_were_read_again_since_it_began() {
    let world = SessionWorld::new();
    let mut granted = world.open().await.resolve_access("p", &everything(), &backing(0)).unwrap();
    let engine = granted.sql["main"].engine.clone();
    let shared = Arc::new(SharedDatabase { engine, readings: AtomicUsize::default() });
    granted.sql.get_mut("main").unwrap().engine = shared.clone();
    let granted = Arc::new(granted);
    let stores = crate::session::granted::ReceiptStores { databases: vec![shared], ..Default::default() };
    granted.standing.load("p", stores, backing(0).positions).await.unwrap();
    let plugin = crate::session::granted::PluginGrants(granted.clone());
    let mut early = plugin.open(&[delivery(1, "a")]).await.unwrap();
    assert!(early.applied_states().is_empty(), "nobody has applied it yet");
    // Another call of this process notices that another process has written, and reads its receipts.
    granted.standing.mark_stale();
    let mut later = plugin.open(&[delivery(2, "b")]).await.unwrap();
    let create = "CREATE TABLE IF NOT EXISTS t (a INTEGER)";
    later.sql_execute("main", create, vec![vec![]]).await.unwrap();
    later.commit_effects(&[2]).await.unwrap();
    let refused = early.sql_execute("main", "INSERT INTO t VALUES (1)", vec![vec![]]).await.unwrap_err();
    assert!(refused.to_string().contains("were read again since this call began"), "{refused}");
    assert!(early.commit_effects(&[1]).await.is_err(), "the call does not count as made");
    let again = plugin.open(&[delivery(1, "a")]).await.unwrap();
    assert_eq!(Vec::from_iter(again.applied_states().iter().copied()), [1]);
}

#[tokio::test]
async fn whoever_comes_while_receipts_are_read_waits_for_what_is_found() {
    let world = SessionWorld::new();
    let mark = marks(&[1])[&1];
    let server = SlowServer::new(vec![mark]);
    let granted = Arc::new(granted_with(&world, &server).await);
    let stores =
        crate::session::granted::ReceiptStores { databases: vec![server.clone()], ..Default::default() };
    granted.standing.load("p", stores, backing(0).positions).await.unwrap();
    let plugin: Arc<dyn GrantProvider> = Arc::new(crate::session::granted::PluginGrants(granted));
    let (first, second, ()) = tokio::join!(applied(&plugin, &[1]), applied(&plugin, &[1]), async {
        tokio::task::yield_now().await;
        server.answers.add_permits(1);
    });
    assert_eq!((first, second), (vec![1], vec![1]));
}

#[tokio::test]
async fn receipts_of_another_journal_are_told_and_ones_own_never() {
    let is_told = async |newest: Seq, handed: &[Seq]| {
        let world = SessionWorld::new();
        let server = SlowServer::new(marks(&[7]).into_values().collect());
        let granted = Arc::new(granted_with(&world, &server).await);
        let stores =
            crate::session::granted::ReceiptStores { databases: vec![server.clone()], ..Default::default() };
        let positions = StartPositions { newest, ..backing(0).positions };
        granted.standing.load("p", stores, positions).await.unwrap();
        let plugin: Arc<dyn GrantProvider> = Arc::new(crate::session::granted::PluginGrants(granted.clone()));
        server.answers.add_permits(1);
        applied(&plugin, handed).await;
        granted.standing.met_another_journal()
    };
    assert!(is_told(6, &[1]).await);
    assert!(!is_told(7, &[1]).await, "of the run before");
    assert!(!is_told(0, &[7]).await, "of a call whose commit was in doubt");
}

#[tokio::test]
async fn a_ledger_whose_last_append_nobody_can_decide_now_holds_up_nobody_else() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let granted = capabilities.resolve_access("p", &everything(), &backing(0)).unwrap();
    let mut call = CallSession::new(Arc::new(granted), vec![1], marks(&[1]), HashSet::new(), None);
    insert_with(&mut call, &[1]).await;
    call.ledger_append("audit", vec![b"one".to_vec()]).await.unwrap();
    let receipt = call.make_receipt(call.receipt_marks(&[1]).unwrap()).unwrap();
    drop(call.write_ledger(&receipt).await.unwrap());
    drop((call, capabilities));
    let server: crate::sql::SharedEngine = SlowServer::new(vec![]);
    let databases: crate::ledger::LedgerDatabases = Arc::new([("platform".to_owned(), server)].into());
    let spec = kubewitness_core::config::LedgerSpec {
        name: "trail".into(),
        path: "audit/ledger.jsonl".into(),
        ..Default::default()
    };
    let ledger =
        crate::ledger::PluginLedger::open(&spec, None, world.folder.path(), &databases, None).await.unwrap();
    assert!(matches!(ledger.hold_for_call(&databases).await.err(), Some(GrantError::Unavailable(_))));
}

async fn insert_with(call: &mut CallSession, seqs: &[Seq]) {
    call.sql_execute("main", CREATE, vec![vec![]]).await.unwrap();
    call.sql_write("main", rows(seqs), None).await.unwrap();
}

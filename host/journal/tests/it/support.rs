//! States for tests, and the stores in which they are journaled.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::ports::{AppendBatch, AppendResult, StateWitness, WitnessedState};
use kubewitness_core::{Change, Gap, ObjectRef, Seq, StateId, Status, Version};
use kubewitness_harness::{DatabaseServer, SqlService, shared_server, skip};
use kubewitness_journal::{
    Journal, JournalLocation, JournalOptions, ReplicaSharing, VerifyReport, verify_at,
};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

pub const SOURCE: &str = "jobs";

/// The stores that a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Sqlite,
    Postgres,
    MariaDb,
    Mysql,
}

tokio::task_local! {
    static KIND: StoreKind;
}

impl StoreKind {
    /// The store on which the calling test runs.
    pub fn here() -> Self {
        KIND.try_with(|kind| *kind).unwrap_or(Self::Sqlite)
    }

    pub fn service(self) -> Option<SqlService> {
        match self {
            Self::Sqlite => None,
            Self::Postgres => Some(SqlService::Postgres),
            Self::MariaDb => Some(SqlService::MariaDb),
            Self::Mysql => Some(SqlService::MySql),
        }
    }

    /// The prefix of the journal's tables.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres | Self::MariaDb | Self::Mysql => "kw_",
        }
    }

    /// `None` if the store needs no server, or none is available.
    pub fn server(self) -> Option<&'static DatabaseServer> {
        shared_server(self.service()?, "the journal's conformance")
    }
}

/// Runs a test's body on a store. If the store is not available, the test counts as skipped.
pub async fn on(kind: StoreKind, test: &str, body: impl Future<Output = ()>) {
    match kind.service() {
        Some(service) if !service.is_installed() => skip(test, &format!("{service} is not installed")),
        _ => KIND.scope(kind, body).await,
    }
}

/// Makes each of these async functions a test on every store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        on_every_store!(@on sqlite, Sqlite, $($test),*);
        on_every_store!(@on postgres, Postgres, $($test),*);
        on_every_store!(@on mariadb, MariaDb, $($test),*);
        on_every_store!(@on mysql, Mysql, $($test),*);
    };
    (@on $module:ident, $kind:ident, $($test:ident),*) => {
        mod $module {
            $(#[tokio::test]
            async fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                crate::support::on(crate::support::StoreKind::$kind, name, super::$test()).await;
            })*
        }
    };
}
pub(crate) use on_every_store;

/// A journal for a single test.
pub struct TestJournal {
    pub folder: TempDir,
    pub place: JournalLocation,
    pub journal: Journal,
}

impl TestJournal {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = match StoreKind::here().server() {
            None => JournalLocation::file(&folder.path().join("journal.db")),
            Some(server) => JournalLocation::server(&server.create_database().unwrap()).unwrap(),
        };
        let journal = open_at(&place).await;
        Self { folder, place, journal }
    }

    /// The options of a replica that shares it with others.
    pub async fn shared(name: &str) -> Self {
        let place =
            JournalLocation::server(&StoreKind::here().server().unwrap().create_database().unwrap()).unwrap();
        let journal = Journal::open_at(&place, sharing(name)).await.unwrap();
        Self { folder: tempfile::tempdir().unwrap(), place, journal }
    }

    /// The options of the embedded journal.
    pub fn path(&self) -> PathBuf {
        assert_eq!(StoreKind::here(), StoreKind::Sqlite);
        self.folder.path().join("journal.db")
    }

    /// Closes the journal and opens it again, as another process would.
    pub async fn reopen(self) -> Self {
        self.journal.close().await.unwrap();
        let Self { folder, place, .. } = self;
        let journal = open_at(&place).await;
        Self { folder, place, journal }
    }

    /// Runs a statement on the journal's server.
    fn on_server(&self, sql: &str) -> Option<String> {
        let place = self.place.to_string();
        let server = StoreKind::here().server()?;
        Some(server.run(place.rsplit('/').next(), sql).unwrap().trim().to_owned())
    }

    /// Returns the single answer to a query about the store's own rows.
    pub async fn ask(&self, sql: &str) -> String {
        if let Some(answer) = self.on_server(sql) {
            return answer;
        }
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.path()).read_only(true);
        let mut connection = options.connect().await.unwrap();
        let text = sqlx::AssertSqlSafe(format!("SELECT CAST(({sql}) AS TEXT)"));
        let answer: String = sqlx::query_scalar(text).fetch_one(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        answer
    }

    /// Changes rows directly in the store. `@` stands for the prefix of its tables.
    pub async fn run(&self, sql: &str) {
        let sql = sql.replace('@', StoreKind::here().prefix());
        if self.on_server(&sql).is_some() {
            return;
        }
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.path());
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// A copy of a table's rows, to which [`put_back`](Self::put_back) returns.
    pub async fn keep(&self, table: &str) {
        self.run(&format!("CREATE TABLE kept AS SELECT * FROM {table}")).await;
    }

    pub async fn put_back(&self, table: &str) {
        self.run(&format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM kept")).await;
    }

    pub async fn let_go(&self) {
        self.run("DROP TABLE kept").await;
    }

    pub async fn verify(&self) -> VerifyReport {
        verify_at(&self.place).await.unwrap()
    }

    pub async fn assert_sound(&self) {
        let report = self.verify().await;
        assert!(report.ok, "{:#?}", report.problems);
    }

    pub async fn append(&self, states: Vec<WitnessedState>) -> AppendResult {
        self.journal.append_batch(of(SOURCE, 0, states)).await.unwrap()
    }
}

pub async fn open(path: PathBuf) -> Journal {
    open_at(&JournalLocation::file(&path)).await
}

pub async fn open_at(place: &JournalLocation) -> Journal {
    Journal::open_at(place, options()).await.unwrap()
}

/// Options with little memory, so that reads reach the disk.
pub fn options() -> JournalOptions {
    JournalOptions { recent: 8, ..JournalOptions::default() }
}

/// The options of a process that shares the journal with others, which elect by the same Lease.
pub fn sharing(name: &str) -> JournalOptions {
    let sharing = ReplicaSharing { name: name.into(), lease: "kubewitness/election of cluster 1".into() };
    JournalOptions { sharing: Some(sharing), ..options() }
}

pub fn of(source: &str, epoch: u32, states: Vec<WitnessedState>) -> AppendBatch {
    AppendBatch { source: source.into(), epoch, states, ..AppendBatch::default() }
}

pub fn job(number: usize) -> Arc<ObjectRef> {
    Arc::new(ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: format!("team-{}", number % 3),
        name: format!("train-{number}"),
        uid: format!("ad7a6354-87c8-4ba7-883d-{number:012x}"),
    })
}

pub fn status(phase: &str) -> Arc<Status> {
    Arc::new(Status { phase: phase.into(), total: 1, ..Status::default() })
}

/// A document of about 1 KB, which changes little from one version to the next.
pub fn document(object: &ObjectRef, version: &str) -> Bytes {
    let ObjectRef { namespace, name, uid, .. } = object;
    let filler: String = (0..40).map(|n| format!("\"field-{n}\":\"{}\",", n * 7919 % 1000)).collect();
    let text = format!(
        "{{\"kind\":\"Job\",\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"{namespace}\",\"uid\":\"{uid}\",\
         \"resourceVersion\":\"{version}\"}},\"spec\":{{{filler}\"x\":1}},\"status\":{{\"at\":\"{version}\"}}}}"
    );
    text.into()
}

pub fn in_source(
    source: &str,
    epoch: u32,
    object: &Arc<ObjectRef>,
    change: Change,
    version: &str,
) -> WitnessedState {
    let version = Version::new(version);
    let document = match change {
        Change::Present | Change::Left => document(object, version.as_str()),
        Change::Gone | Change::Gap => Bytes::new(),
    };
    WitnessedState {
        id: StateId::of(source, epoch, object, change, &version, None),
        change,
        object: object.clone(),
        owner: None,
        controller: None,
        resource_version: version,
        status: status("Running"),
        previous: None,
        observed_ms: 1_700_000_000_000,
        document,
        base: None,
        quotes_none_under: None,
    }
}

pub fn state(object: &Arc<ObjectRef>, change: Change, version: &str) -> WitnessedState {
    in_source(SOURCE, 0, object, change, version)
}

pub fn present(object: &Arc<ObjectRef>, version: u64) -> WitnessedState {
    state(object, Change::Present, &version.to_string())
}

pub fn gap(object: &Arc<ObjectRef>, after: &str, before: &str) -> WitnessedState {
    let gap = Gap {
        source: SOURCE.into(),
        object: Some((**object).clone()),
        epoch: 0,
        after: after.into(),
        before: before.into(),
        reason: "Compacted".into(),
        message: "the server no longer has them".into(),
        recorded_ms: 1,
    };
    let version = Version::new(before);
    let mut state = state(object, Change::Gap, before);
    state.id = StateId::of(SOURCE, 0, object, Change::Gap, &version, Some(&gap));
    state.document = serde_json::to_vec(&gap).unwrap().into();
    state
}

/// The objects of a random history. No uid returns after its end, an end has the newest version, and a gap
/// contains no reported version.
#[derive(Default)]
pub struct RandomHistory {
    ends: HashMap<usize, u64>,
    told: HashMap<usize, Vec<u64>>,
}

impl RandomHistory {
    /// Whether a watch could report this change of an object (0: its end, with an even version or none; 2: a
    /// gap; otherwise a version of it).
    pub fn may_come(&mut self, (object, change, version): (usize, u8, u64)) -> bool {
        let told = self.told.entry(object).or_default();
        match change {
            0 if version % 2 == 0 => {
                if told.iter().any(|told| *told > version) {
                    return false;
                }
                let end = self.ends.entry(object).or_insert(version);
                *end = version.min(*end);
                true
            }
            0 => true,
            2 => {
                !told.contains(&version) || !told.iter().any(|told| (version + 1..version + 5).contains(told))
            }
            _ if self.ends.get(&object).is_none_or(|end| version <= *end) => {
                told.push(version);
                true
            }
            _ => false,
        }
    }
}

pub fn seqs(appended: &AppendResult) -> Vec<Option<Seq>> {
    appended.seqs.clone()
}

/// Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

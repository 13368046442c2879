//! Group commit on a disk that is full or fails.

use std::path::Path;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ports::WitnessedState;
use kubewitness_core::{Change, ObjectRef, StateId, Status, Version};

use super::*;
use crate::store::OpenStore;
use crate::store::place::JournalLocation;

struct GroupBench {
    folder: tempfile::TempDir,
    group: GroupCommit,
    store: Box<dyn OpenStore>,
}

impl GroupBench {
    async fn open(folder: tempfile::TempDir) -> Self {
        let path = folder.path().join("journal.db");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let opened = JournalLocation::file(&path).open(1, &clock, None, false).await;
        let (store, mut writer, _) = opened.map_err(|error| error.to_string()).unwrap();
        let memory = writer.load_memory().await.unwrap();
        let recent = Arc::new(RwLock::new(RecentStates::new(10, usize::MAX)));
        Self { folder, group: GroupCommit::new(writer, memory, recent), store }
    }

    async fn append(&self, version: u64) -> Result<AppendResult, JournalError> {
        let states = vec![present(version)];
        let checkpoint = Some(Version::new(&version.to_string()));
        let append = AppendBatch { source: "jobs".into(), states, checkpoint, ..AppendBatch::default() };
        self.group.submit_work(|answer| GroupWork::Append(append, answer)).await
    }

    async fn limit_pages(&self, more: Option<i64>) {
        self.group.lead.lock().await.writer.as_mut().unwrap().limit_pages(more).await.unwrap();
    }

    async fn close(self) -> tempfile::TempDir {
        self.group.close().await.unwrap();
        self.store.close().await.unwrap();
        self.folder
    }
}

/// A state of a new object, with 4 KB that do not compress.
fn present(version: u64) -> WitnessedState {
    let uid = format!("u{version}");
    let object = Arc::new(ObjectRef { kind: "Job".into(), name: uid.clone(), uid, ..ObjectRef::default() });
    let mut number = version;
    let noise = |_| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (number >> 40) as u8
    };
    let noise = hex::encode((0..4096).map(noise).collect::<Vec<u8>>());
    let document = format!(
        "{{\"metadata\":{{\"name\":\"{uid}\",\"uid\":\"{uid}\",\"resourceVersion\":\"{version}\"}},\"x\":\"{noise}\"}}",
        uid = object.uid
    );
    let resource_version = Version::new(&version.to_string());
    WitnessedState {
        id: StateId::of("jobs", 0, &object, Change::Present, &resource_version, None),
        change: Change::Present,
        object,
        owner: None,
        controller: None,
        resource_version,
        status: Arc::new(Status { phase: "Running".into(), ..Status::default() }),
        previous: None,
        observed_ms: 1,
        document: document.into(),
        base: None,
        quotes_none_under: None,
    }
}

async fn assert_sound(path: &Path, states: u64) {
    let report = crate::verify_file(path).await.unwrap();
    assert!(report.ok, "{:#?}", report.problems);
    assert_eq!(report.states_checked, states);
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_it_goes_on_where_it_was_once_there_is_room() {
    let desk = GroupBench::open(tempfile::tempdir().unwrap()).await;
    desk.append(1).await.unwrap();
    desk.limit_pages(Some(20)).await;
    let mut version = 1;
    let error = loop {
        version += 1;
        match desk.append(version).await {
            Ok(appended) => assert_eq!(appended.newest, version),
            Err(error) => break error,
        }
        assert!(version < 100, "it never filled up");
    };
    assert!(matches!(error, JournalError::Unavailable(_)), "{error}");
    assert_eq!(*desk.group.newest_position().borrow(), version - 1);
    // Each of several retries leaves nothing half-written.
    for _ in 0..3 {
        let error = desk.append(version).await.unwrap_err();
        assert!(matches!(error, JournalError::Unavailable(_)), "{error}");
    }
    assert_sound(&desk.folder.path().join("journal.db"), version - 1).await;

    desk.limit_pages(None).await;
    assert_eq!(desk.append(version).await.unwrap().seqs, [Some(version)]);
    assert_eq!(desk.append(version + 1).await.unwrap().newest, version + 1);
    assert_sound(&desk.folder.path().join("journal.db"), version + 1).await;
}

#[tokio::test]
async fn a_handle_whose_write_is_in_doubt_is_not_used_again() {
    let desk = GroupBench::open(tempfile::tempdir().unwrap()).await;
    desk.append(1).await.unwrap();
    // Another writer used the next position, so the writer's memory is wrong.
    let path = desk.folder.path().join("journal.db");
    let other = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut other = sqlx::ConnectOptions::connect(&other).await.unwrap();
    let text = "INSERT INTO states SELECT 2, object, 99, flags, back, status, previous, owner, observed_ms, at, \
                anchor, sums, document FROM states WHERE seq = 1";
    sqlx::raw_sql(text).execute(&mut other).await.unwrap();
    let error = desk.append(2).await.unwrap_err();
    assert!(matches!(error, JournalError::Fatal(_)), "{error}");
    // The journal stays closed even after the cause is removed.
    sqlx::raw_sql("DELETE FROM states WHERE seq = 2").execute(&mut other).await.unwrap();
    sqlx::Connection::close(other).await.unwrap();
    let error = desk.append(3).await.unwrap_err();
    assert!(matches!(error, JournalError::Fatal(_)), "{error}");

    let desk = GroupBench::open(desk.close().await).await;
    assert_eq!(desk.append(2).await.unwrap().newest, 2);
    assert_sound(&desk.folder.path().join("journal.db"), 2).await;
}

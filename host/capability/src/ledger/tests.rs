use std::sync::Mutex as Lock;

use async_trait::async_trait;
use futures::FutureExt;
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::ledger::{LedgerStatement, LedgerTally};
use kubewitness_core::ports::JournalError;

use super::*;

async fn ledger(folder: &Path) -> (PluginLedger, LedgerDatabases) {
    let spec: LedgerSpec =
        serde_json::from_value(serde_json::json!({"name": "trail", "path": "ledger.jsonl"})).unwrap();
    let databases = LedgerDatabases::default();
    (PluginLedger::open(&spec, None, folder, &databases, None).await.unwrap(), databases)
}

#[tokio::test]
async fn a_record_and_a_call_have_no_more_bytes_than_their_bounds_and_what_is_refused_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = ledger(folder.path()).await;
    let mut held = ledger.hold_for_call(&databases).await.unwrap();
    let long = held.append_records(vec![b"short".to_vec(), vec![b'x'; RECORD_BYTES + 1]]);
    assert!(matches!(&long, Err(GrantError::TooLarge(message)) if message.contains("a record")), "{long:?}");
    assert!(!held.has_records());

    let record = vec![b'x'; RECORD_BYTES];
    let fitting = CALL_BYTES / (RECORD_BYTES + 1);
    assert_eq!(held.append_records(vec![record.clone(); fitting]), Ok(fitting as u64));
    let much = held.append_records(vec![record]);
    assert!(matches!(&much, Err(GrantError::TooLarge(message)) if message.contains("a call")), "{much:?}");
}

#[tokio::test]
async fn a_call_waits_for_a_ledger_that_another_holds_no_longer_than_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = ledger(folder.path()).await;
    let held = ledger.hold_for_call(&databases).await.unwrap();
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    let late = ledger.hold_for_call(&databases).await.err();
    assert!(matches!(&late, Some(GrantError::Unavailable(message)) if message.contains("busy")), "{late:?}");
    assert_eq!(before.elapsed().as_secs(), WAIT.as_secs());
    drop(held);
    assert!(ledger.hold_for_call(&databases).await.is_ok());
}

async fn append(ledger: &PluginLedger, databases: &LedgerDatabases, seq: Seq) -> Result<(), GrantError> {
    let mut held = ledger.hold_for_call(databases).await?;
    held.append_records(vec![format!("state {seq}").into_bytes()])?;
    held.write("p", &[ReceiptMark { seq, print: IdPrint::of("1") }], None).await?.keep_records().await
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
    assert_eq!(ledger.receipts_of_plugin("p", &databases).await.unwrap().len(), 2);
}

/// A ledger with a signature after each record, and a closed file for each root.
async fn signed_ledger(folder: &Path, rotates: bool) -> (PluginLedger, LedgerDatabases) {
    let databases = LedgerDatabases::default();
    (open_signed(folder, rotates, None).await.unwrap(), databases)
}

async fn open_signed(
    folder: &Path,
    rotates: bool,
    journal: Option<Arc<dyn Ledgers>>,
) -> Result<PluginLedger, LedgerOpenError> {
    open_with(folder, rotates, journal, Some(Arc::new(SigningKey::fresh()))).await
}

async fn open_with(
    folder: &Path,
    rotates: bool,
    journal: Option<Arc<dyn Ledgers>>,
    key: Option<Arc<SigningKey>>,
) -> Result<PluginLedger, LedgerOpenError> {
    let rotate = rotates.then(|| serde_json::json!({"size": "1"}));
    let spec = serde_json::from_value(serde_json::json!({
        "name": "trail", "path": "ledger.jsonl", "rotate": rotate, "signing": {"key": "seal", "records": 1},
    }));
    PluginLedger::open(&spec.unwrap(), key, folder, &LedgerDatabases::default(), journal).await
}

#[derive(Default)]
struct PaperNotes(Lock<HashMap<String, LedgerProgress>>);

#[async_trait]
impl Ledgers for PaperNotes {
    async fn ledger_progress(&self, ledger: &str) -> Result<Option<LedgerProgress>, JournalError> {
        Ok(self.0.lock().unwrap().get(ledger).cloned())
    }

    async fn save_ledger_progress(&self, ledger: &str, reached: &LedgerProgress) -> Result<(), JournalError> {
        self.0.lock().unwrap().insert(ledger.to_owned(), reached.clone());
        Ok(())
    }
}

/// Forges the files like an attacker who has neither the key nor the journal.
fn rewritten(lines: &[String], keeps_the_roots: bool) -> String {
    let mut tally = LedgerTally::before_first_statement(0);
    let mut forged = String::new();
    for line in lines {
        let line = match LedgerStatement::parse(line.as_bytes()) {
            Some(root) if keeps_the_roots => {
                let forged =
                    tally.next_statement(root.kind, &root.ledger, 0, root.key).encode_line(None).unwrap();
                String::from_utf8(forged).unwrap()
            }
            Some(_) => continue,
            None => line.replace("state", "forged"),
        };
        tally.count_line(line.as_bytes(), 0).unwrap();
        forged.push_str(&format!("{line}\n"));
    }
    forged
}

#[tokio::test]
async fn a_signed_ledger_that_was_rewritten_or_removed_is_refused_until_it_is_back() {
    for rotates in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (path, receipts) = (folder.path().join("ledger.jsonl"), folder.path().join("ledger.receipts"));
        let journal: Arc<dyn Ledgers> = Arc::new(PaperNotes::default());
        let open = || open_signed(folder.path(), rotates, Some(journal.clone()));
        let ledger = open().await.unwrap();
        for seq in 1..=3 {
            append(&ledger, &LedgerDatabases::default(), seq).await.unwrap();
        }
        ledger.sign_off().await.unwrap();
        drop(ledger);
        drop(open().await.unwrap());
        let own = [&path, &receipts].map(|path| std::fs::read_to_string(path).unwrap());
        std::fs::remove_file(&receipts).unwrap();
        for forged in [None, Some(false), Some(true)] {
            std::fs::remove_file(&path).unwrap();
            if let Some(keeps) = forged {
                std::fs::write(
                    &path,
                    rewritten(&own[0].lines().map(str::to_owned).collect::<Vec<_>>(), keeps),
                )
                .unwrap();
            }
            let error = open().await.err().unwrap().to_string();
            assert!(error.contains("was rewritten or removed") && !receipts.exists(), "{error}");
            std::fs::write(&path, &own[0]).unwrap();
        }
        std::fs::write(&receipts, &own[1]).unwrap();
        append(&open().await.unwrap(), &LedgerDatabases::default(), 4).await.unwrap();
    }
}

#[tokio::test]
async fn a_ledger_that_is_no_longer_signed_goes_on_without_the_files_that_it_closed_long_ago() {
    let folder = tempfile::tempdir().unwrap();
    let journal: Arc<dyn Ledgers> = Arc::new(PaperNotes::default());
    for key in [Some(Arc::new(SigningKey::fresh())), None] {
        let ledger = open_with(folder.path(), true, Some(journal.clone()), key).await.unwrap();
        for seq in 1..=3 {
            append(&ledger, &LedgerDatabases::default(), seq).await.unwrap();
        }
        ledger.sign_off().await.unwrap();
    }
    let is_old = |name: &str| name.starts_with("ledger-00000") && name < "ledger-000005";
    let mut removed = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if is_old(path.file_name().unwrap().to_str().unwrap()) {
            std::fs::remove_file(path).unwrap();
            removed += 1;
        }
    }
    assert!(removed >= 3, "{removed}");
    let ledger = open_with(folder.path(), true, Some(journal), None).await.unwrap();
    append(&ledger, &LedgerDatabases::default(), 9).await.unwrap();
}

#[tokio::test]
async fn the_first_root_tells_how_many_lines_were_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    std::fs::write(&path, "state 1\nstate 2\n").unwrap();
    let journal: Arc<dyn Ledgers> = Arc::new(PaperNotes::default());
    let open = || open_signed(folder.path(), false, Some(journal.clone()));
    let ledger = open().await.unwrap();
    for seq in 3..=4 {
        append(&ledger, &LedgerDatabases::default(), seq).await.unwrap();
    }
    ledger.sign_off().await.unwrap();
    drop(ledger);
    let adopted = || {
        let lines = lines(&path);
        let statements = lines.iter().filter_map(|line| LedgerStatement::parse(line.as_bytes()));
        statements.map(|statement| statement.adopted).collect::<Vec<_>>()
    };
    assert_eq!(adopted(), [Some(2), None, None]);
    // Records that the journal knows are not adopted again; later ones are.
    std::fs::remove_file(path.with_extension("receipts")).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text + "added\n").unwrap();
    open().await.unwrap().sign_off().await.unwrap();
    assert_eq!(adopted().last(), Some(&Some(1)));
}

/// A caller that gives up leaves its thread running, like one whose disk takes longer than the limit.
#[tokio::test]
async fn a_statement_that_is_written_after_its_caller_gave_up_is_cut_and_the_ledger_goes_on() {
    for rotates in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let journal: Arc<dyn Ledgers> = Arc::new(PaperNotes::default());
        let ledger = open_signed(folder.path(), rotates, Some(journal.clone())).await.unwrap();
        let mut given_up = 0;
        for seq in 1..=5 {
            append(&ledger, &LedgerDatabases::default(), seq).await.unwrap();
            given_up += usize::from(ledger.write_due_statement().now_or_never().is_none());
        }
        assert!(given_up > 0);
        ledger.sign_off().await.unwrap();
        assert_eq!(ledger.receipts_of_plugin("p", &LedgerDatabases::default()).await.unwrap().len(), 5);
        drop(ledger);
        open_signed(folder.path(), rotates, Some(journal)).await.unwrap();
    }
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_record_that_begins_as_a_statement_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = signed_ledger(folder.path(), false).await;
    append(&ledger, &databases, 1).await.unwrap();
    ledger.write_due_statement().await.unwrap();
    let root = lines(&folder.path().join("ledger.jsonl")).remove(1);
    let mut held = ledger.hold_for_call(&databases).await.unwrap();
    assert_eq!(held.last_record(), Some(b"state 1".to_vec()), "a plugin sees no statement");
    let refused = held.append_records(vec![root.into_bytes()]);
    assert!(
        matches!(&refused, Err(GrantError::Invalid(message)) if message.contains("statement")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_root_covers_no_record_that_does_not_count_yet() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, databases) = signed_ledger(folder.path(), false).await;
    append(&ledger, &databases, 1).await.unwrap();
    let mut held = ledger.hold_for_call(&databases).await.unwrap();
    held.append_records(vec![b"undone".to_vec()]).unwrap();
    let written = held.write("p", &[ReceiptMark { seq: 2, print: IdPrint::of("1") }], None).await.unwrap();
    // The call holds the ledger, and its records will be undone.
    ledger.write_due_statement().await.unwrap();
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
    ledger.write_due_statement().await.unwrap();
    let closed = |file: u64| folder.path().join(format!("ledger-00000{file}.jsonl"));
    assert_eq!((lines(&closed(1)).len(), lines(&folder.path().join("ledger.jsonl")).len()), (2, 1));
    // The same files stay open, so nobody else can open them.
    let other = Arc::new(SigningKey::fresh());
    let ledger = ledger.with_settings(&ledger.spec, Some(other.clone()));
    append(&ledger, &databases, 2).await.unwrap();
    append(&ledger, &databases, 3).await.unwrap();
    assert!(lines(&closed(2)).last().unwrap().contains(&other.id()));
    assert_eq!(ledger.receipts_of_plugin("p", &databases).await.unwrap().len(), 3);
}

/// Never answers.
struct SilentDatabase;

#[async_trait]
impl Ledgers for SilentDatabase {
    async fn ledger_progress(&self, _: &str) -> Result<Option<LedgerProgress>, JournalError> {
        std::future::pending().await
    }

    async fn save_ledger_progress(&self, _: &str, _: &LedgerProgress) -> Result<(), JournalError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_journal_that_does_not_answer_holds_a_ledger_up_no_longer_than_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    let error = open_signed(folder.path(), false, Some(Arc::new(SilentDatabase))).await.err().unwrap();
    assert!(matches!(error, LedgerOpenError::JournalSilent), "{error}");
    assert_eq!(before.elapsed().as_secs(), WAIT.as_secs());
}

//! Tests of exports, and of their import into another journal.

use std::io::BufReader;

use kubewitness_core::ports::{AppendBatch, Backlog, DocumentReader, StateWitness};
use kubewitness_core::{Change, State, Version};
use kubewitness_journal::{
    ExportError, ExportQuery, ImportError, OpeningProgress, export_journal, export_with, verify_with,
};
use sqlx::{ConnectOptions, Connection};

use crate::support::{
    SOURCE, StoreKind, TestJournal, gap, in_source, job, of, on_every_store, present, state,
};

fn all() -> ExportQuery {
    ExportQuery { documents: true, ..ExportQuery::default() }
}

async fn exported(desk: &TestJournal, query: &ExportQuery) -> String {
    let mut out = Vec::new();
    export_journal(&desk.place, query, &mut out).await.unwrap();
    String::from_utf8(out).unwrap()
}

async fn import(text: &[u8]) -> (TestJournal, Result<u64, ImportError>) {
    let desk = TestJournal::new().await;
    let done = desk.journal.import_lines(&mut BufReader::new(text)).await;
    (desk, done.map(|done| done.states))
}

/// A story with two sources, two epochs, deletions, a gap, and a late state.
async fn story() -> TestJournal {
    let desk = TestJournal::new().await;
    for version in 0..30u64 {
        let states = (0..5).map(|n| present(&job(n), version * 5 + n as u64 + 1)).collect();
        desk.append(states).await;
    }
    desk.append(vec![state(&job(4), Change::Gone, "300"), gap(&job(3), "151", "160")]).await;
    desk.append(vec![state(&job(3), Change::Left, "170"), present(&job(0), 3)]).await;
    let pods: Vec<_> =
        (1..=300).map(|v| in_source("pods", 2, &job(9), Change::Present, &v.to_string())).collect();
    desk.journal.append_batch(of("pods", 2, pods)).await.unwrap();
    for (source, epoch, at) in [(SOURCE, 0, "310"), ("pods", 2, "300")] {
        let append = AppendBatch { checkpoint: Some(Version::new(at)), ..of(source, epoch, Vec::new()) };
        desk.journal.append_batch(append).await.unwrap();
    }
    desk
}

async fn whoever_waits_sees_how_far_it_is() {
    let desk = story().await;
    let (exporting, verifying) = (OpeningProgress::default(), OpeningProgress::default());
    assert_eq!(exporting.now(), (0, 0));
    export_with(&desk.place, &all(), &mut Vec::new(), &exporting).await.unwrap();
    assert!(verify_with(&desk.place, &verifying).await.unwrap().ok);
    for progress in [exporting, verifying] {
        assert_eq!(progress.now(), (154 + 300, 154 + 300), "all that retention left");
    }
}

async fn what_was_exported_is_read_back_as_it_was() {
    let desk = story().await;
    let text = exported(&desk, &all()).await;
    let (again, done) = import(text.as_bytes()).await;
    assert_eq!(done.unwrap(), 154 + 300);
    let states = desk.journal.read(0, 1000).await.unwrap();
    assert_eq!(again.journal.read(0, 1000).await.unwrap(), states);
    for state in &states {
        let document = desk.journal.document_at(state.seq).await.unwrap();
        assert_eq!(again.journal.document_at(state.seq).await.unwrap(), document, "{}", state.id);
    }
    for source in [SOURCE, "pods"] {
        let (one, other) = (
            desk.journal.load_warm_start(source).await.unwrap(),
            again.journal.load_warm_start(source).await.unwrap(),
        );
        assert_eq!(
            (one.epoch, one.checkpoint, one.objects.len()),
            (other.epoch, other.checkpoint, other.objects.len())
        );
    }
    again.assert_sound().await;
    assert_eq!(exported(&again, &all()).await, text, "and once more it is the same");
}

#[tokio::test]
async fn a_journal_that_lacks_states_is_not_exported_as_whole() {
    for lost in ["DELETE FROM states WHERE seq = 100", "DELETE FROM states WHERE seq > 200"] {
        let desk = story().await;
        desk.journal.close().await.unwrap();
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(desk.path());
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(lost).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let refused = export_journal(&desk.place, &all(), &mut Vec::new()).await.unwrap_err();
        assert!(matches!(refused, ExportError::Short { .. }), "{refused}");
        assert!(refused.to_string().contains("journal verify"), "{refused}");
        let readable = ExportQuery { after: Some(0), ..all() };
        assert!(export_journal(&desk.place, &readable, &mut Vec::new()).await.unwrap().states > 100);
    }
}

async fn a_selection_is_only_what_was_asked_for_and_sets_no_checkpoint() {
    let desk = story().await;
    let desk = &desk;
    let asked = |query: ExportQuery| async move { exported(desk, &query).await };
    let states = |text: &str| -> Vec<State> {
        let states = text.lines().filter_map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(value["state"].clone()).ok()
        });
        states.collect()
    };
    let one =
        ExportQuery { source: Some(SOURCE.into()), name: Some("train-2".into()), ..ExportQuery::default() };
    let text = asked(one.clone()).await;
    assert!(
        states(&text).iter().all(|state| state.object.name == "train-2") && !text.contains("\"document\"")
    );
    assert_eq!(states(&text).len(), 30);
    assert_eq!(states(&asked(ExportQuery { kind: Some("pods".into()), ..all() }).await).len(), 0);
    let range = ExportQuery { after: Some(10), through: Some(12), ..all() };
    let text = asked(range).await;
    assert_eq!(states(&text).iter().map(|state| state.seq).collect::<Vec<_>>(), [11, 12]);
    let later = ExportQuery { since_ms: Some(1_700_000_000_001), ..all() };
    assert_eq!(states(&asked(later).await).len(), 0);
    let (again, done) = import(asked(ExportQuery { documents: true, ..one.clone() }).await.as_bytes()).await;
    assert_eq!(done.unwrap(), 30);
    assert_eq!(again.journal.load_warm_start(SOURCE).await.unwrap().checkpoint, None);
    let (_, refused) = import(asked(one).await.as_bytes()).await;
    assert!(refused.unwrap_err().to_string().contains("line 1: the export has no documents"));
}

async fn a_damaged_line_is_refused_with_its_number_and_what_to_do() {
    let desk = story().await;
    let text = exported(&desk, &all()).await;
    let lines: Vec<&str> = text.lines().collect();
    let refusal_of = |lines: Vec<String>| async move {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        import(text.as_bytes()).await.1.unwrap_err().to_string()
    };
    let owned = || lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut changed = owned();
    changed[100] = changed[100].replace("Running", "Pending");
    assert!(refusal_of(changed).await.starts_with("line 101: its checksum does not match"));
    let mut missing = owned();
    missing.remove(50);
    assert!(refusal_of(missing).await.starts_with("line 51: it does not follow the line before"));
    let mut twice = owned();
    twice.insert(20, lines[19].to_string());
    assert!(refusal_of(twice).await.starts_with("line 21: it does not follow the line before"));
    let cut = owned()[..60].to_vec();
    assert!(refusal_of(cut).await.starts_with("line 61: the file ends here"));
    assert!(refusal_of(vec!["{}".into()]).await.starts_with("line 1: it is not the beginning of an export"));
    for other in ["\u{fe}\u{ff}".as_bytes().to_vec(), b"\xfe\xff\n".to_vec()] {
        let error = import(&other).await.1.unwrap_err().to_string();
        assert!(error.starts_with("line 1: it ") && error.ends_with("export` wrote"), "{error}");
    }
    let torn = import(&text.as_bytes()[..text.len() / 2]).await.1.unwrap_err().to_string();
    assert!(torn.contains("it has no line break") && torn.contains("export again"), "{torn}");
    let full = desk.journal.import_lines(&mut BufReader::new(text.as_bytes())).await.unwrap_err();
    assert!(matches!(full, ImportError::NotEmpty(454)), "{full}");
    if StoreKind::here() != StoreKind::Sqlite {
        // The exported text is the same for each store, so one of them suffices.
        return;
    }
    // A change of any single byte is found.
    for place in (0..text.len()).step_by(text.len() / 40) {
        let mut bytes = text.clone().into_bytes();
        bytes[place] ^= 1;
        assert!(import(&bytes).await.1.is_err(), "the byte at {place}");
    }
}

on_every_store!(
    whoever_waits_sees_how_far_it_is,
    what_was_exported_is_read_back_as_it_was,
    a_selection_is_only_what_was_asked_for_and_sets_no_checkpoint,
    a_damaged_line_is_refused_with_its_number_and_what_to_do,
);

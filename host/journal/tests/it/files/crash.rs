//! A process that appends is killed at any moment: everything that it reported as durable exists.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use kubewitness_core::Version;
use kubewitness_core::ports::{
    AppendBatch, Backlog, DocumentReader, KvWrite, NOTE, NoteDurability, NoteStore, StateWitness,
};
use kubewitness_journal::{JournalLocation, verify_at};

use crate::support::{SOURCE, StoreKind, document, job, of, on_every_store, open_at, present};

/// The variable with the path or address of the child's journal.
const PATH: &str = "KUBEWITNESS_TEST_CRASH_JOURNAL";

const ROUNDS: u64 = 12;
const OBJECTS: usize = 7;

fn place_of(text: &str) -> JournalLocation {
    JournalLocation::server(text).unwrap_or_else(|_| JournalLocation::file(text.as_ref()))
}

/// The child's code, and not a test of its own. Without the variable it does nothing.
#[test]
fn child_appends_until_it_is_killed() {
    let Ok(path) = std::env::var(PATH) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let journal = open_at(&place_of(&path)).await;
        let mut version = *journal.newest_position().borrow();
        loop {
            let size = 1 + version % 9;
            let states: Vec<_> =
                (version + 1..=version + size).map(|v| present(&job(v as usize % OBJECTS), v)).collect();
            version += size;
            let checkpoint = Some(Version::new(&version.to_string()));
            let appended =
                journal.append_batch(AppendBatch { checkpoint, ..of(SOURCE, 0, states) }).await.unwrap();
            let note = KvWrite { key: format!("{NOTE}n"), value: Some(version.to_string().into_bytes()) };
            journal.save_notes("p", vec![note], NoteDurability::ProcessCrash).await.unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "durable {}", appended.newest).unwrap();
            out.flush().unwrap();
        }
    });
}

/// Runs the child, and kills it a moment after this many answers. Returns the last position that it reported.
fn killed_after(place: &str, answers: usize, moment: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "files::crash::child_appends_until_it_is_killed", "--nocapture"])
        .env(PATH, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last_reported = 0;
    let mut left = answers;
    let durable =
        |line: &str| line.rsplit_once("durable ").and_then(|(_, seq)| seq.trim().parse::<u64>().ok());
    while left > 0 {
        let line = lines.next().expect("the child goes on until it is killed").unwrap();
        if let Some(seq) = durable(&line) {
            last_reported = seq;
            left -= 1;
        }
    }
    std::thread::sleep(moment);
    child.kill().unwrap();
    child.wait().unwrap();
    // Reports from just before its death count, too.
    lines
        .map_while(Result::ok)
        .filter_map(|line| durable(&line))
        .last()
        .unwrap_or(last_reported)
        .max(last_reported)
}

async fn nothing_that_was_acknowledged_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let place = match StoreKind::here().server() {
        None => folder.path().join("journal.db").to_str().unwrap().to_owned(),
        Some(server) => server.create_database().unwrap(),
    };
    for round in 0..ROUNDS {
        let moment = Duration::from_micros(round * 1_373 % 9_000);
        let last_reported = killed_after(&place, 1 + (round as usize * 5) % 17, moment);
        let report = verify_at(&place_of(&place)).await.unwrap();
        assert!(report.ok, "round {round}: {:#?}", report.problems);
        // The server may not have noticed yet that the child is dead.
        let journal = open_at(&place_of(&place)).await;
        let newest = *journal.newest_position().borrow();
        assert!(newest >= last_reported, "round {round}: it said {last_reported}, and there are {newest}");
        let noted =
            journal.plugin_kv("p").await.unwrap().pop().map(|(_, value)| String::from_utf8(value).unwrap());
        assert!(
            noted.is_some_and(|noted| noted.parse::<u64>().unwrap() >= last_reported),
            "round {round}: {last_reported}"
        );
        let warm = journal.load_warm_start(SOURCE).await.unwrap();
        // Each state's version is its position, so the checkpoint is that of the last append.
        assert_eq!(warm.checkpoint, Some(Version::new(&newest.to_string())));
        assert_eq!(warm.objects.len(), OBJECTS.min(newest as usize));
        let expected = document(&job(newest as usize % OBJECTS), &newest.to_string());
        assert_eq!(journal.document_at(newest).await.unwrap().unwrap(), expected);
        journal.close().await.unwrap();
    }
}

on_every_store!(nothing_that_was_acknowledged_is_lost);

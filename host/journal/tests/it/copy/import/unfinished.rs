//! Imports that failed or were killed: what they leave, how they continue, and how they are discarded.

use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};

use super::*;

async fn an_import_whose_first_state_is_refused_is_not_whole_and_can_be_thrown_away() {
    let text = exported(&story().await.place).await;
    let (taken, refused) = import(&text.replacen("Running", "Pending", 1)).await;
    assert!(refused.unwrap_err().to_string().starts_with("line 2: its checksum does not match"));
    let report = taken.verify().await;
    let codes: Vec<_> = report.problems.iter().map(|problem| problem.code.as_str()).collect();
    assert_eq!(codes, ["unfinished"], "{:#?}", report.problems);
    let TestJournal { folder: _folder, place, journal } = taken;
    journal.close().await.unwrap();
    discard_unfinished_import(&place).await.unwrap();
    // An input that is no export leaves nothing to discard.
    let (taken, refused) = import("hello\n").await;
    refused.unwrap_err();
    taken.assert_sound().await;
}

async fn an_import_that_failed_is_not_whole_until_it_went_on_to_its_end() {
    let desk = story().await;
    let text = exported(&desk.place).await;
    let at = text.match_indices('\n').nth(500).unwrap().0;
    let mut damaged = text.clone().into_bytes();
    damaged[at + 100] ^= 1;
    let (taken, refused) = import(&String::from_utf8(damaged).unwrap()).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.starts_with("line 502: its checksum does not match"), "{error}");

    let report = taken.verify().await;
    assert!(!report.ok && report.problems.len() == 1, "{:#?}", report.problems);
    assert_eq!(report.problems[0].code, "unfinished");
    assert!(
        report.problems[0].message.contains("--continue") && report.problems[0].message.contains("--discard")
    );
    assert!(journal_stats(&taken.place, &Default::default(), 0).await.unwrap().unfinished);
    let refused = export_journal(&taken.place, &ExportQuery::default(), &mut Vec::new()).await.unwrap_err();
    assert!(matches!(&refused, ExportError::Open(OpenError::Unfinished { .. })), "{refused}");
    taken.journal.close().await.unwrap();
    let run = Journal::open_at(&taken.place, options()).await.err().unwrap();
    assert!(matches!(run, OpenError::Unfinished { .. }), "{run}");
    // A program that does not know the mark reads it as an unknown format.
    let format = match StoreKind::here() {
        StoreKind::Sqlite => taken.ask("SELECT user_version FROM pragma_user_version").await,
        _ => taken.ask("SELECT format FROM kw_journal").await,
    };
    assert!(format.parse::<i64>().unwrap() > 1_000_000, "{format}");

    let (again, done) = go_on(taken, &text).await;
    assert_eq!(done.unwrap(), 600);
    again.assert_sound().await;
    assert!(!journal_stats(&again.place, &Default::default(), 0).await.unwrap().unfinished);
    assert_eq!(exported(&again.place).await, text);
    let again = again.reopen().await;
    let full = go_on(again, &text).await.1.unwrap_err();
    assert!(matches!(full, ImportError::NotEmpty(600)), "{full}");
}

async fn an_import_goes_on_with_the_file_that_it_began_with_and_no_other() {
    let desk = story().await;
    let text = exported(&desk.place).await;
    let cut: String = text.split_inclusive('\n').take(550).collect();
    let (taken, refused) = import(&cut).await;
    assert!(refused.unwrap_err().to_string().starts_with("line 551: the file ends here"));
    let there = *taken.journal.newest_position().borrow();
    assert!((256..550).contains(&there), "{there}");

    let mut other = ForgedExport::of(&text);
    other.states[99]["state"]["status"]["phase"] = "Pending".into();
    let (taken, refused) = go_on(taken, &other.text()).await;
    let error = refused.unwrap_err().to_string();
    assert!(
        error.starts_with("line 101: its state is not the one that the journal has at position 100"),
        "{error}"
    );
    let mut other = ForgedExport::of(&text);
    let document = other.states[99]["document"].as_str().unwrap().replace("\"x\":1", "\"x\":2");
    other.states[99]["document"] = document.into();
    let (taken, refused) = go_on(taken, &other.text()).await;
    assert!(refused.unwrap_err().to_string().starts_with("line 101: "));
    let mut shorter = ForgedExport::of(&text);
    shorter.states.truncate(100);
    let (taken, refused) = go_on(taken, &shorter.renumbered().text()).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.starts_with(&format!("line 102: the journal has {there} states already")), "{error}");
    assert_eq!(*taken.journal.newest_position().borrow(), there, "none of these took anything in");

    let (again, done) = go_on(taken, &text).await;
    assert_eq!(done.unwrap(), 600);
    again.assert_sound().await;
}

async fn what_an_import_left_is_thrown_away_and_a_whole_journal_never() {
    let desk = story().await;
    let text = exported(&desk.place).await;
    let refused = discard_unfinished_import(&desk.place).await.unwrap_err();
    let in_use = matches!(refused, OpenError::InUse(_) | OpenError::Held { .. });
    assert!(in_use, "{refused}");
    let TestJournal { folder, place, journal } = desk;
    journal.close().await.unwrap();
    let refused = discard_unfinished_import(&place).await.unwrap_err();
    assert!(matches!(refused, OpenError::NothingToDiscard { .. }), "{refused}");
    assert_eq!(exported(&place).await, text);
    drop(folder);

    let cut: String = text.split_inclusive('\n').take(400).collect();
    let (taken, refused) = import(&cut).await;
    refused.unwrap_err();
    let TestJournal { folder, place, journal } = taken;
    assert!(discard_unfinished_import(&place).await.is_err(), "while it is open");
    journal.close().await.unwrap();
    discard_unfinished_import(&place).await.unwrap();
    let refused = discard_unfinished_import(&place).await.unwrap_err();
    assert!(matches!(refused, OpenError::NothingToDiscard { .. }), "{refused}");
    if StoreKind::here() == StoreKind::Sqlite {
        let left: Vec<_> =
            folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["journal.db.lock"]);
    }
    let again = TestJournal { journal: open_at(&place).await, folder, place };
    assert_eq!(again.journal.import_lines(&mut BufReader::new(text.as_bytes())).await.unwrap().states, 600);
    again.assert_sound().await;
}

/// The variable with the path or address of the child's journal.
const PATH: &str = "KUBEWITNESS_TEST_IMPORT_JOURNAL";

fn place_of(text: &str) -> JournalLocation {
    JournalLocation::server(text).unwrap_or_else(|_| JournalLocation::file(text.as_ref()))
}

/// A reader that reports how much of its input was read.
struct TellingReader<R>(R);

impl<R: Read> Read for TellingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(buffer)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "read {read}").and_then(|()| out.flush())?;
        Ok(read)
    }
}

/// The child's code, and not a test of its own. Without the variable it does nothing.
#[test]
fn child_imports_until_it_is_killed() {
    let Ok(path) = std::env::var(PATH) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let journal = open_at(&place_of(&path)).await;
        journal.import_lines(&mut BufReader::new(TellingReader(std::io::stdin()))).await.unwrap();
    });
}

async fn an_import_that_was_killed_is_told_from_a_whole_one_and_goes_on() {
    let desk = story().await;
    let text = exported(&desk.place).await;
    let folder = tempfile::tempdir().unwrap();
    let path = match StoreKind::here().server() {
        None => folder.path().join("journal.db").to_str().unwrap().to_owned(),
        Some(server) => server.create_database().unwrap(),
    };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "copy::import::unfinished::child_imports_until_it_is_killed", "--nocapture"])
        .env(PATH, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The child has imported its whole input except the last lines, which are in its unfinished batch.
    let given = text.len() - 2_000;
    // The pipe stays open, so the child waits for more. Its output meanwhile is short.
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    stdin.write_all(&text.as_bytes()[..given]).unwrap();
    let mut read = 0;
    for line in BufReader::new(stdout).lines() {
        let line = line.unwrap();
        read += line.rsplit_once("read ").and_then(|(_, bytes)| bytes.trim().parse().ok()).unwrap_or(0);
        if read >= given {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);

    let place = place_of(&path);
    let report = verify_at(&place).await.unwrap();
    let codes: Vec<_> = report.problems.iter().map(|problem| problem.code.as_str()).collect();
    assert_eq!(codes, ["unfinished"], "{:#?}", report.problems);
    assert!(report.states_checked >= 256, "{}", report.states_checked);
    let options = JournalOptions { continues_import: true, ..options() };
    let journal = Journal::open_at(&place, options).await.unwrap();
    assert_eq!(journal.import_lines(&mut BufReader::new(text.as_bytes())).await.unwrap().states, 600);
    journal.close().await.unwrap();
    assert!(verify_at(&place).await.unwrap().ok);
    assert_eq!(exported(&place).await, text);
}

on_every_store!(
    an_import_whose_first_state_is_refused_is_not_whole_and_can_be_thrown_away,
    an_import_that_failed_is_not_whole_until_it_went_on_to_its_end,
    an_import_goes_on_with_the_file_that_it_began_with_and_no_other,
    what_an_import_left_is_thrown_away_and_a_whole_journal_never,
    an_import_that_was_killed_is_told_from_a_whole_one_and_goes_on,
);

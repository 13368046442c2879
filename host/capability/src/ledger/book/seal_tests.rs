//! Tests of statements, closed files, and kills in between.

use std::path::PathBuf;

use kubewitness_core::ledger::{
    FileRotation, LedgerSchedule, LedgerStatement, SigningInterval, StatementKind, closed_file, is_statement,
};

use super::receipts::COMPACT_LINES;
use super::*;
use crate::secrets::signing_keys::SigningKey;

const SCHEDULE: LedgerSchedule = LedgerSchedule {
    rotation: Some(FileRotation { bytes: 900, every_ms: None }),
    signing: Some(SigningInterval { records: 2, every_ms: 1000 }),
};

struct SealFiles {
    folder: tempfile::TempDir,
    key: SigningKey,
}

impl SealFiles {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), key: SigningKey::fresh() }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("trail.jsonl")
    }

    fn closed(&self, file: u64) -> PathBuf {
        closed_file(&self.data(), file)
    }

    fn sidecar(&self) -> PathBuf {
        self.data().with_extension("receipts")
    }

    fn open(&self) -> LedgerBook {
        LedgerBook::open(&self.data(), None, BookOpening::First).unwrap()
    }

    /// Appends as a call does: first what is due, then its record.
    fn append(&self, book: &mut LedgerBook, seq: Seq) {
        self.tend(book);
        let line = format!("state {seq}");
        let mark = ReceiptMark { seq, print: IdPrint::of("1") };
        let intent = book.append_lines("p", &[mark], format!("{line}\n").as_bytes(), 1, None).unwrap();
        book.keep_append(intent, line.into_bytes()).unwrap();
    }

    fn tend(&self, book: &mut LedgerBook) {
        if let Some(written) = book.write_due_statement(&SCHEDULE, Some(&self.key)).unwrap() {
            let (statement, line) = book.settle_statement(written).unwrap();
            if statement.kind == StatementKind::Seal {
                book.close(&statement, &line).unwrap();
            }
        }
    }

    /// The lines of all files in order.
    fn lines(&self) -> Vec<String> {
        let closed = (1..).map(|file| self.closed(file)).take_while(|path| path.exists());
        let texts = closed.chain([self.data()]).map(|path| std::fs::read_to_string(path).unwrap());
        texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    fn records(&self) -> Vec<String> {
        self.lines().into_iter().filter(|line| !is_statement(line.as_bytes())).collect()
    }
}

fn states(seqs: impl Iterator<Item = Seq>) -> Vec<String> {
    seqs.map(|seq| format!("state {seq}")).collect()
}

fn applied(book: &LedgerBook) -> Vec<Seq> {
    book.receipts_of_plugin("p").into_iter().map(|mark| mark.seq).collect()
}

#[test]
fn files_are_signed_and_closed_and_a_plugin_sees_its_records_alone() {
    let files = SealFiles::new();
    let mut book = files.open();
    for seq in 1..=9 {
        files.append(&mut book, seq);
        assert_eq!((book.records, book.last.clone()), (seq, Some(format!("state {seq}").into_bytes())));
    }
    drop(book);
    assert_eq!(files.records(), states(1..=9));
    assert!(files.closed(1).exists() && !files.closed(3).exists());
    let kinds: Vec<_> =
        files.lines().iter().filter_map(|line| LedgerStatement::parse(line.as_bytes())).collect();
    let kinds: Vec<_> = kinds.iter().map(|statement| (statement.kind, statement.file)).collect();
    assert_eq!(
        &kinds[..4],
        [
            (StatementKind::Root, 1),
            (StatementKind::Root, 1),
            (StatementKind::Seal, 1),
            (StatementKind::Head, 2)
        ]
    );
    let mut book = files.open();
    assert_eq!(
        (book.records, book.last.as_deref(), applied(&book).len()),
        (9, Some(b"state 9".as_slice()), 9)
    );
    files.append(&mut book, 10);
    assert_eq!(files.records(), states(1..=10));
}

#[test]
fn a_ledger_from_before_goes_on_as_its_first_file() {
    let files = SealFiles::new();
    std::fs::write(files.data(), "state 1\nstate 2\n").unwrap();
    let mut book = files.open();
    files.append(&mut book, 3);
    let lines = files.lines();
    let root = LedgerStatement::parse(lines[2].as_bytes()).unwrap();
    assert_eq!((root.kind, root.file, root.lines, root.records), (StatementKind::Root, 1, Some(2), 2));
    assert_eq!(root.adopted, Some(2));
    assert_eq!(files.records(), states(1..=3));
}

#[test]
fn records_that_nobody_follows_are_signed_once_they_are_old_enough() {
    let files = SealFiles::new();
    let mut book = files.open();
    files.append(&mut book, 1);
    book.now_ms = 999;
    assert!(book.write_due_statement(&SCHEDULE, Some(&files.key)).unwrap().is_none());
    book.now_ms = 1000;
    let root = book.write_due_statement(&SCHEDULE, Some(&files.key)).unwrap().unwrap();
    book.settle_statement(root).unwrap();
    assert!(book.write_due_statement(&SCHEDULE, Some(&files.key)).unwrap().is_none(), "and not again");
}

/// A book whose file ends with a seal that nothing follows yet.
fn sealed() -> (SealFiles, LedgerBook, (LedgerStatement, Vec<u8>)) {
    let files = SealFiles::new();
    let mut book = files.open();
    (1..=2).for_each(|seq| files.append(&mut book, seq));
    let full = LedgerSchedule { rotation: Some(FileRotation { bytes: 1, every_ms: None }), ..SCHEDULE };
    let written = book.write_due_statement(&full, Some(&files.key)).unwrap().unwrap();
    let seal = book.settle_statement(written).unwrap();
    (files, book, seal)
}

#[test]
fn killed_at_any_step_of_a_turn_the_next_start_ends_it_and_nothing_is_lost() {
    type SealKill = fn(&SealFiles);
    let before_the_note: SealKill = |_| {};
    let before_the_name: SealKill = |files| std::fs::rename(files.closed(1), files.data()).unwrap();
    let before_the_next: SealKill = |files| std::fs::remove_file(files.data()).unwrap();
    let in_the_next: SealKill = |files| {
        std::fs::remove_file(files.data()).unwrap();
        std::fs::write(files.data().with_extension("jsonl.new"), "{\"kubewit").unwrap();
    };
    let at_the_end: SealKill = |_| {};
    for (step, kill) in
        [before_the_note, before_the_name, before_the_next, in_the_next, at_the_end].into_iter().enumerate()
    {
        let (files, mut book, seal) = sealed();
        let whole = std::fs::read(files.data()).unwrap();
        if step > 0 {
            book.close(&seal.0, &seal.1).unwrap();
        }
        drop(book);
        if (1..4).contains(&step) {
            // The line about the start of the next file was not written yet.
            let notes = std::fs::read_to_string(files.sidecar()).unwrap();
            let (before, settled) = notes.trim_end().rsplit_once('\n').unwrap();
            assert!(settled.contains("settled"), "{settled}");
            std::fs::write(files.sidecar(), format!("{before}\n")).unwrap();
        }
        kill(&files);
        // A second kill, right after the start.
        for _ in 0..2 {
            let book = files.open();
            assert_eq!((book.records, applied(&book)), (2, vec![1, 2]), "{step}");
            assert_eq!(book.last.as_deref(), Some(b"state 2".as_slice()), "{step}");
        }
        let mut book = files.open();
        files.append(&mut book, 3);
        drop(book);
        assert_eq!(std::fs::read(files.closed(1)).unwrap(), whole, "{step}");
        assert_eq!(files.records(), states(1..=3));
        let heads = files.lines().iter().filter(|line| line.contains("\"head\"")).count();
        assert_eq!(heads, 1, "{step}");
    }
}

#[test]
fn a_compaction_of_a_file_without_records_keeps_the_record_before_it() {
    let (files, mut book, seal) = sealed();
    book.close(&seal.0, &seal.1).unwrap();
    book.lines = COMPACT_LINES;
    book.forget_receipts("p", 2, 0).unwrap();
    drop(book);
    let book = files.open();
    assert_eq!((book.records, book.last.as_deref()), (2, Some(b"state 2".as_slice())));
    // Without its receipts, the ledger could not continue after that record.
    drop(book);
    std::fs::remove_file(files.sidecar()).unwrap();
    let error = LedgerBook::open(&files.data(), None, BookOpening::First).err().unwrap().to_string();
    assert!(error.contains("its `.receipts` file is missing: restore it"), "{error}");
}

#[test]
fn the_file_after_a_closed_one_is_not_begun_again_when_it_is_taken_away() {
    for opening in [BookOpening::First, BookOpening::Again] {
        let (files, mut book, seal) = sealed();
        book.close(&seal.0, &seal.1).unwrap();
        drop(book);
        let away = files.data().with_extension("away");
        std::fs::rename(files.data(), &away).unwrap();
        let error = LedgerBook::open(&files.data(), None, opening).err().unwrap().to_string();
        assert!(error.contains("trail.jsonl is gone") && !files.data().exists(), "{error}");
        std::fs::rename(&away, files.data()).unwrap();
        assert_eq!(LedgerBook::open(&files.data(), None, opening).unwrap().records, 2);
    }
}

#[test]
fn no_file_is_overwritten_when_one_is_closed() {
    let (files, mut book, seal) = sealed();
    std::fs::write(files.closed(1), "of somebody else\n").unwrap();
    let error = book.close(&seal.0, &seal.1).unwrap_err().to_string();
    assert!(error.contains("trail-000001.jsonl is in the way"), "{error}");
    drop(book);
    assert!(LedgerBook::open(&files.data(), None, BookOpening::Again).is_err());
    std::fs::remove_file(files.closed(1)).unwrap();
    assert_eq!(files.open().records, 2);
    assert!(files.closed(1).exists());
}

#[test]
fn a_changed_record_is_found_when_the_file_is_next_signed() {
    let files = SealFiles::new();
    let mut book = files.open();
    (1..=3).for_each(|seq| files.append(&mut book, seq));
    drop(book);
    let text = std::fs::read_to_string(files.data()).unwrap();
    std::fs::write(files.data(), text.replace("state 1", "state 7")).unwrap();
    let mut book = files.open();
    let error = book.write_due_statement(&SCHEDULE, Some(&files.key)).err().unwrap().to_string();
    assert!(error.contains("line 3") && error.contains("has another root"), "{error}");
}

/// The content of the disk after a kill, for each byte of each write.
fn images(sidecar: &str, data: &str) -> Vec<(String, String)> {
    let (mut images, mut noted, mut written) = (Vec::new(), String::new(), 0);
    for line in sidecar.split_inclusive('\n') {
        images.push((format!("{noted}{}", &line[..line.len() / 2]), data[..written].to_owned()));
        noted.push_str(line);
        if let Ok(ReceiptLine::Intent(intent)) = serde_json::from_str(line) {
            for _ in 0..intent.bytes {
                images.push((noted.clone(), data[..written].to_owned()));
                written += 1;
            }
        }
    }
    images
}

#[test]
fn killed_at_any_byte_of_a_statement_each_state_is_there_once_and_the_file_can_be_signed() {
    let (files, book, _) = sealed();
    drop(book);
    let (sidecar, data) =
        (std::fs::read_to_string(files.sidecar()).unwrap(), std::fs::read_to_string(files.data()).unwrap());
    let images = images(&sidecar, &data);
    assert!(images.len() > 450, "{}", images.len());
    for (sidecar, data) in images.into_iter().step_by(11) {
        let files = SealFiles::new();
        std::fs::write(files.sidecar(), &sidecar).unwrap();
        std::fs::write(files.data(), &data).unwrap();
        let mut book = files.open();
        let kept = applied(&book);
        assert_eq!(files.records(), states(kept.iter().copied()), "{sidecar}\n{data}");
        (1..=4).filter(|seq| !kept.contains(seq)).for_each(|seq| files.append(&mut book, seq));
        book.now_ms = 5000;
        files.tend(&mut book);
        assert_eq!((files.records(), book.records), (states(1..=4), 4));
        assert!(files.lines().last().is_some_and(|line| is_statement(line.as_bytes())));
    }
}

/// Undoing a statement whose sync failed must leave what is before it.
#[test]
fn a_statement_that_never_came_to_the_disk_is_cut_and_written_again() {
    let files = SealFiles::new();
    let mut book = files.open();
    (1..=2).for_each(|seq| files.append(&mut book, seq));
    let cut = book.cut_at(book.bytes);
    assert!(book.write_due_statement(&SCHEDULE, Some(&files.key)).unwrap().is_some());
    drop(book);
    let mut book = LedgerBook::open(&files.data(), Some(cut), BookOpening::Again).unwrap();
    assert_eq!((book.records, files.lines().len()), (2, 2));
    files.tend(&mut book);
    assert_eq!(files.lines().len(), 3);
}

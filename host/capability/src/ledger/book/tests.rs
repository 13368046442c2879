use super::receipts::COMPACT_LINES;
use super::recovery::SECTOR;
use super::*;

fn mark(seq: Seq) -> ReceiptMark {
    ReceiptMark { seq, print: IdPrint::of(&seq.to_string()) }
}

struct BookFiles {
    folder: tempfile::TempDir,
}

impl BookFiles {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("audit/ledger.jsonl")
    }

    fn sidecar(&self) -> PathBuf {
        self.data().with_extension("receipts")
    }

    fn open(&self) -> io::Result<LedgerBook> {
        LedgerBook::open(&self.data(), None, BookOpening::First)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.data()).unwrap()
    }
}

fn append(book: &mut LedgerBook, seq: Seq, line: &str) {
    let intent = book.append_lines("p", &[mark(seq)], format!("{line}\n").as_bytes(), 1, None).unwrap();
    book.keep_append(intent, line.as_bytes().to_vec()).unwrap();
}

fn applied(book: &LedgerBook) -> Vec<Seq> {
    book.receipts_of_plugin("p").into_iter().map(|mark| mark.seq).collect()
}

#[test]
fn records_and_receipts_are_there_after_a_restart() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    append(&mut book, 1, "one");
    append(&mut book, 2, "two");
    drop(book);
    let book = files.open().unwrap();
    assert_eq!((book.records, book.last.as_deref()), (2, Some(b"two".as_slice())));
    assert_eq!(applied(&book), [1, 2]);
    assert_eq!(book.receipts_of_plugin("other"), []);
    assert_eq!(book.receipts_of_plugin("p"), [mark(1), mark(2)]);
}

/// Opening any of them as a file would never end: a pipe that its reader also holds for writing has no end.
#[test]
fn a_pipe_or_a_folder_in_the_place_of_a_ledger_or_of_its_receipts_is_refused_by_name() {
    for (suffix, place) in
        [("jsonl", "it is a pipe"), ("receipts", "ledger.receipts beside it: it is a pipe")]
    {
        let files = BookFiles::new();
        let path = files.data().with_extension(suffix);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = files.open().err().unwrap().to_string();
        assert!(error.contains(place), "{error}");
    }
    let files = BookFiles::new();
    std::fs::create_dir_all(files.data()).unwrap();
    assert!(files.open().err().unwrap().to_string().contains("it is a folder"));
}

#[test]
fn killed_after_the_intent_leaves_nothing_applied() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    append(&mut book, 1, "one");
    book.append_lines("p", &[mark(2)], b"two\n", 1, None).unwrap();
    drop(book);
    for torn in ["one\n", "one\ntw"] {
        std::fs::write(files.data(), torn).unwrap();
        let book = files.open().unwrap();
        assert_eq!(files.text(), "one\n");
        assert_eq!((applied(&book), book.records), (vec![1], 1));
    }
    // The states come again, and the intent that was undone stays undone.
    append(&mut files.open().unwrap(), 3, "three");
    let book = files.open().unwrap();
    assert_eq!((applied(&book), files.text().as_str()), (vec![1, 3], "one\nthree\n"));
}

#[test]
fn killed_after_the_records_leaves_them_applied() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    append(&mut book, 1, "one");
    book.append_lines("p", &[mark(2)], b"two\n", 1, None).unwrap();
    drop(book);
    let book = files.open().unwrap();
    assert_eq!(
        (applied(&book), book.records, book.last.as_deref()),
        (vec![1, 2], 2, Some(b"two".as_slice()))
    );
}

#[test]
fn a_torn_intent_is_cut_and_its_append_never_began() {
    let files = BookFiles::new();
    append(&mut files.open().unwrap(), 1, "one");
    let mut sidecar = std::fs::read(files.sidecar()).unwrap();
    sidecar.extend_from_slice(b"{\"intent\":{\"offs");
    std::fs::write(files.sidecar(), sidecar).unwrap();
    append(&mut files.open().unwrap(), 2, "two");
    assert_eq!(applied(&files.open().unwrap()), [1, 2]);
}

#[test]
fn acknowledged_records_that_are_missing_are_refused_and_not_repaired() {
    let files = BookFiles::new();
    append(&mut files.open().unwrap(), 1, "one");
    std::fs::write(files.data(), "o").unwrap();
    let error = files.open().err().unwrap();
    assert!(error.to_string().contains("removed"), "{error}");
    assert_eq!(files.text(), "o");
}

#[test]
fn bytes_that_nobody_announced_are_refused() {
    let files = BookFiles::new();
    append(&mut files.open().unwrap(), 1, "one");
    std::fs::write(files.data(), "one\nforged\n").unwrap();
    let error = files.open().err().unwrap();
    assert!(error.to_string().contains("another program"), "{error}");
}

#[test]
fn a_changed_last_append_that_was_not_settled_is_refused() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    book.append_lines("p", &[mark(1)], b"one\n", 1, None).unwrap();
    drop(book);
    std::fs::write(files.data(), "0ne\n").unwrap();
    let error = files.open().err().unwrap();
    assert!(error.to_string().contains("not those"), "{error}");
}

#[test]
fn a_damaged_receipt_is_refused_with_its_line() {
    let files = BookFiles::new();
    append(&mut files.open().unwrap(), 1, "one");
    let text = std::fs::read_to_string(files.sidecar()).unwrap();
    std::fs::write(files.sidecar(), text.replace("intent", "intend")).unwrap();
    let error = files.open().err().unwrap();
    assert!(error.to_string().contains("line 2"), "{error}");
}

#[test]
fn a_file_from_before_is_taken_over_with_its_lines() {
    let files = BookFiles::new();
    std::fs::create_dir_all(files.data().parent().unwrap()).unwrap();
    std::fs::write(files.data(), "a\nb\n").unwrap();
    let book = files.open().unwrap();
    assert_eq!((book.records, book.last.as_deref()), (2, Some(b"b".as_slice())));
}

#[test]
fn only_one_writer_has_the_file() {
    let files = BookFiles::new();
    let _first = files.open().unwrap();
    assert_eq!(files.open().err().unwrap().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_child_process_that_is_just_being_started_keeps_no_ledger_locked() {
    let files = BookFiles::new();
    let book = files.open().unwrap();
    let of_the_child = book.data.try_clone().unwrap();
    drop(book);
    files.open().unwrap();
    drop(of_the_child);
}

#[test]
fn compaction_keeps_what_is_above_the_cursor() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    append(&mut book, 1, "one");
    append(&mut book, 2, "two");
    book.lines = COMPACT_LINES;
    book.forget_receipts("p", 1, 0).unwrap();
    append(&mut book, 3, "three");
    drop(book);
    assert_eq!(std::fs::read_to_string(files.sidecar()).unwrap().lines().count(), 4);
    let book = files.open().unwrap();
    assert_eq!((applied(&book), book.records), (vec![2, 3], 3));
}

#[test]
fn an_append_that_a_transaction_decides_waits_for_its_answer() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    let decider = DecidingTransaction { database: "platform".into(), token: "t".into() };
    book.append_lines("p", &[mark(1)], b"one\n", 1, Some(decider)).unwrap();
    drop(book);
    let mut book = files.open().unwrap();
    assert_eq!(applied(&book), [] as [Seq; 0]);
    let intent = book.doubt.take().unwrap();
    book.keep_doubted(intent).unwrap();
    drop(book);
    let book = files.open().unwrap();
    assert_eq!((book.doubt.clone(), applied(&book)), (None, vec![1]));
    drop(book);
    // Otherwise it is cut at its offset.
    let cut = files.open().unwrap().cut_at(0);
    let book = LedgerBook::open(&files.data(), Some(cut), BookOpening::Again);
    assert!(book.is_err(), "settled records are not cut: they were acknowledged");
}

/// The content of the disk after a kill, for each byte of each write, in the order of `append` and `keep`.
fn images(sidecar: &str, data: &str) -> Vec<(String, String)> {
    let (mut images, mut noted, mut written) = (Vec::new(), String::new(), 0);
    for line in sidecar.split_inclusive('\n') {
        for end in 0..line.len() {
            images.push((format!("{noted}{}", &line[..end]), data[..written].to_owned()));
        }
        noted.push_str(line);
        if let Ok(ReceiptLine::Intent(intent)) = serde_json::from_str(line) {
            for _ in 0..intent.bytes {
                images.push((noted.clone(), data[..written].to_owned()));
                written += 1;
            }
        }
    }
    images.push((noted, data.to_owned()));
    images
}

#[test]
fn killed_at_any_byte_each_state_is_there_exactly_once_in_the_end() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    for seq in 1..=3 {
        append(&mut book, seq, &format!("state {seq}"));
    }
    drop(book);
    let sidecar = std::fs::read_to_string(files.sidecar()).unwrap();
    let images = images(&sidecar, &files.text());
    assert!(images.len() > 500, "{}", images.len());
    // Every seventh only: syncing all would take ten seconds. No line's length is a multiple of 7.
    for (sidecar, data) in images.into_iter().step_by(7) {
        std::fs::write(files.sidecar(), &sidecar).unwrap();
        std::fs::write(files.data(), &data).unwrap();
        let mut book = files.open().unwrap_or_else(|error| panic!("{error}\n{sidecar}\n{data}"));
        let states = applied(&book);
        let lines: Vec<_> = files.text().lines().map(str::to_owned).collect();
        assert_eq!(lines, states.iter().map(|seq| format!("state {seq}")).collect::<Vec<_>>());
        for seq in (1..=3).filter(|seq| !states.contains(seq)) {
            append(&mut book, seq, &format!("state {seq}"));
        }
        assert_eq!((files.text().as_str(), book.records), ("state 1\nstate 2\nstate 3\n", 3));
    }
}

/// The file after a power cut: the sectors between two offsets were never written.
fn lose(path: &Path, from: u64, to: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    let end = (to as usize).min(bytes.len());
    bytes[from as usize..end].fill(0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_append_of_which_a_power_cut_took_a_part_comes_again_wherever_the_part_was() {
    let (short, long) = ("x".repeat(700), "y".repeat(3000));
    let sectors = (0..8).map(|sector| (sector * SECTOR, (sector + 1) * SECTOR));
    for (from, to) in sectors.filter(|(_, to)| *to > 701) {
        let files = BookFiles::new();
        let mut book = files.open().unwrap();
        append(&mut book, 1, &short);
        book.append_lines("p", &[mark(2)], format!("{long}\n").as_bytes(), 1, None).unwrap();
        drop(book);
        lose(&files.data(), from.max(701), to);
        let mut book = files.open().unwrap();
        assert_eq!((book.records, applied(&book)), (1, vec![1]), "{from} to {to}");
        append(&mut book, 2, &long);
        drop(book);
        assert_eq!(files.text(), format!("{short}\n{long}\n"));
        assert_eq!(applied(&files.open().unwrap()), [1, 2]);
    }
}

#[test]
fn notes_that_a_power_cut_tore_are_of_an_append_that_had_not_begun() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    append(&mut book, 1, "one");
    drop(book);
    // Neither the mark that the first intent is settled nor the next intent was synced.
    let notes = std::fs::read_to_string(files.sidecar()).unwrap();
    let settled = notes.find("{\"settled\":{\"bytes\":4").unwrap() as u64;
    let length = notes.len() as u64;
    for (from, to) in [(settled, length - 1), (settled + 3, settled + 9), (settled, length)] {
        std::fs::write(files.sidecar(), &notes).unwrap();
        lose(&files.sidecar(), from, to);
        let book = files.open().unwrap();
        assert_eq!((book.records, applied(&book)), (1, vec![1]));
    }
    // Synced bytes can't be torn.
    std::fs::write(files.sidecar(), &notes).unwrap();
    lose(&files.sidecar(), 0, 9);
    assert_eq!(files.open().err().unwrap().kind(), io::ErrorKind::InvalidData);
}

/// A handle that stays open would write into a file that no longer has a name.
#[test]
fn an_append_is_refused_by_name_while_a_file_of_the_ledger_is_not_the_one_that_is_open() {
    type FileHarm = fn(&Path);
    let removed: FileHarm = |path| std::fs::remove_file(path).unwrap();
    let replaced: FileHarm = |path| {
        std::fs::rename(path, path.with_extension("1")).unwrap();
        std::fs::write(path, "").unwrap();
    };
    let copied: FileHarm = |path| {
        let text = std::fs::read(path).unwrap();
        std::fs::rename(path, path.with_extension("1")).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let emptied: FileHarm = |path| std::fs::write(path, "").unwrap();
    let piped: FileHarm = |path| {
        std::fs::remove_file(path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    for (harm, message) in [
        (removed, "is gone"),
        (replaced, "is another file"),
        (copied, "is another file"),
        (emptied, "another program changed it"),
        (piped, "it is a pipe"),
    ] {
        for suffix in ["jsonl", "receipts"] {
            let files = BookFiles::new();
            let mut book = files.open().unwrap();
            append(&mut book, 1, "one");
            let path = files.data().with_extension(suffix);
            harm(&path);
            let error = book.expect_in_place().unwrap_err().to_string();
            assert!(error.contains(message) && error.contains(&path.display().to_string()), "{error}");
            assert!(
                book.forget_receipts("p", 0, 0).is_err(),
                "nor does a compaction put a file in its place"
            );
        }
    }
}

#[test]
fn a_file_of_a_known_ledger_is_not_made_anew_and_the_message_says_what_to_do() {
    for opening in [BookOpening::First, BookOpening::Again] {
        let files = BookFiles::new();
        append(&mut files.open().unwrap(), 1, "one");
        std::fs::rename(files.data(), files.data().with_extension("1")).unwrap();
        let error = LedgerBook::open(&files.data(), None, opening).err().unwrap().to_string();
        assert!(error.contains("ledger.jsonl is gone") && error.contains("bring the file back"), "{error}");
        assert!(!files.data().exists(), "an empty file would pass for the ledger");
        std::fs::rename(files.data().with_extension("1"), files.data()).unwrap();
        assert_eq!(applied(&LedgerBook::open(&files.data(), None, opening).unwrap()), [1]);
    }
    // A running process does not begin its receipts anew either, because states would come again.
    let files = BookFiles::new();
    append(&mut files.open().unwrap(), 1, "one");
    std::fs::remove_file(files.sidecar()).unwrap();
    let error = LedgerBook::open(&files.data(), None, BookOpening::Again).err().unwrap().to_string();
    assert!(error.contains("ledger.receipts is gone"), "{error}");
    assert_eq!(files.open().unwrap().records, 1, "and at a start the file is taken over as it is");
}

#[test]
fn what_was_put_in_the_place_of_a_ledger_is_not_cut() {
    let files = BookFiles::new();
    let mut book = files.open().unwrap();
    append(&mut book, 1, "one");
    let cut = book.cut_at(book.bytes);
    drop(book);
    std::fs::rename(files.data(), files.data().with_extension("1")).unwrap();
    std::fs::write(files.data(), "of somebody else\n").unwrap();
    assert!(LedgerBook::open(&files.data(), Some(cut), BookOpening::Again).is_err());
    assert_eq!(files.text(), "of somebody else\n");
    // A file that is too short is not extended with zeros.
    std::fs::rename(files.data().with_extension("1"), files.data()).unwrap();
    std::fs::write(files.data(), "").unwrap();
    assert!(LedgerBook::open(&files.data(), Some(cut), BookOpening::Again).is_err());
    assert_eq!(files.text(), "");
}

//! Random changes: each is detected with the key and a recorded root.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// One change of the files. The positions are drawn from all that exist.
#[derive(Clone, Debug)]
enum FileChange {
    Bit(Index, u8),
    Remove(Index),
    Repeat(Index, Index),
    Swap(Index),
    Add(Index),
    Cut(Index),
    /// So many correctly chained records after the last line.
    Append(usize),
    /// A file with other records, after the same files and with the same key.
    Fork(Index),
    /// All files rewritten with correct hashes: with the same key, another key, or none.
    Rewrite(u8),
    /// A file of another ledger with the same records, with the same key or another one.
    OfAnother(Index, bool),
}

fn change() -> impl Strategy<Value = FileChange> {
    let index = any::<Index>;
    prop_oneof![
        4 => (index(), 0..8u8).prop_map(|(at, bit)| FileChange::Bit(at, bit)),
        1 => index().prop_map(FileChange::Remove),
        1 => (index(), index()).prop_map(|(from, to)| FileChange::Repeat(from, to)),
        1 => index().prop_map(FileChange::Swap),
        1 => index().prop_map(FileChange::Add),
        1 => index().prop_map(FileChange::Cut),
        1 => prop_oneof![1..5usize, 1020..1030usize].prop_map(FileChange::Append),
        1 => index().prop_map(FileChange::Fork),
        1 => (0..3u8).prop_map(FileChange::Rewrite),
        1 => (index(), any::<bool>()).prop_map(|(at, same)| FileChange::OfAnother(at, same)),
    ]
}

/// A ledger and what it was made from.
struct ChangedLedger {
    key: Ed25519KeyPair,
    count: usize,
    every: usize,
    each_file: usize,
}

impl ChangedLedger {
    fn made(&self, id: &str, records: &[String], key: Option<&Ed25519KeyPair>) -> Vec<Vec<String>> {
        ledger(id, records, self.every, self.each_file, key)
    }

    fn files(&self) -> Vec<Vec<String>> {
        self.made(ID, &render_records(self.count), Some(&self.key))
    }

    /// As many records as there are, with other content from this one on.
    fn others(&self, from: usize) -> Vec<String> {
        let id = |number| format!("{} {number}", if number < from { "state" } else { "other" });
        let ids: Vec<_> = (0..self.count).map(id).collect();
        chain_signed(&ids.iter().map(String::as_str).collect::<Vec<_>>(), false)
    }

    /// `None` as in [`changed`].
    fn changed(&self, change: &FileChange) -> Option<Vec<Vec<u8>>> {
        let mut files = self.files();
        let last = files.len() - 1;
        match change {
            FileChange::Append(more) => {
                files[last].extend(render_records(self.count + more).split_off(self.count));
            }
            FileChange::Fork(at) => {
                let at = at.index(files.len());
                let is_root =
                    |line: &String| is_statement(line.as_bytes()) && !line.contains(r#"ledger":"head""#);
                if at == last && !files[last].iter().any(is_root) {
                    return None;
                }
                files[at] = self.made(ID, &self.others(at * self.each_file), Some(&self.key)).swap_remove(at);
            }
            FileChange::Rewrite(how) => {
                let other = key();
                let key = [Some(&self.key), Some(&other), None][usize::from(*how)];
                files = self.made(ID, &self.others(0), key);
            }
            FileChange::OfAnother(at, same) => {
                let (at, other) = (at.index(files.len()), key());
                let key = if *same { &self.key } else { &other };
                files[at] =
                    self.made(&ID.replace('0', "f"), &render_records(self.count), Some(key)).swap_remove(at);
            }
            _ => return changed(&files, change),
        }
        Some(bytes(&files))
    }
}

/// `None` if the change makes no difference, or none that anybody could detect.
fn changed(files: &[Vec<String>], change: &FileChange) -> Option<Vec<Vec<u8>>> {
    if let FileChange::Bit(at, bit) = change {
        let mut files = bytes(files);
        let total = files.iter().map(Vec::len).sum();
        let mut at = at.index(total);
        let file = files.iter_mut().find(|file| {
            let is_here = at < file.len();
            at -= if is_here { 0 } else { file.len() };
            is_here
        })?;
        file[at] ^= 1 << bit;
        return Some(files);
    }
    let mut files = files.to_vec();
    let total: usize = files.iter().map(Vec::len).sum();
    let place = |index: &Index, files: &[Vec<String>]| {
        let mut at = index.index(total);
        let file = files.iter().position(|lines| {
            let is_here = at < lines.len();
            at -= if is_here { 0 } else { lines.len() };
            is_here
        });
        (file.unwrap(), at)
    };
    let last = files.len() - 1;
    let newest = files[last].iter().rposition(|line| is_statement(line.as_bytes())).map_or(0, |at| at + 1);
    match change {
        FileChange::Bit(..)
        | FileChange::Append(_)
        | FileChange::Fork(_)
        | FileChange::Rewrite(_)
        | FileChange::OfAnother(..) => {}
        FileChange::Remove(index) => {
            let (file, at) = place(index, &files);
            if (file, at + 1) == (last, files[last].len()) && at >= newest {
                return None;
            }
            files[file].remove(at);
        }
        FileChange::Repeat(from, to) => {
            let ((file, at), (other, to)) = (place(from, &files), place(to, &files));
            let line = files[file][at].clone();
            files[other].insert(to, line);
        }
        FileChange::Swap(index) => {
            let (file, at) = place(index, &files);
            if at + 1 == files[file].len() {
                return None;
            }
            files[file].swap(at, at + 1);
        }
        FileChange::Add(index) => {
            let (file, at) = place(index, &files);
            files[file].insert(at, chain(&["forged"]).remove(0));
        }
        FileChange::Cut(index) => {
            let (file, at) = place(index, &files);
            // Everything that the recorded root covers is still present.
            if file == last && at + 1 >= newest {
                return None;
            }
            files[file].truncate(at);
        }
    }
    Some(bytes(&files))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn every_change_is_found_with_the_key_and_a_noted_root(
        count in 1..30usize, every in 1..5usize, each_file in 3..12usize, change in change()
    ) {
        let scene = ChangedLedger { key: key(), count, every, each_file };
        let files = bytes(&scene.files());
        let demands = |anchors| ProofDemands {
            keys: public(&scene.key), anchors, signed_every: Some(every as u64), ..ProofDemands::default()
        };
        let whole = proved(&files, &demands(Vec::new()));
        let Some(newest) = &whole.newest_root else { return Ok(()) };
        prop_assert!(whole.ok, "{whole}");
        let anchors = vec![newest.anchor.parse::<RootAnchor>().unwrap().into()];
        let Some(changed) = scene.changed(&change).filter(|changed| *changed != files) else { return Ok(()) };
        let report = proved(&changed, &demands(anchors));
        // Without the newest root, only that root is lost, and the verification reports it. The same holds
        // for records after it.
        let is_told = !report.ok || report.open > whole.open;
        prop_assert!(is_told, "{change:?} was not found: {report}");
        if let FileChange::Append(more) = change {
            prop_assert_eq!(report.ok, whole.open as usize + more <= every + 1024);
        }
    }
}

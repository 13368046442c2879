//! Writes to `kv` of calls that also write rows or ledger records.
//!
//! A receipt commits with the rows; the `kv` writes commit later, with the plugin's progress. So the writes
//! are noted before the receipt commits. After a kill in between, the receipt proves that they count.
//!
//! A note counts if all of its states have a receipt and no later note has any of them. A call that was
//! rolled back leaves its note behind, but the next call with one of its states writes a newer one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::prints::IdPrint;
use super::record;
use crate::ports::KvWrite;
use crate::state::Seq;

const KIND: &str = "kv";

/// A state, as receipts identify it.
pub type ReceiptKey = (Seq, IdPrint);

#[derive(Clone, Debug, PartialEq, Eq)]
struct WriteNote {
    /// The states that were not finished by a later call.
    marks: Vec<ReceiptKey>,
    writes: Vec<KvWrite>,
}

/// The notes of one plugin, by number.
#[derive(Clone, Debug, Default)]
pub struct WriteNotes {
    notes: BTreeMap<u64, WriteNote>,
    /// The writes of committed calls, and the removals of their notes, for the next save.
    owed: Vec<KvWrite>,
    last: u64,
}

#[derive(Serialize, Deserialize)]
struct WriteHead {
    marks: Vec<ReceiptKey>,
    /// Keys, each with the length of its value in the bytes after the head. `None` deletes the key.
    writes: Vec<(String, Option<usize>)>,
}

impl WriteNotes {
    /// Loads a stored note. Returns `None` if the key is not that of such a note, and `Some(false)` if it
    /// can't be read.
    pub fn read(&mut self, key: &str, value: &[u8]) -> Option<bool> {
        let number = super::note_number(KIND, key)?;
        let Some(note) = WriteNote::decode(value) else { return Some(false) };
        self.last = self.last.max(number);
        self.notes.insert(number, note);
        Some(true)
    }

    /// The note to store before the receipt of these states commits, with its number. `None` if a kill would
    /// lose nothing.
    pub fn note_writes(&mut self, marks: &[ReceiptKey], writes: &[KvWrite]) -> Option<(u64, KvWrite)> {
        let is_repeat = self.notes.values().any(|note| note.has_one_of(marks));
        // Without a receipt, a repeat does everything again.
        if marks.is_empty() || (writes.is_empty() && !is_repeat) {
            return None;
        }
        self.last += 1;
        let note = WriteNote { marks: marks.to_vec(), writes: writes.to_vec() };
        let value = Some(note.encode());
        self.notes.insert(self.last, note);
        Some((self.last, KvWrite { key: super::key(KIND, self.last), value }))
    }

    /// Whether the call of a note still has to apply its writes. Another call may have read its receipt
    /// first.
    pub fn is_open(&self, number: u64) -> bool {
        self.notes.contains_key(&number)
    }

    /// Removes the notes of states whose call is finished, in the save that has its writes.
    pub fn remove_finished_notes(&mut self, seqs: &[Seq]) -> Vec<KvWrite> {
        for note in self.notes.values_mut() {
            note.marks.retain(|(seq, _)| !seqs.contains(seq));
        }
        let done = self.notes.extract_if(.., |_, note| note.marks.is_empty());
        done.map(|(number, _)| super::note_removal(KIND, number)).collect()
    }

    /// Returns the writes that count, in order, once the receipts are known. The next save must contain them.
    pub fn committed_writes(&mut self, is_applied: impl Fn(ReceiptKey) -> bool) -> Vec<KvWrite> {
        let counts = |number: &u64, note: &WriteNote| {
            note.marks.iter().all(|mark| is_applied(*mark))
                && !self.notes.range(number + 1..).any(|(_, later)| later.has_one_of(&note.marks))
        };
        let settled: Vec<u64> = self
            .notes
            .iter()
            .filter(|(number, note)| counts(number, note))
            .map(|(number, _)| *number)
            .collect();
        let mut writes = Vec::new();
        for number in settled {
            writes.extend(self.notes.remove(&number).into_iter().flat_map(|note| note.writes));
            self.owed.push(super::note_removal(KIND, number));
        }
        self.owed.extend(writes.iter().cloned());
        writes
    }

    pub fn is_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Takes the pending writes for a save. They precede writes of later calls.
    pub fn take_owed(&mut self) -> Vec<KvWrite> {
        std::mem::take(&mut self.owed)
    }
}

impl WriteNote {
    fn has_one_of(&self, marks: &[ReceiptKey]) -> bool {
        self.marks.iter().any(|mark| marks.contains(mark))
    }

    fn encode(&self) -> Vec<u8> {
        let length = |write: &KvWrite| (write.key.clone(), write.value.as_ref().map(Vec::len));
        let head = WriteHead { marks: self.marks.clone(), writes: self.writes.iter().map(length).collect() };
        let values: Vec<_> = self.writes.iter().filter_map(|write| write.value.as_deref()).collect();
        record::encode(&head, &values)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (WriteHead { marks, writes: lengths }, mut rest) = record::decode(bytes)?;
        let mut writes = Vec::with_capacity(lengths.len());
        for (key, length) in lengths {
            let value = match length {
                Some(length) => {
                    let (value, after) = rest.split_at_checked(length)?;
                    rest = after;
                    Some(value.to_vec())
                }
                None => None,
            };
            writes.push(KvWrite { key, value });
        }
        rest.is_empty().then_some(Self { marks, writes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> KvWrite {
        KvWrite { key: key.into(), value: Some(value.into()) }
    }

    fn mark(seq: Seq, print: u32) -> ReceiptKey {
        (seq, IdPrint::from_short_print(print))
    }

    fn after_a_kill(kept: &[KvWrite]) -> WriteNotes {
        let mut writes = WriteNotes::default();
        for KvWrite { key, value } in kept {
            assert_eq!(writes.read(key, value.as_deref().unwrap()), Some(true));
        }
        writes
    }

    #[test]
    fn what_was_noted_counts_once_its_states_have_receipts() {
        let gone = KvWrite { key: "b".into(), value: None };
        let writes = [set("a", "1\n2"), gone, set("c", "")];
        let (_, kept) =
            WriteNotes::default().note_writes(&[mark(5, 7), (6, IdPrint::of("6"))], &writes).unwrap();
        let mut found = after_a_kill(std::slice::from_ref(&kept));
        assert_eq!(found.committed_writes(|(seq, _)| seq == 5), [], "a receipt is whole or not there");
        assert_eq!(
            found.committed_writes(|found| found == mark(5, 7) || found == (6, IdPrint::of("other"))),
            [],
            "of another state"
        );
        assert_eq!(found.committed_writes(|_| true), writes);
        assert_eq!(found.committed_writes(|_| true), [], "once");
        let owed = found.take_owed();
        assert_eq!(owed[0], KvWrite { key: kept.key, value: None });
        assert_eq!(owed[1..], writes);
    }

    #[test]
    fn the_note_of_a_call_that_was_rolled_back_does_not_count_for_the_next_call() {
        let mut killed = WriteNotes::default();
        let whole = killed.note_writes(&[mark(5, 1), mark(6, 1)], &[set("a", "undone")]);
        // The batch is split, and a half writes nothing to kv.
        let halves =
            [killed.note_writes(&[mark(5, 1)], &[]), killed.note_writes(&[mark(6, 1)], &[set("a", "done")])];
        let kept: Vec<_> = halves.into_iter().chain([whole]).flatten().map(|(_, note)| note).collect();
        assert_eq!(kept.len(), 3);
        assert_eq!(after_a_kill(&kept).committed_writes(|_| true), [set("a", "done")]);
    }

    #[test]
    fn nothing_is_noted_where_a_kill_loses_nothing_and_what_is_finished_is_removed() {
        let mut writes = WriteNotes::default();
        assert_eq!(writes.note_writes(&[mark(1, 1)], &[]), None);
        assert_eq!(
            writes.note_writes(&[], &[set("a", "1")]),
            None,
            "without a receipt all of it comes again"
        );
        let (number, kept) = writes.note_writes(&[mark(1, 1), mark(2, 1)], &[set("a", "1")]).unwrap();
        assert!(writes.is_open(number));
        assert_eq!(writes.remove_finished_notes(&[1]), []);
        assert_eq!(writes.remove_finished_notes(&[2, 3]), [KvWrite { key: kept.key, value: None }]);
        assert_eq!(writes.committed_writes(|_| true), []);
    }

    #[test]
    fn other_keys_are_left_alone_and_a_damaged_note_is_told() {
        let mut writes = WriteNotes::default();
        assert_eq!(writes.read("kv/1", b""), None);
        assert_eq!(writes.read("\0request/00000000000000000001", b""), None);
        assert_eq!(writes.read(&super::super::key(KIND, 1), b"{}\n"), Some(false));
        let (_, kept) = writes.note_writes(&[mark(1, 1)], &[set("a", "12")]).unwrap();
        let value = kept.value.unwrap();
        assert_eq!(writes.read(&kept.key, &value[..value.len() - 1]), Some(false));
    }
}

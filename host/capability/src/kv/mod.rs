//! `kv`: small durable state of one plugin. A call writes into an overlay. A commit applies the overlay and
//! returns the writes, and the dispatcher saves them with the plugin's progress, in the order of the commits
//! ([`KvWrites`]). Saving each write at once was rejected: a call that fails afterwards must leave nothing.
//!
//! If a receipt commits before that save, the writes are noted first: a receipt that is found after a crash
//! proves that they count.
//!
//! Stored keys and values are limited in size, and writes in rate ([`rate`]). Reports about objects
//! ([`reports`]) are written but not kept in memory: only the journal has them, as long as it has the object,
//! and [`ReportRoom`] limits them. This module touches no disk: its callers store what it returns.

mod rate;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::config::Bytes;
use kubewitness_core::intents::writes::{ReceiptKey, WriteNotes};
use kubewitness_core::limits::{KV_BYTES, KV_RATE};
use kubewitness_core::ports::{CallPause, GrantError, KvTurn, KvWrite, KvWrites};
use kubewitness_core::{Seq, mutes, reports};
use rate::WriteDebt;

/// How often a paused plugin checks its rate again, because the operator may have raised it.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Keys are looked up and listed. A longer key is a value in the wrong place.
const KEY_BYTES: usize = 512;
/// The most keys that one listing returns.
const LIST_KEYS: usize = 10_000;

/// The value that the controller shows to every plugin under the key [`mutes::KEY`], which no plugin writes.
#[derive(Clone, Debug, Default)]
pub struct SharedValue(Arc<Mutex<Option<Vec<u8>>>>);

impl SharedValue {
    pub fn set_value(&self, value: Vec<u8>) {
        *self.lock_value() = Some(value).filter(|value| !value.is_empty());
    }

    pub fn get(&self) -> Option<Vec<u8>> {
        self.lock_value().clone()
    }

    fn lock_value(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most bytes in each plugin's `kv`, keys and values together, and how many each plugin may write per
/// second. All plugins share these limits, which may change while they run.
#[derive(Clone, Debug)]
pub struct KvLimits(Arc<EntryBounds>);

#[derive(Debug)]
struct EntryBounds {
    bytes: AtomicU64,
    a_second: AtomicU64,
}

impl Default for KvLimits {
    fn default() -> Self {
        Self(Arc::new(EntryBounds { bytes: KV_BYTES.into(), a_second: KV_RATE.into() }))
    }
}

impl KvLimits {
    pub fn set_limits(&self, bytes: u64, a_second: u64) {
        self.0.bytes.store(bytes, Ordering::Relaxed);
        self.0.a_second.store(a_second, Ordering::Relaxed);
    }

    fn a_second(&self) -> u64 {
        self.0.a_second.load(Ordering::Relaxed)
    }

    /// An entry that already exceeds the limit may shrink.
    fn check_limit(&self, bytes: usize, before: usize) -> Result<(), GrantError> {
        let most = self.0.bytes.load(Ordering::Relaxed);
        if bytes as u64 <= most || bytes <= before {
            return Ok(());
        }
        Err(GrantError::TooLarge(format!(
            "kv would hold {bytes} bytes, the most is {most} (`spec.limits.plugins.kv` of the host's settings)"
        )))
    }
}

/// The size of a plugin's reports in the journal. Writes add to it, even if they replace a report; the
/// controller corrects it whenever the journal has removed some.
#[derive(Clone, Debug, Default)]
pub struct ReportRoom(Arc<AtomicU64>);

impl ReportRoom {
    pub fn set_limit(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn check_limit(&self, further_bytes: usize) -> Result<(), GrantError> {
        let bytes = self.0.load(Ordering::Relaxed).saturating_add(further_bytes as u64);
        if bytes <= reports::PLUGIN_BYTES {
            return Ok(());
        }
        let most = Bytes(reports::PLUGIN_BYTES);
        Err(GrantError::TooLarge(format!(
            "the plugin's reports would have {bytes} bytes, the most is {most}"
        )))
    }
}

type EntryMap = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Default)]
struct StoredEntries {
    entries: EntryMap,
    /// The size of keys and values, tracked so that a call with many keys does not count all of them each
    /// time.
    bytes: usize,
    /// Writes of calls whose receipt may have committed.
    noted: WriteNotes,
    shared_mutes: SharedValue,
    most: KvLimits,
    reports: ReportRoom,
    spent: WriteDebt,
}

impl StoredEntries {
    fn apply_writes(&mut self, writes: &[KvWrite]) {
        for KvWrite { key, value } in writes {
            if reports::is_report(key) {
                self.reports.add(value.as_ref().map_or(0, |value| key.len() + value.len()));
                continue;
            }
            self.bytes -= self.bytes_of(key);
            match value {
                Some(value) => {
                    self.bytes += key.len() + value.len();
                    self.entries.insert(key.clone(), value.clone());
                }
                None => {
                    self.entries.remove(key);
                }
            }
        }
    }

    fn bytes_of(&self, key: &str) -> usize {
        self.entries.get(key).map_or(0, |value| key.len() + value.len())
    }

    /// Counts the writes of a save before the journal makes them.
    fn count_writes<'w>(&mut self, writes: impl IntoIterator<Item = &'w KvWrite>, now: Duration) {
        let size = |write: &KvWrite| write.key.len() + write.value.as_ref().map_or(0, Vec::len);
        let bytes = writes.into_iter().map(size).sum();
        self.spent.add(bytes, self.most.a_second(), now);
    }
}

/// The entries that one plugin has stored, shared by its calls.
#[derive(Clone, Debug, Default)]
pub struct PluginKv {
    stored: Arc<Mutex<StoredEntries>>,
    /// Orders the calls that commit writes.
    turns: Arc<tokio::sync::Mutex<()>>,
}

impl PluginKv {
    pub fn new(
        entries: Vec<(String, Vec<u8>)>,
        noted: WriteNotes,
        shared_mutes: SharedValue,
        most: KvLimits,
        reports: ReportRoom,
    ) -> Self {
        let entries: EntryMap = entries.into_iter().collect();
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        let stored =
            StoredEntries { entries, bytes, noted, shared_mutes, most, reports, spent: WriteDebt::default() };
        Self { stored: Arc::new(Mutex::new(stored)), turns: Arc::default() }
    }

    pub fn open(&self) -> CallOverlay {
        CallOverlay { base: self.clone(), writes: BTreeMap::new(), written: 0, hidden: 0, reported: 0 }
    }

    /// Applies the writes that the receipts prove to be committed.
    pub fn apply_committed(&self, is_applied: impl Fn(ReceiptKey) -> bool) {
        let mut base = self.lock_entries();
        let writes = base.noted.committed_writes(is_applied);
        base.apply_writes(&writes);
    }

    /// Returns the removal of these states' notes for the next save, if nothing of their call was committed.
    pub fn remove_notes(&self, seqs: &[Seq]) -> Vec<KvWrite> {
        self.lock_entries().noted.remove_finished_notes(seqs)
    }

    /// How long the next call waits if the plugin has written ahead of its rate.
    pub fn pause_before_call(&self, now: Duration) -> Option<CallPause> {
        let base = self.lock_entries();
        let wait = base.spent.pause_before_call(base.most.a_second(), now)?.min(LOOK_AGAIN);
        let why = format!(
            "its next call waits: it writes more to `kv` than {} a second, the most of one plugin \
             (`spec.limits.plugins.kvRate` of the host's settings)",
            Bytes(base.most.a_second())
        );
        Some(CallPause { wait, why: why.into() })
    }

    fn lock_entries(&self) -> MutexGuard<'_, StoredEntries> {
        // Every change under this lock is complete, even after a panic. The exception is the writes of a
        // call, which its note has.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses keys that belong to the controller: its notes begin with a NUL.
fn expect_own(key: &str) -> Result<(), GrantError> {
    if key.is_empty() || key.len() > KEY_BYTES || key.contains('\0') {
        return Err(GrantError::Invalid(format!("a key has 1 to {KEY_BYTES} bytes and no NUL")));
    }
    if key == mutes::KEY {
        return Err(GrantError::Invalid(format!("the controller alone writes the key `{key}`")));
    }
    Ok(())
}

/// One call's view: the stored entries, overlaid with the call's own writes.
#[derive(Debug)]
pub struct CallOverlay {
    base: PluginKv,
    writes: BTreeMap<String, Option<Vec<u8>>>,
    /// The bytes of the writes.
    written: usize,
    /// The size of the stored values that this call replaces, as of its writes.
    hidden: usize,
    /// The bytes of reports.
    reported: usize,
}

impl CallOverlay {
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self.writes.get(key) {
            _ if key == mutes::KEY => self.base.lock_entries().shared_mutes.get(),
            Some(written) => written.clone(),
            None => self.base.lock_entries().entries.get(key).cloned(),
        }
    }

    pub fn set_key(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError> {
        expect_own(key)?;
        self.write(key, Some(value))
    }

    /// Deleting a key that was never written costs the journal nothing.
    pub fn delete_key(&mut self, key: &str) -> Result<(), GrantError> {
        expect_own(key)?;
        let is_stored = |key: &str| self.base.lock_entries().entries.contains_key(key);
        // Whether the journal has a report is unknown here.
        if reports::is_report(key) || self.writes.contains_key(key) || is_stored(key) {
            self.write(key, None)?;
        }
        Ok(())
    }

    fn write(&mut self, key: &str, value: Option<Vec<u8>>) -> Result<(), GrantError> {
        let of = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, |value| key.len() + value.len());
        if reports::is_report(key) {
            self.base.lock_entries().reports.check_limit(self.reported + of(&value))?;
            self.reported += of(&value);
            self.writes.insert(key.to_owned(), value);
            return Ok(());
        }
        let base = self.base.lock_entries();
        let (before, hidden) = match self.writes.get(key) {
            Some(before) => (of(before), 0),
            None => (0, base.bytes_of(key)),
        };
        let (written, hidden) = (self.written - before + of(&value), self.hidden + hidden);
        if value.is_some() {
            base.most.check_limit((base.bytes + written).saturating_sub(hidden), base.bytes)?;
        }
        (self.written, self.hidden) = (written, hidden);
        drop(base);
        self.writes.insert(key.to_owned(), value);
        Ok(())
    }

    /// Keys with this prefix, in order.
    pub fn keys_with_prefix(&self, prefix: &str, limit: usize) -> Vec<String> {
        let base = self.base.lock_entries();
        let limit = limit.min(LIST_KEYS);
        let from = || (Bound::Included(prefix), Bound::Unbounded);
        let stored = base.entries.range::<str, _>(from()).map(|(key, _)| key);
        let stored = stored.take_while(|key| key.starts_with(prefix));
        let stored = stored.filter(|key| !self.writes.contains_key(*key)).take(limit);
        let written = self.writes.range::<str, _>(from()).take_while(|(key, _)| key.starts_with(prefix));
        let written = written.filter(|(_, value)| value.is_some()).map(|(key, _)| key).take(limit);
        let mut keys: Vec<String> = stored.chain(written).cloned().collect();
        keys.sort_unstable();
        keys.truncate(limit);
        keys
    }

    /// True if the stored size stays within the limit with these writes.
    pub fn check_size(&self) -> Result<(), GrantError> {
        let base = self.base.lock_entries();
        let stored = base.entries.iter().filter(|(key, _)| !self.writes.contains_key(*key));
        let written = self.writes.iter().filter(|(key, _)| !reports::is_report(key));
        let written = written.filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let bytes: usize = stored.chain(written).map(|(key, value)| key.len() + value.len()).sum();
        base.most.check_limit(bytes, base.bytes)
    }

    /// The note to store before the receipt of these states commits, and its number.
    pub fn note_before_commit(&self, marks: &[ReceiptKey], now: Duration) -> Option<(u64, KvWrite)> {
        let writes =
            self.writes.iter().map(|(key, value)| KvWrite { key: key.clone(), value: value.clone() });
        let writes: Vec<_> = writes.collect();
        let mut base = self.base.lock_entries();
        let (number, note) = base.noted.note_writes(marks, &writes)?;
        base.count_writes([&note], now);
        Some((number, note))
    }

    /// The call's turn, if it has writes for the next save: see [`KvWrites`].
    pub async fn take_turn(&self) -> KvTurn {
        let needs_turn = !self.writes.is_empty() || self.base.lock_entries().noted.is_owed();
        match needs_turn {
            true => Some(self.base.turns.clone().lock_owned().await),
            false => None,
        }
    }

    /// Applies the writes for later calls, and returns what the save of these states' verdicts must write.
    pub fn commit_writes(self, seqs: &[Seq], noted: Option<u64>, turn: KvTurn, now: Duration) -> KvWrites {
        let mut base = self.base.lock_entries();
        // A call that has read the receipt meanwhile has applied them already.
        let is_applied = noted.is_some_and(|number| !base.noted.is_open(number));
        let mut saved = match &turn {
            Some(_) => base.noted.take_owed(),
            None => Vec::new(),
        };
        if !is_applied {
            let writes =
                self.writes.into_iter().map(|(key, value)| KvWrite { key, value }).collect::<Vec<_>>();
            base.apply_writes(&writes);
            saved.extend(writes);
        }
        saved.extend(base.noted.remove_finished_notes(seqs));
        base.count_writes(&saved, now);
        KvWrites::new(saved, turn)
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::intents::prints::IdPrint;

    use super::*;

    fn holding(kept: Vec<(String, Vec<u8>)>) -> PluginKv {
        let (notes, shared) = (WriteNotes::default(), SharedValue::default());
        PluginKv::new(kept, notes, shared, KvLimits::default(), ReportRoom::default())
    }

    #[test]
    fn reports_are_written_and_neither_kept_here_nor_counted_but_bounded() {
        let (most, room) = (KvLimits::default(), ReportRoom::default());
        most.set_limits(10, KV_RATE);
        let kv = PluginKv::new(Vec::new(), WriteNotes::default(), SharedValue::default(), most, room.clone());
        let mut call = kv.open();
        call.set_key("report/u/1", vec![b'x'; 90]).unwrap();
        call.delete_key("report/u/0").unwrap();
        assert_eq!(call.get("report/u/1").map(|value| value.len()), Some(90), "a call sees its own");
        assert!(
            call.check_size().is_ok() && call.set_key("report/u", vec![b'x'; 90]).is_err(),
            "that one is no report"
        );
        let written = call.commit_writes(&[], None, None, Duration::ZERO);
        assert_eq!(written.len(), 2);
        let mut next = kv.open();
        assert_eq!((next.get("report/u/1"), next.keys_with_prefix("", 10).len()), (None, 0));
        room.set_limit(reports::PLUGIN_BYTES - 100);
        assert!(next.set_key("report/u/2", vec![b'x'; 90]).is_ok());
        assert!(matches!(next.set_key("report/u/3", vec![b'x'; 90]), Err(GrantError::TooLarge(_))));
    }

    #[test]
    fn a_call_sees_its_own_writes_and_others_see_them_after_the_commit() {
        let kv = holding(vec![("a".into(), b"1".to_vec()), ("b".into(), b"2".to_vec())]);
        let mut call = kv.open();
        call.set_key("c", b"3".to_vec()).unwrap();
        call.delete_key("a").unwrap();
        assert_eq!(call.get("a"), None);
        assert_eq!(call.keys_with_prefix("", 10), ["b", "c"]);
        assert_eq!(kv.open().keys_with_prefix("", 10), ["a", "b"]);
        let writes = call.commit_writes(&[], None, None, Duration::ZERO);
        assert_eq!(writes.len(), 2);
        assert_eq!(kv.open().keys_with_prefix("", 10), ["b", "c"]);
    }

    #[test]
    fn a_call_that_is_thrown_away_leaves_nothing() {
        let kv = PluginKv::default();
        kv.open().set_key("a", b"1".to_vec()).unwrap();
        assert_eq!(kv.open().get("a"), None);
    }

    #[test]
    fn the_bound_counts_keys_and_values_of_both_layers() {
        let kept = vec![("a".into(), vec![0; KV_BYTES as usize - 11])];
        let kv = holding(kept);
        let mut call = kv.open();
        call.set_key("b", vec![0; 9]).unwrap();
        assert!(matches!(call.set_key("c", vec![]), Err(GrantError::TooLarge(_))));
        assert_eq!(call.keys_with_prefix("", 10), ["a", "b"]);
        call.delete_key("a").unwrap();
        call.set_key("c", vec![0; 100]).unwrap();
    }

    #[test]
    fn a_bound_that_is_lowered_lets_what_is_stored_shrink_and_not_grow() {
        let most = KvLimits::default();
        let kept = vec![("a".into(), vec![0; 99])];
        let kv = PluginKv::new(
            kept,
            WriteNotes::default(),
            SharedValue::default(),
            most.clone(),
            ReportRoom::default(),
        );
        most.set_limits(50, KV_RATE);
        let mut call = kv.open();
        call.check_size().expect("a call that writes nothing is made");
        let error = call.set_key("b", vec![0; 9]).unwrap_err().to_string();
        assert!(error.contains("the most is 50 (`spec.limits.plugins.kv`"), "{error}");
        assert!(matches!(call.set_key("a", vec![0; 100]), Err(GrantError::TooLarge(_))));
        call.set_key("a", vec![0; 60]).unwrap();
        call.check_size().unwrap();
        call.commit_writes(&[], None, None, Duration::ZERO);
        let mut call = kv.open();
        call.set_key("a", vec![0; 9]).unwrap();
        call.set_key("b", vec![0; 39]).unwrap();
        call.commit_writes(&[], None, None, Duration::ZERO);
        let mut call = kv.open();
        assert!(matches!(call.set_key("c", vec![]), Err(GrantError::TooLarge(_))));
        most.set_limits(51, KV_RATE);
        call.set_key("c", vec![]).unwrap();
    }

    #[test]
    fn the_bytes_that_are_counted_while_keys_are_written_are_those_that_are_there() {
        let kv = PluginKv::default();
        let mut random = 7_u32;
        for _ in 0..20 {
            let mut call = kv.open();
            for _ in 0..50 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let key = format!("k{}", random >> 28);
                match (random >> 20) % 3 {
                    0 => call.delete_key(&key).unwrap(),
                    size => call.set_key(&key, vec![0; size as usize * 100]).unwrap(),
                }
            }
            let exact = |entries: &EntryMap| entries.iter().map(|(key, value)| key.len() + value.len()).sum();
            let expected = call.base.lock_entries().bytes + call.written - call.hidden;
            call.commit_writes(&[], None, None, Duration::ZERO);
            let base = kv.lock_entries();
            assert_eq!((base.bytes, expected), (exact(&base.entries), base.bytes));
        }
    }

    #[test]
    fn a_call_that_writes_and_lists_many_keys_looks_at_each_a_few_times() {
        let entries = (0..100_000).map(|key| (format!("{key:06}"), vec![0; 8]));
        let kv = holding(entries.collect());
        let mut call = kv.open();
        // Counting all keys each time takes minutes.
        for key in 0..20_000 {
            call.set_key(&format!("x{key:06}"), vec![0; 8]).unwrap();
            assert_eq!(call.keys_with_prefix("05", 2), ["050000", "050001"]);
        }
        call.delete_key("050000").unwrap();
        assert_eq!(call.keys_with_prefix("05", 2), ["050001", "050002"]);
        assert_eq!(call.keys_with_prefix("", 1_000_000).len(), LIST_KEYS);
    }

    #[test]
    fn a_plugin_reads_what_the_host_tells_and_can_t_write_it() {
        let shared_mutes = SharedValue::default();
        let kv = PluginKv::new(
            vec![],
            WriteNotes::default(),
            shared_mutes.clone(),
            KvLimits::default(),
            ReportRoom::default(),
        );
        assert_eq!(kv.open().get(mutes::KEY), None);
        shared_mutes.set_value(b"[]".to_vec());
        let mut call = kv.open();
        assert_eq!(call.get(mutes::KEY), Some(b"[]".to_vec()));
        assert!(matches!(call.set_key(mutes::KEY, vec![]), Err(GrantError::Invalid(_))));
        assert!(matches!(call.delete_key(mutes::KEY), Err(GrantError::Invalid(_))));
        assert_eq!((call.get(mutes::KEY), call.keys_with_prefix("", 9).len()), (Some(b"[]".to_vec()), 0));
    }

    #[test]
    fn a_plugin_that_writes_ahead_of_its_rate_rests_and_is_told_why() {
        let most = KvLimits::default();
        let kv = PluginKv::new(
            vec![],
            WriteNotes::default(),
            SharedValue::default(),
            most.clone(),
            ReportRoom::default(),
        );
        most.set_limits(1 << 30, 1 << 20);
        let write = |key: &str, mebibytes: usize| {
            let mut call = kv.open();
            call.set_key(key, vec![0; mebibytes << 20]).unwrap();
            call
        };
        let (now, later) = (Duration::from_secs(9), Duration::from_secs(109));
        write("a", 3).commit_writes(&[], None, None, now);
        assert_eq!(kv.pause_before_call(now), None);
        write("b", 7).commit_writes(&[], None, None, now);
        let CallPause { wait, why } = kv.pause_before_call(now).unwrap();
        assert_eq!(wait.as_secs(), 6);
        assert!(why.contains("more to `kv` than 1Mi a second") && why.contains("kvRate"), "{why}");
        most.set_limits(1 << 30, 1);
        assert_eq!(
            kv.pause_before_call(now).unwrap().wait,
            LOOK_AGAIN,
            "the operator may raise the rate meanwhile"
        );
        most.set_limits(1 << 30, 2 << 20);
        assert_eq!(kv.pause_before_call(later), None);
        let call = write("c", 8);
        call.note_before_commit(&[(1, IdPrint::of("1"))], later).unwrap();
        drop(call);
        write("d", 8).commit_writes(&[], None, None, later);
        let wait = kv.pause_before_call(later).unwrap().wait;
        assert_eq!(
            wait.as_secs(),
            4,
            "a note of a call that was rolled back is written, too, and the rate is the new one"
        );
    }

    #[test]
    fn a_plugin_deletes_its_own_keys_alone_and_others_cost_the_journal_nothing() {
        let request = "\0request/1".to_owned();
        let kept = vec![("a".into(), vec![0; 8]), (request.clone(), vec![0; 8])];
        let kv = holding(kept);
        let mut call = kv.open();
        assert!(matches!(call.delete_key(&request), Err(GrantError::Invalid(_))));
        for n in 0..1000 {
            call.delete_key(&format!("unknown{n}")).unwrap();
        }
        call.delete_key("a").unwrap();
        call.set_key("b", vec![]).unwrap();
        call.delete_key("b").unwrap();
        let writes = call.commit_writes(&[], None, None, Duration::ZERO);
        let keys: Vec<_> = writes.iter().map(|write| (write.key.as_str(), write.value.is_none())).collect();
        assert_eq!(keys, [("a", true), ("b", true)]);
        assert!(kv.lock_entries().entries.contains_key(&request));
    }

    #[test]
    fn keys_are_bounded() {
        let mut call = PluginKv::default().open();
        for key in ["", "a\0b", &"k".repeat(KEY_BYTES + 1)] {
            assert!(matches!(call.set_key(key, vec![]), Err(GrantError::Invalid(_))));
            assert!(matches!(call.delete_key(key), Err(GrantError::Invalid(_))));
        }
        for n in 0..5 {
            call.set_key(&format!("k{n}"), vec![]).unwrap();
        }
        assert_eq!(call.keys_with_prefix("k", 2), ["k0", "k1"]);
    }
}

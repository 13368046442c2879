//! Times in phases that are not in the file yet, and the objects that they belong to.
//!
//! Writing each change of a phase when it comes was rejected: it takes a look for the object, one for its open
//! time, and changes of five b-trees, a large part of what the controller does for a state. So the newest objects are held in
//! memory, and what changed is written seconds later, each object once. A query writes first, so that it
//! misses nothing. A crash loses what is pending; the journal has it.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;

use kubewitness_core::Seq;
use rusqlite::{OptionalExtension, Transaction, params};

use super::table::as_signed;

/// Objects in memory. Beyond that, all are forgotten and looked up again.
const MOST_OBJECTS: usize = 57_344;
/// Changes that wait to be written. Writing them takes some tenths of a second, in which no query is answered.
const MOST_CHANGES: usize = 16_384;
/// How long a change waits to be written.
const WAIT_MS: u64 = 2_000;

/// A source and a uid, as two hashes with keys that nobody else knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ObjectPrint(u64, u64);

/// An open time: the phase of a source, by its number, and the state with which the object entered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenTime {
    pub line: i64,
    pub entered: Seq,
}

/// Everything that the file will contain about an object once all changes are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownObject {
    pub id: i64,
    pub open: Option<OpenTime>,
    /// The position of its end state.
    pub ended: Option<Seq>,
    /// Whether its open time differs from that in the file.
    is_changed: bool,
}

impl KnownObject {
    pub fn new(id: i64, open: Option<OpenTime>, ended: Option<Seq>) -> Self {
        Self { id, open, ended, is_changed: false }
    }
}

/// A time that has ended.
#[derive(Clone, Copy, Debug)]
struct EndedTime {
    object: i64,
    time: OpenTime,
    left: Seq,
}

#[derive(Default)]
pub(super) struct PendingTimes {
    keys: (RandomState, RandomState),
    objects: HashMap<ObjectPrint, KnownObject>,
    changed: Vec<ObjectPrint>,
    ended: Vec<EndedTime>,
    /// The newest state that was taken in, if it is not recorded in the file.
    through: Option<(Seq, String)>,
    /// When the first of the pending changes came.
    since_ms: Option<u64>,
}

impl PendingTimes {
    pub fn print_of(&self, source: &str, uid: &str) -> ObjectPrint {
        let (first, second) = &self.keys;
        ObjectPrint(first.hash_one((source, uid)), second.hash_one((source, uid)))
    }

    pub fn object(&self, print: ObjectPrint) -> Option<KnownObject> {
        self.objects.get(&print).copied()
    }

    pub fn remember(&mut self, print: ObjectPrint, object: KnownObject) {
        self.objects.insert(print, object);
    }

    /// Replaces the open time of an object, and the position of its end.
    pub fn update(&mut self, print: ObjectPrint, open: Option<OpenTime>, ended: Option<Seq>) {
        let Some(object) = self.objects.get_mut(&print) else { return };
        (object.open, object.ended) = (open, ended);
        if !object.is_changed {
            object.is_changed = true;
            self.changed.push(print);
        }
    }

    pub fn push_ended(&mut self, object: i64, time: OpenTime, left: Seq) {
        self.ended.push(EndedTime { object, time, left });
    }

    pub fn set_through(&mut self, seq: Seq, id: &str, now_ms: u64) {
        self.through = Some((seq, id.to_owned()));
        self.since_ms.get_or_insert(now_ms);
    }

    pub fn is_empty(&self) -> bool {
        self.through.is_none()
    }

    /// A clock that was set back ends the wait as well.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let has_waited = |since: u64| now_ms < since || now_ms - since >= WAIT_MS;
        self.ended.len() + self.changed.len() >= MOST_CHANGES || self.since_ms.is_some_and(has_waited)
    }

    /// Whether so many more objects might be too many.
    pub fn is_full_with(&self, more: usize) -> bool {
        self.objects.len() + more > MOST_OBJECTS
    }

    /// Forgets the objects. Everything must have been written.
    pub fn forget_objects(&mut self) {
        debug_assert!(self.is_empty(), "what is pending would be lost");
        self.objects.clear();
    }

    /// Writes everything that is pending. It is still pending afterwards, in case the transaction fails.
    pub fn write(&mut self, rows: &Transaction<'_>) -> rusqlite::Result<()> {
        // In the order of the objects, pages of the file are read and written once.
        self.ended.sort_unstable_by_key(|ended| (ended.object, ended.left));
        let objects = &self.objects;
        self.changed.sort_unstable_by_key(|print| objects.get(print).map(|object| object.id));
        let mut insert = rows.prepare_cached(
            "INSERT OR IGNORE INTO times (line, rank, entered, object) VALUES (?1, ?2, ?3, ?4)",
        )?;
        for EndedTime { object, time, left } in &self.ended {
            insert.execute(params![time.line, as_signed(*left), as_signed(time.entered), object])?;
        }
        let mut open =
            rows.prepare_cached("REPLACE INTO open_times (object, line, entered) VALUES (?1, ?2, ?3)")?;
        let mut close = rows.prepare_cached("DELETE FROM open_times WHERE object = ?1")?;
        for object in self.changed.iter().filter_map(|print| self.objects.get(print)) {
            match object.open {
                Some(time) => open.execute(params![object.id, time.line, as_signed(time.entered)])?,
                None => close.execute([object.id])?,
            };
        }
        if let Some((seq, id)) = &self.through {
            rows.execute("DELETE FROM reached", [])?;
            rows.execute("INSERT INTO reached (seq, id) VALUES (?1, ?2)", params![as_signed(*seq), id])?;
        }
        Ok(())
    }

    /// Call this once what [`write`](Self::write) wrote is committed.
    pub fn set_written(&mut self) {
        for print in self.changed.drain(..) {
            if let Some(object) = self.objects.get_mut(&print) {
                object.is_changed = false;
            }
        }
        self.ended.clear();
        (self.through, self.since_ms) = (None, None);
    }
}

/// The phases of sources, by their numbers in the file. They are few.
#[derive(Default)]
pub(super) struct PhaseLines {
    numbers: HashMap<String, HashMap<String, i64>>,
    phases: HashMap<i64, String>,
}

impl PhaseLines {
    /// The number of a phase of a source. A new one is added to the file.
    pub fn number(&mut self, rows: &Transaction<'_>, source: &str, phase: &str) -> rusqlite::Result<i64> {
        if let Some(number) = self.numbers.get(source).and_then(|phases| phases.get(phase)) {
            return Ok(*number);
        }
        let stored = stored_number(rows, source, phase)?;
        let number = match stored {
            Some(number) => number,
            None => rows
                .prepare_cached("INSERT INTO lines (source, phase) VALUES (?1, ?2)")?
                .insert([source, phase])?,
        };
        self.numbers.entry(source.to_owned()).or_default().insert(phase.to_owned(), number);
        self.phases.insert(number, phase.to_owned());
        Ok(number)
    }

    /// The phase with this number.
    pub fn phase(&mut self, rows: &Transaction<'_>, number: i64) -> rusqlite::Result<&str> {
        Ok(match self.phases.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let mut statement = rows.prepare_cached("SELECT phase FROM lines WHERE id = ?1")?;
                unknown.insert(statement.query_row([number], |row| row.get(0))?)
            }
        })
    }
}

/// The number of a phase of a source, if an object was ever in it.
pub(super) fn stored_number(
    rows: &rusqlite::Connection,
    source: &str,
    phase: &str,
) -> rusqlite::Result<Option<i64>> {
    let mut statement = rows.prepare_cached("SELECT id FROM lines WHERE source = ?1 AND phase = ?2")?;
    statement.query_row([source, phase], |row| row.get(0)).optional()
}

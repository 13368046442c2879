//! Takes in states: what they say about phases becomes pending, and the other rows are written at once.

use kubewitness_core::story::outcomes;
use kubewitness_core::{Change, Seq, State, kinds};
use rusqlite::{OptionalExtension, Transaction, params};

use super::causes;
use super::pending::{KnownObject, OpenTime, PendingTimes, PhaseLines};
use super::table::as_signed;

pub(super) struct PhaseIntake<'t> {
    pub rows: &'t Transaction<'t>,
    pub pending: &'t mut PendingTimes,
    pub lines: &'t mut PhaseLines,
    pub now_ms: u64,
    /// Whether a row of an outcome was written. Such a row must not be written twice, because plugins are told of each:
    /// so everything before it is written with it.
    pub has_written_outcome: bool,
}

impl PhaseIntake<'_> {
    /// Records what a state says about its object's phase.
    pub fn take(&mut self, state: &State) -> rusqlite::Result<()> {
        // Objects that report about others, such as Events, are in no phase.
        let is_event = kinds::is_event(&state.object.group, &state.object.kind);
        if state.change == Change::Gap || is_event {
            return Ok(());
        }
        let (rows, now_ms) = (self.rows, self.now_ms);
        if let Some(owner) = state.owner.as_ref().filter(|_| outcomes::bears_on_owner(state)) {
            self.has_written_outcome |= causes::reopen_outcomes(rows, &owner.uid, now_ms)?;
        }
        let line = self.lines.number(rows, &state.source, &state.status.phase)?;
        let print = self.pending.print_of(&state.source, &state.object.uid);
        let object = match self.pending.object(print) {
            Some(object) => object,
            None => {
                let object = find_object(rows, state)?.map_or_else(|| add(rows, state), Ok)?;
                self.pending.remember(print, object);
                object
            }
        };
        let this = OpenTime { line, entered: state.seq };
        if state.late {
            self.pending.push_ended(object.id, this, state.seq);
            return Ok(());
        }
        let goes_on = state.change == Change::Present;
        if goes_on && object.open.is_some_and(|open| open.line == line) {
            return Ok(());
        }
        let phase = object.open.map(|open| self.lines.phase(rows, open.line)).transpose()?;
        self.has_written_outcome |= causes::take(rows, state, object.id, phase, now_ms)?;
        if let Some(open) = object.open {
            self.pending.push_ended(object.id, open, state.seq);
        }
        // `Deleted` is recorded for the moment only, not as a lasting phase.
        if state.change == Change::Gone {
            self.pending.push_ended(object.id, this, state.seq);
        }
        let ended = (!goes_on).then_some(state.seq);
        if ended != object.ended {
            rows.prepare_cached("UPDATE objects SET ended = ?1 WHERE id = ?2")?
                .execute(params![ended.map(as_signed), object.id])?;
        }
        self.pending.update(print, goes_on.then_some(this), ended);
        Ok(())
    }
}

fn find_object(rows: &Transaction<'_>, state: &State) -> rusqlite::Result<Option<KnownObject>> {
    let mut statement = rows.prepare_cached(
        "SELECT o.id, o.ended, t.line, t.entered FROM objects o LEFT JOIN open_times t ON t.object = o.id
         WHERE o.uid = ?1 AND o.source = ?2",
    )?;
    let object = statement.query_row(params![state.object.uid, &*state.source], |row| {
        let position = |seq: i64| seq as Seq;
        let open = match (row.get(2)?, row.get::<_, Option<i64>>(3)?.map(position)) {
            (Some(line), Some(entered)) => Some(OpenTime { line, entered }),
            _ => None,
        };
        Ok(KnownObject::new(row.get(0)?, open, row.get::<_, Option<i64>>(1)?.map(position)))
    });
    object.optional()
}

fn add(rows: &Transaction<'_>, state: &State) -> rusqlite::Result<KnownObject> {
    let mut statement =
        rows.prepare_cached("INSERT INTO objects (source, uid, namespace, name) VALUES (?1, ?2, ?3, ?4)")?;
    let object = &state.object;
    let id = statement.insert(params![&*state.source, object.uid, object.namespace, object.name])?;
    Ok(KnownObject::new(id, None, None))
}

//! Finds objects by the phases that they were in.

use std::collections::VecDeque;
use std::sync::Arc;

use kubewitness_core::Seq;
use rusqlite::{CachedStatement, Connection, params};

use super::pending::stored_number;
use super::table::{OPEN, as_signed};
use super::{PhasePage, PhaseQuery, TimeInPhase};

/// Times of one source that are read at once.
const PART: usize = 512;

/// Whether an object has a later time in a phase. The sign keeps SQLite from walking all times of the phase: an
/// object has few.
const LATER: &str = "
    SELECT 1 FROM times WHERE object = ?1 AND rank > ?2 AND rank < ?3 AND entered < ?4 AND +line = ?5
    UNION ALL SELECT 1 FROM open_times WHERE object = ?1 AND ?6 + entered > ?2 AND ?6 + entered < ?3
    AND entered < ?4 AND line = ?5 LIMIT 1";

/// Finds times in a phase, the newest first.
pub(super) fn find(connection: &Connection, query: &PhaseQuery) -> rusqlite::Result<PhasePage> {
    let upper = OPEN.saturating_add(query.before.min(OPEN));
    let below = query.cursor.map_or(upper, |cursor| cursor.min(upper));
    let mut ahead: Vec<PhaseReadahead> =
        query.sources.iter().map(|source| PhaseReadahead::new(source, below)).collect();
    let mut page = PhasePage::default();
    for looked in 1..=query.looked {
        for readahead in &mut ahead {
            readahead.read_ahead(connection, query)?;
        }
        let first = ahead.iter_mut().filter(|readahead| !readahead.times.is_empty());
        let first = first.max_by_key(|readahead| readahead.times.front().map(|(_, time)| time.rank));
        let Some((object, time)) = first.and_then(|readahead| readahead.times.pop_front()) else {
            return Ok(page);
        };
        page.next = Some(time.rank).filter(|_| looked == query.looked);
        if time.entered < query.before && !has_later(connection, object, &time, query, upper)? {
            page.times.push(time);
        }
    }
    Ok(page)
}

/// Whether the object has a later matching time in this phase, so that it was already returned.
fn has_later(
    connection: &Connection,
    object: i64,
    time: &TimeInPhase,
    query: &PhaseQuery,
    upper: u64,
) -> rusqlite::Result<bool> {
    let Some(line) = stored_number(connection, &time.source, &query.phase)? else {
        return Ok(false);
    };
    let mut statement = connection.prepare_cached(LATER)?;
    let [rank, upper, before, open] = [time.rank, upper, query.before, OPEN].map(as_signed);
    statement.exists((object, rank, upper, before, line, open))
}

/// The times of one source that were read and not yet used.
struct PhaseReadahead {
    source: Arc<str>,
    below: u64,
    times: VecDeque<(i64, TimeInPhase)>,
    is_over: bool,
}

impl PhaseReadahead {
    fn new(source: &str, below: u64) -> Self {
        Self { source: source.into(), below, times: VecDeque::new(), is_over: false }
    }

    fn read_ahead(&mut self, connection: &Connection, query: &PhaseQuery) -> rusqlite::Result<()> {
        while !self.is_over && self.times.is_empty() {
            let Some(line) = stored_number(connection, &self.source, &query.phase)? else {
                self.is_over = true;
                return Ok(());
            };
            let is_open = self.below > OPEN;
            self.read_part(connection, line, is_open, query)?;
            let is_last = self.times.len() < PART;
            self.below = match self.times.back() {
                // Ended times come after the open ones.
                _ if is_open && is_last => OPEN,
                Some((_, time)) => time.rank,
                None => self.below,
            };
            self.is_over = is_last && !is_open;
        }
        Ok(())
    }

    /// Reads the next times with this number of their phase.
    fn read_part(
        &mut self,
        connection: &Connection,
        line: i64,
        is_open: bool,
        query: &PhaseQuery,
    ) -> rusqlite::Result<()> {
        let mut statement: CachedStatement<'_> = connection.prepare_cached(match is_open {
            true => {
                "SELECT ?5 + t.entered, t.entered, t.object, o.namespace, o.name, o.uid, o.ended FROM open_times t
                 JOIN objects o ON o.id = t.object WHERE t.line = ?1 AND t.entered > ?2 - ?5 AND t.entered < ?3 - ?5
                 ORDER BY t.entered DESC LIMIT ?4"
            }
            false => {
                "SELECT t.rank, t.entered, t.object, o.namespace, o.name, o.uid, o.ended FROM times t
                 JOIN objects o ON o.id = t.object WHERE t.line = ?1 AND t.rank > ?2 AND t.rank < ?3
                 ORDER BY t.rank DESC LIMIT ?4"
            }
        })?;
        let [after, below, open] = [query.after, self.below, OPEN].map(as_signed);
        let mut rows = match is_open {
            true => statement.query(params![line, after, below, PART as i64, open])?,
            false => statement.query(params![line, after, below, PART as i64])?,
        };
        while let Some(row) = rows.next()? {
            let rank = row.get::<_, i64>(0)? as u64;
            let time = TimeInPhase {
                rank,
                entered: row.get::<_, i64>(1)? as u64,
                left: Some(rank).filter(|rank| *rank < OPEN),
                source: self.source.clone(),
                namespace: row.get(3)?,
                name: row.get(4)?,
                uid: row.get(5)?,
                ended: row.get::<_, Option<i64>>(6)?.map(|seq| seq as Seq),
            };
            self.times.push_back((row.get(2)?, time));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::TABLES;
    use super::*;

    #[test]
    fn a_later_time_is_looked_for_among_those_of_its_object() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(TABLES).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {LATER}")).unwrap();
        let lines = statement.query_map([1; 6], |row| row.get::<_, String>(3)).unwrap();
        let plan: Vec<String> = lines.map(Result::unwrap).collect();
        assert!(
            plan.iter().any(|line| line.contains("times_by_object (object=? AND rank>? AND rank<?)")),
            "{plan:?}"
        );
    }
}

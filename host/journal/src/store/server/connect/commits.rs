//! Detects commits that a server lost in a failover.
//!
//! Each commit has an identity: a number that grows with every transaction, and the line in which it grows. A
//! writer draws a new random line when it opens the journal or reconnects to it, and the journal keeps the
//! last number of each earlier line. A standby server that takes over without the newest commits makes every
//! writer reconnect, so the line ends before the lost commits. A writer that knew a later number of that line
//! notices the loss in its next transaction, whatever was lost, and however many others have written since.
//!
//! Comparing positions of states was rejected: a lost gap or save has no position, and new states take the
//! positions of lost ones.

use std::hash::{BuildHasher, RandomState};

use kubewitness_core::ports::JournalError;

use super::session::ServerSession;
use crate::report::LOST;
use crate::store::rows::StoreResult;

/// The name under which `kw_agreed` stores the ends of earlier lines.
const LINES: &str = "lines";
/// How many ends of lines are kept. A writer that reconnects after more lines is refused.
const MOST_LINES: usize = 256;

/// Increases the number. This also locks the row until the end of the transaction.
pub(crate) const MOVE: &str = "UPDATE kw_journal SET moves = moves + 1 WHERE id = 1";

/// The identity of the commits that the writer knew last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitIdentity {
    pub moves: i64,
    pub line: i64,
}

impl CommitIdentity {
    /// The identity before the present transaction increased the number.
    pub fn before_move(moves: i64, line: i64) -> Self {
        Self { moves: moves - 1, line }
    }

    pub fn next(self) -> Self {
        Self { moves: self.moves + 1, ..self }
    }

    /// Whether `known` is part of this history, whose earlier lines ended as given.
    fn descends_from(self, known: Self, ended: &[Self]) -> bool {
        let same_line = self.line == known.line && self.moves >= known.moves;
        same_line || ended.iter().any(|end| end.line == known.line && end.moves >= known.moves)
    }
}

/// Expects that no known commit was lost; others may have committed since. If one was lost, the present
/// transaction ends, because it holds the row that every writer needs.
pub(crate) async fn expect_known_commit(
    session: &mut ServerSession,
    found: CommitIdentity,
    known: CommitIdentity,
) -> StoreResult<()> {
    if found == known
        || found.descends_from(known, &[])
        || found.descends_from(known, &ended_lines(session).await?)
    {
        return Ok(());
    }
    // Others continue, while this process may take some time to end.
    session.run_script("ROLLBACK").await?;
    Err(lost_commit_error(found, known))
}

/// Begins a line, in a transaction of its own. A writer that reconnects passes the identity that it knew.
pub(crate) async fn begin_line(
    session: &mut ServerSession,
    known: Option<CommitIdentity>,
) -> StoreResult<CommitIdentity> {
    let text = format!("START TRANSACTION; {MOVE}; SELECT moves, line FROM kw_journal WHERE id = 1");
    let rows = session.run_script_for_rows(&text).await?;
    let Some(row) = rows.first() else { return Err(emptied_table_error()) };
    let found = CommitIdentity::before_move(row.int_at(0)?, row.int_at(1)?);
    if let Some(known) = known {
        expect_known_commit(session, found, known).await?;
    }
    let mut lines = ended_lines(session).await?;
    lines.push(found);
    let lines = text_of(&lines[lines.len().saturating_sub(MOST_LINES)..]);
    let line = i64::from_le_bytes(RandomState::new().hash_one(0_u8).to_le_bytes());
    session.fetch_rows("UPDATE kw_journal SET line = ? WHERE id = 1", vec![line.into()]).await?;
    session.fetch_rows("DELETE FROM kw_agreed WHERE name = ?", vec![LINES.into()]).await?;
    let insert = "INSERT INTO kw_agreed (name, text) VALUES (?, ?)";
    session.fetch_rows(insert, vec![LINES.into(), lines.as_str().into()]).await?;
    session.run_script("COMMIT").await?;
    Ok(CommitIdentity { line, ..found.next() })
}

/// The last commit of each earlier line, the oldest first.
async fn ended_lines(session: &mut ServerSession) -> StoreResult<Vec<CommitIdentity>> {
    let rows = session.fetch_rows("SELECT text FROM kw_agreed WHERE name = ?", vec![LINES.into()]).await?;
    let text = rows.into_iter().next().map_or(Ok(String::new()), |mut row| row.text(0))?;
    Ok(parse(&text))
}

fn text_of(ends: &[CommitIdentity]) -> String {
    let ends: Vec<_> = ends.iter().map(|end| format!("{:x}:{}", end.line, end.moves)).collect();
    ends.join(" ")
}

fn parse(text: &str) -> Vec<CommitIdentity> {
    let end = |word: &str| {
        let (line, moves) = word.split_once(':')?;
        let line = u64::from_str_radix(line, 16).ok()?.cast_signed();
        Some(CommitIdentity { line, moves: moves.parse().ok()? })
    };
    text.split(' ').filter_map(end).collect()
}

fn lost_commit_error(found: CommitIdentity, known: CommitIdentity) -> JournalError {
    JournalError::Fatal(format!(
        "commits of the journal are gone: commit {} was made, and the journal there stands at {} of another history. \
         Its server took over from one that had more, or somebody put an older copy in its place while this process \
         wrote. {AFTER_A_COPY}",
        known.moves, found.moves
    ))
}

pub(crate) fn emptied_table_error() -> JournalError {
    JournalError::Fatal(format!("somebody emptied `kw_journal` while the journal was in use: {LOST}"))
}

pub(crate) const AFTER_A_COPY: &str = "States that the journal there lacks are lost. Start again: the controller \
    reads them from the cluster, as far as the cluster still has them";

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: i64, moves: i64) -> CommitIdentity {
        CommitIdentity { moves, line }
    }

    #[test]
    fn what_was_known_is_lost_if_its_line_ended_before_it_however_far_others_have_gone() {
        let ended = [at(1, 100), at(2, 110)];
        let found = at(3, 500);
        for (known, is_there) in [
            (at(3, 500), true),
            (at(3, 499), true),
            (at(3, 501), false),
            (at(2, 110), true),
            (at(2, 111), false),
            (at(1, 100), true),
            (at(1, 105), false),
            (at(9, 1), false),
        ] {
            assert_eq!(found.descends_from(known, &ended), is_there, "{known:?}");
        }
    }

    #[test]
    fn the_ends_of_lines_are_read_as_they_were_written() {
        let ends = [at(i64::MIN, 0), at(-1, 7), at(i64::MAX, i64::MAX)];
        assert_eq!(parse(&text_of(&ends)), ends);
        assert_eq!(parse(""), []);
    }
}

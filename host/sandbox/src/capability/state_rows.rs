//! Fills rows with the facts of states, so that a plugin that writes them carries no text back. `wit/capabilities.wit`
//! says what a column gets; `kubewitness_sdk::testing::filled` does the same in a plugin's own tests.

use std::borrow::Cow;

use kubewitness_core::ports::{SqlValue, TableWrite};
use kubewitness_core::{Change, ObjectRef, State, calendar};

use super::convert;
use crate::bindings::sql::{self, ColumnFilling, FilledColumn, StateFact};
use crate::bindings::types::Error;
use crate::guest::batch::CallStates;

/// As many as any write has. A row is made before its bytes are counted.
const MAX_COLUMNS: usize = 256;
const WORD_BYTES: usize = 1024;
const MESSAGE_BYTES: usize = 4096;
/// A text that was cut ends with it.
const CUT: &str = "…";
/// Stands for a blank at the end of a uid.
const BLANK: &str = "\u{2420}";

/// The bytes that the plugin carries to the host.
pub fn carried_bytes(rows: &sql::StateWrite) -> usize {
    let of = |column: &FilledColumn| match &column.filling {
        ColumnFilling::Fact(_) => 0,
        ColumnFilling::Same(value) => convert::value_bytes(std::slice::from_ref(value)),
        ColumnFilling::Each(values) => convert::value_bytes(values),
    };
    let names = rows.columns.iter().map(|column| column.name.len()).sum::<usize>();
    names + rows.columns.iter().map(of).sum::<usize>() + rows.states.len() * size_of::<u64>()
}

/// The rows, of at most so many bytes.
pub fn fill_rows(rows: sql::StateWrite, batch: &CallStates, most: usize) -> Result<TableWrite, Error> {
    let sql::StateWrite { table, columns, key, on_conflict, states } = rows;
    let count = states.len();
    if columns.len() > MAX_COLUMNS {
        return Err(Error::TooLarge(format!(
            "{} columns, and a table has at most {MAX_COLUMNS}",
            columns.len()
        )));
    }
    if count > batch.len() {
        return Err(Error::Invalid(format!("{count} rows of states, and the call has {}", batch.len())));
    }
    let (mut names, mut fillings) = (Vec::with_capacity(columns.len()), Vec::with_capacity(columns.len()));
    for FilledColumn { name, filling } in columns {
        fillings.push(RowFilling::of(&name, filling, count)?);
        names.push(name);
    }
    let (mut bytes, mut times) = (0, TimeTexts::default());
    let mut filled = Vec::with_capacity(count);
    for seq in states {
        let state = batch.get(seq);
        let state = state.ok_or_else(|| Error::Invalid(format!("state {seq} is not in this call")))?;
        let row: Vec<_> = fillings.iter_mut().map(|filling| filling.next(state, &mut times)).collect();
        bytes += row.iter().map(bytes_of).sum::<usize>();
        if bytes > most {
            return Err(Error::TooLarge(format!("rows of over {most} bytes in one call (limits.hostBytes)")));
        }
        filled.push(row);
    }
    let on_conflict = convert::on_conflict(on_conflict);
    Ok(TableWrite { table, columns: names, key, on_conflict, rows: filled })
}

fn bytes_of(value: &SqlValue) -> usize {
    let beside = match value {
        SqlValue::Text(text) => text.len(),
        SqlValue::Blob(blob) => blob.len(),
        _ => 0,
    };
    convert::VALUE_BYTES + beside
}

/// The values of one column, row by row.
enum RowFilling {
    Fact(StateFact),
    Same(SqlValue),
    Each(std::vec::IntoIter<sql::Value>),
}

impl RowFilling {
    fn of(column: &str, filling: ColumnFilling, rows: usize) -> Result<Self, Error> {
        Ok(match filling {
            ColumnFilling::Fact(fact) => Self::Fact(fact),
            ColumnFilling::Same(value) => Self::Same(convert::value_in(value)),
            ColumnFilling::Each(values) if values.len() == rows => Self::Each(values.into_iter()),
            ColumnFilling::Each(values) => {
                let has = values.len();
                return Err(Error::Invalid(format!(
                    "the column `{column}` has {has} values for {rows} rows"
                )));
            }
        })
    }

    fn next(&mut self, state: &State, times: &mut TimeTexts) -> SqlValue {
        match self {
            Self::Fact(fact) => fact_value(*fact, state, times),
            Self::Same(value) => value.clone(),
            Self::Each(values) => values.next().map_or(SqlValue::Null, convert::value_in),
        }
    }
}

/// Many states are observed in the same millisecond.
#[derive(Default)]
struct TimeTexts {
    last: Option<(u64, String)>,
}

impl TimeTexts {
    fn text(&mut self, ms: u64) -> String {
        match &self.last {
            Some((last, text)) if *last == ms => text.clone(),
            _ => {
                let text = calendar::format_rfc3339(ms);
                self.last = Some((ms, text.clone()));
                text
            }
        }
    }
}

fn fact_value(fact: StateFact, state: &State, times: &mut TimeTexts) -> SqlValue {
    let (object, status) = (&*state.object, &*state.status);
    let is_gone = state.change == Change::Gone;
    let of_owner = |of: fn(&ObjectRef) -> SqlValue| state.owner.as_deref().map_or(SqlValue::Null, of);
    match fact {
        StateFact::Id => text(without_nul(state.id.as_str())),
        StateFact::Seq => unsigned_value(state.seq),
        StateFact::Source => word_value(&state.source),
        StateFact::Change => word_value(state.change.as_str()),
        StateFact::ApiGroup => word_value(&object.group),
        StateFact::Kind => word_value(&object.kind),
        StateFact::Namespace => word_value(&object.namespace),
        StateFact::Name => word_value(&object.name),
        StateFact::Uid => uid_value(object),
        StateFact::ResourceVersion => word_value(state.resource_version.as_str()),
        StateFact::Phase => word_value(if is_gone { "Deleted" } else { &status.phase }),
        StateFact::Reason => word_value(&status.reason),
        StateFact::Message => text(cut_text(&status.message, MESSAGE_BYTES)),
        StateFact::Attempt => SqlValue::Integer(status.attempt.into()),
        StateFact::Ready => SqlValue::Integer(status.ready.into()),
        StateFact::Total => SqlValue::Integer(status.total.into()),
        StateFact::ExitCode => status.exit_code.map_or(SqlValue::Null, |code| SqlValue::Integer(code.into())),
        StateFact::Terminal => SqlValue::Integer((status.terminal || is_gone).into()),
        StateFact::PreviousPhase => {
            state.previous.as_ref().map_or(SqlValue::Null, |it| word_value(&it.phase))
        }
        StateFact::OwnerKind => of_owner(|owner| word_value(&owner.kind)),
        StateFact::OwnerName => of_owner(|owner| word_value(&owner.name)),
        StateFact::OwnerUid => of_owner(uid_value),
        StateFact::ObservedMs => unsigned_value(state.observed_ms),
        StateFact::ObservedAt => SqlValue::Text(times.text(state.observed_ms)),
    }
}

/// Positions and times never reach the sign.
fn unsigned_value(number: u64) -> SqlValue {
    SqlValue::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

fn text(text: Cow<'_, str>) -> SqlValue {
    SqlValue::Text(text.into_owned())
}

fn word_value(word: &str) -> SqlValue {
    text(cut_text(word, WORD_BYTES))
}

fn uid_value(object: &ObjectRef) -> SqlValue {
    let uid = cut_text(&object.uid, WORD_BYTES);
    let end = uid.trim_end_matches(' ').len();
    match uid.len() - end {
        0 => text(uid),
        blanks => SqlValue::Text(uid[..end].to_owned() + &BLANK.repeat(blanks)),
    }
}

fn cut_text(text: &str, most: usize) -> Cow<'_, str> {
    match text.len() <= most {
        true => without_nul(text),
        false => without_nul(&text[..text.floor_char_boundary(most - CUT.len())]) + CUT,
    }
}

/// Some databases refuse NUL, and others stop reading at it.
fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_core::{StateId, Status, Version};

    use super::*;

    fn state(seq: u64, fit: impl FnOnce(&mut State, &mut ObjectRef, &mut Status)) -> Arc<State> {
        let mut state = State {
            id: StateId::parse(&format!("jobs/0/batch/Job/u/{seq}")),
            seq,
            source: "jobs".into(),
            epoch: 0,
            change: Change::Present,
            object: Arc::default(),
            owner: None,
            resource_version: Version::new("7"),
            status: Arc::default(),
            previous: None,
            observed_ms: 1_795_179_599_999,
            late: false,
            quotes_none_under: None,
        };
        let (mut object, mut status) = (ObjectRef::default(), Status::default());
        fit(&mut state, &mut object, &mut status);
        (state.object, state.status) = (object.into(), status.into());
        Arc::new(state)
    }

    fn rows(columns: Vec<ColumnFilling>, states: &[u64]) -> sql::StateWrite {
        let column = |(place, filling)| FilledColumn { name: format!("c{place}"), filling };
        sql::StateWrite {
            table: "t".into(),
            columns: columns.into_iter().enumerate().map(column).collect(),
            key: vec!["c0".into()],
            on_conflict: sql::OnConflict::Ignore,
            states: states.to_vec(),
        }
    }

    fn filled(state: &Arc<State>, facts: &[StateFact]) -> Vec<SqlValue> {
        let columns = facts.iter().map(|fact| ColumnFilling::Fact(*fact)).collect();
        let batch = CallStates::of([state.clone()]);
        fill_rows(rows(columns, &[state.seq]), &batch, usize::MAX).unwrap().rows.remove(0)
    }

    fn words(text: &str) -> SqlValue {
        SqlValue::Text(text.into())
    }

    #[test]
    fn a_state_that_is_gone_is_deleted_and_terminal_and_lacks_an_owner() {
        let gone = state(5, |state, _, status| {
            (state.change, status.phase) = (Change::Gone, "Running".into());
            state.previous = Some(Arc::new(Status { phase: "Starting".into(), ..Status::default() }));
        });
        let facts = [
            StateFact::Change,
            StateFact::Phase,
            StateFact::Terminal,
            StateFact::PreviousPhase,
            StateFact::OwnerUid,
            StateFact::ExitCode,
            StateFact::ObservedAt,
            StateFact::Seq,
        ];
        let expected = [
            words("gone"),
            words("Deleted"),
            SqlValue::Integer(1),
            words("Starting"),
            SqlValue::Null,
            SqlValue::Null,
            words("2026-11-20T12:59:59.999Z"),
            SqlValue::Integer(5),
        ];
        assert_eq!(filled(&gone, &facts), expected);
    }

    #[test]
    fn texts_have_no_nul_and_a_bound_and_say_where_they_are_cut() {
        let long = state(6, |_, object, status| {
            status.message = format!("a\0{}", "é".repeat(10_000));
            (object.name, object.uid) = ("n".repeat(1025), "u  ".into());
        });
        let message = format!("a\u{fffd}{}…", "é".repeat((4096 - "a\0…".len()) / 2));
        let facts = [StateFact::Message, StateFact::Name, StateFact::Uid];
        let name = format!("{}…", "n".repeat(1021));
        assert_eq!(filled(&long, &facts), [words(&message), words(&name), words("u\u{2420}\u{2420}")]);
    }

    #[test]
    fn rows_are_of_the_calls_own_states_with_one_value_each() {
        let batch = CallStates::of([state(1, |_, _, _| {}), state(2, |_, _, _| {})]);
        let each = |count| ColumnFilling::Each((0..count).map(sql::Value::Integer).collect());
        let columns = |count| {
            vec![ColumnFilling::Fact(StateFact::Seq), each(count), ColumnFilling::Same(sql::Value::Null)]
        };
        let row = |seq, each| vec![SqlValue::Integer(seq), SqlValue::Integer(each), SqlValue::Null];
        let write = fill_rows(rows(columns(2), &[2, 1]), &batch, 96).unwrap();
        assert_eq!(write.rows, [row(2, 0), row(1, 1)]);
        assert_eq!(write.columns, ["c0", "c1", "c2"]);
        for (refused, most) in [
            (rows(columns(1), &[1, 2]), 96),
            (rows(columns(2), &[1, 3]), 96),
            (rows(columns(3), &[1, 2, 1]), 1000),
        ] {
            assert!(matches!(fill_rows(refused, &batch, most), Err(Error::Invalid(_))));
        }
        assert!(matches!(fill_rows(rows(columns(2), &[1, 2]), &batch, 95), Err(Error::TooLarge(_))));
    }
}

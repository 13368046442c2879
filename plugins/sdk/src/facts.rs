//! The facts of a state as columns hold them. In a component the host fills them in; here they are for comparisons with
//! what a database has, and for tests.

const WORD_BYTES: usize = 1024;
/// The end of a text that was cut.
const CUT: &str = "…";
/// The replacement of a blank at the end of a uid.
const BLANK: &str = "\u{2420}";

/// A text of at most this many bytes without NUL. If it is cut, its end shows that.
pub fn column_text(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => clean(text),
        false => clean(&text[..text.floor_char_boundary(most.saturating_sub(CUT.len()))]) + CUT,
    }
}

/// A uid. MySQL and MariaDB ignore blanks at the end of a text when they compare, so two such uids would
/// share a row.
pub fn uid_text(uid: &str) -> String {
    let text = column_text(uid, WORD_BYTES);
    let end = text.trim_end_matches(' ').len();
    if end == text.len() { text } else { text[..end].to_owned() + &BLANK.repeat(text.len() - end) }
}

/// Replaces NUL: some databases refuse it, and others stop reading at it.
fn clean(text: &str) -> String {
    // NUL almost never occurs, and a copy is much cheaper than a replacement.
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.to_string() }
}

#[cfg(not(target_arch = "wasm32"))]
pub mod rows {
    //! Makes rows of states as the host does, for tests.

    use super::{WORD_BYTES, clean, column_text, uid_text};
    use crate::sql::{ColumnFilling, FilledColumn, StateFact, StateWrite, TableWrite, Value};
    use crate::{Change, Error, ObjectRef, State, time};

    const MESSAGE_BYTES: usize = 4096;

    /// The rows that the host makes of a write of these states.
    pub fn fill_rows(rows: &StateWrite, states: &[State]) -> Result<TableWrite, Error> {
        let count = rows.states.len();
        let is_other = |column: &&FilledColumn| matches!(&column.filling, ColumnFilling::Each(values) if values.len() != count);
        if let Some(column) = rows.columns.iter().find(is_other) {
            return Err(Error::Invalid(format!("the column `{}` has no value for each row", column.name)));
        }
        let row = |(place, seq): (usize, &u64)| {
            let state = states.iter().find(|state| state.seq == *seq);
            let state = state.ok_or_else(|| Error::Invalid(format!("state {seq} is not in this call")))?;
            let value = |column: &FilledColumn| match &column.filling {
                ColumnFilling::Fact(fact) => value(*fact, state),
                ColumnFilling::Same(value) => value.clone(),
                ColumnFilling::Each(values) => values[place].clone(),
            };
            Ok(rows.columns.iter().map(value).collect())
        };
        Ok(TableWrite {
            table: rows.table.clone(),
            columns: rows.columns.iter().map(|column| column.name.clone()).collect(),
            key: rows.key.clone(),
            on_conflict: rows.on_conflict.clone(),
            rows: rows.states.iter().enumerate().map(row).collect::<Result<_, Error>>()?,
        })
    }

    fn value(fact: StateFact, state: &State) -> Value {
        let (object, status, is_gone) = (&state.object, &state.status, state.change == Change::Gone);
        let of_owner = |of: fn(&ObjectRef) -> Value| state.owner.as_ref().map_or(Value::Null, of);
        match fact {
            StateFact::Id => clean(&state.id).into(),
            StateFact::Seq => state.seq.into(),
            StateFact::Source => word(&state.source),
            StateFact::Change => change(state.change).into(),
            StateFact::ApiGroup => word(&object.group),
            StateFact::Kind => word(&object.kind),
            StateFact::Namespace => word(&object.namespace),
            StateFact::Name => word(&object.name),
            StateFact::Uid => uid_text(&object.uid).into(),
            StateFact::ResourceVersion => word(&state.resource_version),
            StateFact::Phase => word(if is_gone { "Deleted" } else { &status.phase }),
            StateFact::Reason => word(&status.reason),
            StateFact::Message => column_text(&status.message, MESSAGE_BYTES).into(),
            StateFact::Attempt => status.attempt.into(),
            StateFact::Ready => status.ready.into(),
            StateFact::Total => status.total.into(),
            StateFact::ExitCode => status.exit_code.into(),
            StateFact::Terminal => i64::from(status.terminal || is_gone).into(),
            StateFact::PreviousPhase => state.previous.as_ref().map(|before| word(&before.phase)).into(),
            StateFact::OwnerKind => of_owner(|owner| word(&owner.kind)),
            StateFact::OwnerName => of_owner(|owner| word(&owner.name)),
            StateFact::OwnerUid => of_owner(|owner| uid_text(&owner.uid).into()),
            StateFact::ObservedMs => state.observed_ms.into(),
            StateFact::ObservedAt => time::rfc3339(state.observed_ms).into(),
        }
    }

    fn change(change: Change) -> &'static str {
        match change {
            Change::Present => "present",
            Change::Gone => "gone",
            Change::Left => "left",
            Change::Gap => "gap",
        }
    }

    fn word(text: &str) -> Value {
        column_text(text, WORD_BYTES).into()
    }
}

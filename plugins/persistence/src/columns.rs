//! Reads the configured columns from documents. A document is read only if such columns exist.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use kubewitness_sdk::sql::{FilledColumn, Value, column_text};
use kubewitness_sdk::{Error, State, documents, log, time};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::config::{Column, Config, Documents, Type};
use crate::{document, gpus, schema};

/// The limit of a text, which serves people and comparisons. The document has the rest.
const TEXT_BYTES: usize = 4096;
/// The most values that are read one by one for a state, including those for GPUs. If the columns need more,
/// the whole document is read, so that a batch of 1,024 states stays below the 4,096 calls of a plugin.
const MOST_READS: usize = 3;

/// Reads all columns of a state with few calls to the host.
pub struct ColumnReader<'c> {
    columns: &'c [Column],
    kept: Documents,
    reads: Vec<DocumentValue>,
    /// The columns that had values of a wrong type, with the number of these values.
    wrong: RefCell<Vec<WrongColumn>>,
}

/// One value of the document, and the columns that are read from it.
#[derive(Debug, PartialEq, Eq)]
struct DocumentValue {
    pointer: String,
    columns: Vec<usize>,
}

/// The columns whose values come from documents.
pub struct TableColumns {
    /// In the order of the configuration.
    pub configured: Vec<FilledColumn>,
    /// The documents for object_history.
    pub documents: FilledColumn,
}

/// The values that one state gets from its document.
struct RowValues {
    columns: Vec<Value>,
    document: Value,
}

struct WrongColumn {
    column: usize,
    count: usize,
    example: String,
}

thread_local! {
    /// The columns whose wrong values this instance has logged.
    static LOGGED_COLUMNS: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

impl<'c> ColumnReader<'c> {
    pub fn new(config: &'c Config) -> Self {
        let columns = config.columns.as_slice();
        let most = if config.gpus.is_empty() { MOST_READS } else { MOST_READS - gpus::MOST_READS };
        let reads = match config.documents {
            Documents::None => reads(columns, most),
            Documents::Pruned | Documents::Whole => whole_document(columns),
        };
        Self { columns, kept: config.documents, reads, wrong: RefCell::new(Vec::new()) }
    }

    pub fn columns(&self, states: &[&State]) -> Result<TableColumns, Error> {
        let name = schema::DOCUMENT.0;
        if self.reads.is_empty() {
            let documents = FilledColumn::of_one(name, Value::Null);
            return Ok(TableColumns { configured: Vec::new(), documents });
        }
        let mut documents = Vec::with_capacity(states.len());
        let mut columns = vec![Vec::with_capacity(states.len()); self.columns.len()];
        for state in states {
            let row = self.values(state)?;
            documents.push(row.document);
            columns.iter_mut().zip(row.columns).for_each(|(column, value)| column.push(value));
        }
        let named = self.columns.iter().zip(columns);
        let configured = named.map(|(column, values)| FilledColumn::of_each(&column.name, values)).collect();
        Ok(TableColumns { configured, documents: FilledColumn::of_each(name, documents) })
    }

    fn values(&self, state: &State) -> Result<RowValues, Error> {
        let mut values = vec![Value::Null; self.columns.len()];
        let mut kept = Value::Null;
        for read in &self.reads {
            let Some(text) = self::read(state.seq, &read.pointer)? else { continue };
            if self.kept != Documents::None {
                kept = document::document_column(self.kept, &text, &object_name(state));
            }
            if read.columns.is_empty() {
                continue;
            }
            let document = ParsedValue::of(&text)?;
            for place in &read.columns {
                let Column { pointer, holds, .. } = &self.columns[*place];
                let within = pointer.strip_prefix(read.pointer.as_str()).unwrap_or(pointer);
                match document.value(within, *holds) {
                    FoundValue::Nothing => {}
                    FoundValue::Value(value) => values[*place] = value,
                    FoundValue::OtherType => self.note_wrong_value(*place, state),
                }
            }
        }
        Ok(RowValues { columns: values, document: kept })
    }

    fn note_wrong_value(&self, column: usize, state: &State) {
        let mut wrong = self.wrong.borrow_mut();
        match wrong.iter_mut().find(|wrong| wrong.column == column) {
            Some(wrong) => wrong.count += 1,
            None => {
                wrong.push(WrongColumn { column, count: 1, example: object_name(state) });
            }
        }
    }

    /// Logs each column with wrong values once for each instance of the plugin.
    pub fn log_wrong_values(&self) {
        for WrongColumn { column, count, example } in self.wrong.borrow().iter() {
            let Column { name, pointer, holds } = &self.columns[*column];
            if !LOGGED_COLUMNS.with_borrow_mut(|logged| logged.insert(name.clone())) {
                continue;
            }
            log::warn(
                "values are not of the column's type, and the column has NULL instead",
                &[
                    ("column", name),
                    ("pointer", pointer),
                    ("type", holds.word()),
                    ("states", &count.to_string()),
                    ("object", example),
                ],
            );
        }
    }
}

/// A part of a document. JSON allows numbers that no float can hold, such as `1e400`, and one of them makes
/// the parser refuse the whole text. Then each column's value is searched in the text, and only that value is
/// parsed.
enum ParsedValue<'t> {
    Whole(Json),
    Text(&'t RawValue),
}

enum FoundValue {
    Nothing,
    Value(Value),
    OtherType,
}

impl<'t> ParsedValue<'t> {
    fn of(text: &'t str) -> Result<Self, Error> {
        let whole = serde_json::from_str(text).map(Self::Whole);
        let parsed = whole.or_else(|_| serde_json::from_str(text).map(Self::Text));
        parsed.map_err(|error| Error::Invalid(error.to_string()))
    }

    fn value(&self, pointer: &str, holds: Type) -> FoundValue {
        let of = |found: &Json| match found {
            Json::Null => FoundValue::Nothing,
            found => value(holds, found).map_or(FoundValue::OtherType, FoundValue::Value),
        };
        match self {
            Self::Whole(json) => json.pointer(pointer).map_or(FoundValue::Nothing, of),
            Self::Text(text) => match value_within(text, pointer) {
                None => FoundValue::Nothing,
                Some(found) => {
                    serde_json::from_str(found.get()).map_or(FoundValue::OtherType, |json| of(&json))
                }
            },
        }
    }
}

fn value_within<'t>(text: &'t RawValue, pointer: &str) -> Option<&'t RawValue> {
    pointer.split('/').skip(1).try_fold(text, |text, key| {
        let key = key.replace("~1", "/").replace("~0", "~");
        match text.get().as_bytes().first()? {
            b'{' => serde_json::from_str::<BTreeMap<String, &RawValue>>(text.get()).ok()?.remove(&key),
            b'[' => serde_json::from_str::<Vec<&RawValue>>(text.get())
                .ok()?
                .get(key.parse::<usize>().ok()?)
                .copied(),
            _ => None,
        }
    })
}

fn object_name(state: &State) -> String {
    format!("{}/{}", state.object.namespace, state.object.name)
}

/// `None` if the document has no such value, or one that is larger than a call may carry.
fn read(seq: u64, pointer: &str) -> Result<Option<String>, Error> {
    let text = if pointer.is_empty() { documents::json(seq) } else { documents::get(seq, pointer) };
    match text {
        Err(Error::TooLarge(why)) => {
            log::warn("a document is too large to be read, and the columns have NULL", &[("why", &why)]);
            Ok(None)
        }
        other => other,
    }
}

/// Groups columns so that those of one part of the document share a call, such as all labels.
fn reads(columns: &[Column], most: usize) -> Vec<DocumentValue> {
    let mut reads: Vec<DocumentValue> = Vec::new();
    for (place, column) in columns.iter().enumerate() {
        let part = first_keys(&column.pointer, 2);
        match reads.iter_mut().find(|read| first_keys(&read.pointer, 2) == part) {
            Some(read) => {
                read.columns.push(place);
                read.pointer = part.to_string();
            }
            None => reads.push(DocumentValue { pointer: column.pointer.clone(), columns: vec![place] }),
        }
    }
    if reads.len() > most {
        return whole_document(columns);
    }
    reads
}

fn whole_document(columns: &[Column]) -> Vec<DocumentValue> {
    vec![DocumentValue { pointer: String::new(), columns: (0..columns.len()).collect() }]
}

/// The beginning of a pointer, with at most this many keys.
fn first_keys(pointer: &str, keys: usize) -> &str {
    let end = pointer.match_indices('/').nth(keys).map_or(pointer.len(), |(at, _)| at);
    &pointer[..end]
}

/// The value as the column's type; `None` if it is of another type. Labels are always texts, so a text may
/// contain a number.
fn value(holds: Type, json: &Json) -> Option<Value> {
    match (holds, json) {
        (Type::Text, Json::String(text)) => Some(column_text(text, TEXT_BYTES).into()),
        (Type::Text, Json::Number(number)) => Some(number.to_string().into()),
        (Type::Text, Json::Bool(truth)) => Some(truth.to_string().into()),
        (Type::Integer, Json::Number(number)) => number.as_i64().map(Value::Integer),
        (Type::Integer, Json::String(text)) => text.parse().ok().map(Value::Integer),
        (Type::Number, Json::Number(number)) => number.as_f64().map(Value::Float),
        // The component contains the JSON parser anyway.
        (Type::Number, Json::String(text)) => serde_json::from_str(text).ok().map(Value::Float),
        (Type::Boolean, Json::Bool(truth)) => Some(Value::Boolean(*truth)),
        (Type::Boolean, Json::String(text)) => text.parse().ok().map(Value::Boolean),
        (Type::Time, Json::String(text)) => time::parse(text).map(|ms| time::rfc3339(ms).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(pointers: &[&str]) -> Vec<Column> {
        let column =
            |pointer: &&str| Column { name: "c".into(), pointer: pointer.to_string(), holds: Type::Text };
        pointers.iter().map(column).collect()
    }

    fn pointers(of: &[&str]) -> Vec<(String, usize)> {
        reads(&columns(of), MOST_READS).into_iter().map(|read| (read.pointer, read.columns.len())).collect()
    }

    #[test]
    fn columns_of_one_part_of_the_document_share_a_call_and_many_parts_are_the_document() {
        assert_eq!(pointers(&["/metadata/labels/a"]), [("/metadata/labels/a".to_string(), 1)]);
        assert_eq!(
            pointers(&["/metadata/labels/a", "/spec/parallelism", "/metadata/labels/b~1c"]),
            [("/metadata/labels".to_string(), 2), ("/spec/parallelism".to_string(), 1)]
        );
        assert_eq!(pointers(&["/spec/x", "/spec/x"]), [("/spec/x".to_string(), 2)]);
        assert_eq!(pointers(&["/a/b", "/c/d", "/e/f", "/g/h"]), [(String::new(), 4)]);
        assert_eq!(pointers(&[]), []);
    }

    #[test]
    fn a_value_has_its_columns_type_or_none() {
        let of = |holds, json: &str| value(holds, &serde_json::from_str(json).unwrap());
        let text = |text: &str| Some(Value::Text(text.into()));
        assert_eq!(of(Type::Text, "\"a\\u0000b\""), text("a\u{fffd}b"));
        assert_eq!(of(Type::Text, "8"), text("8"));
        assert_eq!(of(Type::Text, "{}"), None);
        assert_eq!(of(Type::Integer, "\"-8\""), Some(Value::Integer(-8)));
        assert_eq!(of(Type::Integer, "1.5"), None);
        assert_eq!(of(Type::Integer, "9223372036854775808"), None);
        assert_eq!(of(Type::Number, "1.5"), Some(Value::Float(1.5)));
        assert_eq!(of(Type::Number, "\"NaN\""), None);
        assert_eq!(of(Type::Boolean, "\"true\""), Some(Value::Boolean(true)));
        assert_eq!(of(Type::Boolean, "1"), None);
        assert_eq!(of(Type::Time, "\"2026-11-25T23:00:00+02:00\""), text("2026-11-25T21:00:00.000Z"));
        assert_eq!(of(Type::Time, "\"yesterday\""), None);
        let long = format!("\"{}\"", "é".repeat(TEXT_BYTES));
        let cut = format!("{}…", "é".repeat((TEXT_BYTES - 3) / 2));
        assert_eq!(of(Type::Text, &long), text(&cut));
        let whole = "a".repeat(TEXT_BYTES);
        assert_eq!(of(Type::Text, &format!("\"{whole}\"")), text(&whole));
    }
}

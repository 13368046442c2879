//! Writes as data: each engine turns them into its own statements.

use super::link::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Int,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TableColumn {
    pub name: &'static str,
    pub kind: ColumnKind,
}

pub(crate) const fn int_column(name: &'static str) -> TableColumn {
    TableColumn { name, kind: ColumnKind::Int }
}

pub(crate) const fn bytes_column(name: &'static str) -> TableColumn {
    TableColumn { name, kind: ColumnKind::Bytes }
}

/// The value of a column if its row already exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ColumnMerge {
    New,
    Sum,
}

/// The treatment of a row whose key already exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyConflict {
    Refuse,
    Keep,
    Merge(&'static [(&'static str, ColumnMerge)]),
}

/// At most one row for each key: PostgreSQL refuses to merge twice in one statement.
#[derive(Debug)]
pub(crate) struct InsertStatement {
    pub table: &'static str,
    pub columns: &'static [TableColumn],
    pub key: &'static [&'static str],
    pub conflict: KeyConflict,
}

/// Sets columns of the rows with these keys. The columns of the key come first in a batch.
#[derive(Debug)]
pub(crate) struct UpdateStatement {
    pub table: &'static str,
    pub key: &'static [TableColumn],
    pub set: &'static [TableColumn],
}

#[derive(Debug)]
pub(crate) struct DeleteStatement {
    pub table: &'static str,
    pub key: &'static [TableColumn],
}

/// Rows with the same number of columns, one after the other.
#[derive(Debug)]
pub(crate) struct RowsBatch {
    pub width: usize,
    pub values: Vec<Value>,
}

impl RowsBatch {
    pub fn of<T, const WIDTH: usize>(
        rows: impl IntoIterator<Item = T>,
        values: impl Fn(T) -> [Value; WIDTH],
    ) -> Self {
        Self { width: WIDTH, values: rows.into_iter().flat_map(values).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    /// Splits the rows into parts. `rows` gets the remaining values, and returns how many rows come next.
    pub fn split_into_parts(self, rows: fn(&[Value], usize) -> usize) -> Vec<Self> {
        let width = self.width;
        let (mut left, mut counts) = (&self.values[..], Vec::new());
        while !left.is_empty() {
            let next = rows(left, width);
            counts.push(next);
            left = &left[next * width..];
        }
        let mut values = self.values.into_iter();
        let part = |next: usize| Self { width, values: values.by_ref().take(next * width).collect() };
        counts.into_iter().map(part).collect()
    }
}

/// The size that an engine sends.
fn size_of(value: &Value) -> usize {
    match value {
        Value::Null => 1,
        Value::Int(_) => 8,
        Value::Bytes(bytes) => bytes.len() + 9,
    }
}

/// How many rows fit into so many bytes; at least one, however large it is.
pub(crate) fn fitting_rows(values: &[Value], width: usize, limit: usize) -> usize {
    let mut bytes = 0;
    let fitting = values.chunks(width).take_while(|row| {
        bytes += row.iter().map(size_of).sum::<usize>();
        bytes <= limit
    });
    fitting.count().max(1)
}

pub(crate) fn column_names(columns: &[TableColumn]) -> String {
    columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

//! Writes as data: each engine turns them into its own statements.

use super::link::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub name: &'static str,
    pub kind: Kind,
}

pub(crate) const fn int(name: &'static str) -> Column {
    Column { name, kind: Kind::Int }
}

pub(crate) const fn bytes(name: &'static str) -> Column {
    Column { name, kind: Kind::Bytes }
}

/// What a column becomes where its row is there already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Merge {
    New,
    Sum,
}

/// What happens to a row whose key is there already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Conflict {
    Refuse,
    Keep,
    Merge(&'static [(&'static str, Merge)]),
}

/// One row a key at most: PostgreSQL refuses to merge twice in one statement.
#[derive(Debug)]
pub(crate) struct Insert {
    pub table: &'static str,
    pub columns: &'static [Column],
    pub key: &'static [&'static str],
    pub conflict: Conflict,
}

/// Sets columns of the rows with these keys. A batch has the key's columns first.
#[derive(Debug)]
pub(crate) struct Update {
    pub table: &'static str,
    pub key: &'static [Column],
    pub set: &'static [Column],
}

#[derive(Debug)]
pub(crate) struct Delete {
    pub table: &'static str,
    pub key: &'static [Column],
}

/// Rows of one width, one after the other.
#[derive(Debug)]
pub(crate) struct Batch {
    pub width: usize,
    pub values: Vec<Value>,
}

impl Batch {
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

    /// In parts that `rows` measures: it is given what is left, and says how many rows come next.
    pub fn parts(self, rows: fn(&[Value], usize) -> usize) -> Vec<Self> {
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

/// As the engines send it.
fn size_of(value: &Value) -> usize {
    match value {
        Value::Null => 1,
        Value::Int(_) => 8,
        Value::Bytes(bytes) => bytes.len() + 9,
    }
}

/// Rows that fit into so many bytes; one at least, however large it is.
pub(crate) fn fitting(values: &[Value], width: usize, limit: usize) -> usize {
    let mut bytes = 0;
    let fitting = values.chunks(width).take_while(|row| {
        bytes += row.iter().map(size_of).sum::<usize>();
        bytes <= limit
    });
    fitting.count().max(1)
}

pub(crate) fn names(columns: &[Column]) -> String {
    columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

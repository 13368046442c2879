//! Prepares a write that runs one statement for each row.

use std::collections::HashSet;

use kubewitness_core::ports::{GrantError, OnConflict, SqlDialect, SqlValue, TableCopy, TableWrite};

use crate::sql::write::{check_newer, plan_write};

/// Rows, each with the statements to run for it. Its effect depends on these rows alone, so it can be
/// repeated.
pub struct RowWrite {
    pub each: Vec<Each>,
    pub rows: Vec<Vec<SqlValue>>,
}

pub struct Each {
    pub text: String,
    /// The indexes of the row's values that it takes; `None` for all values in order.
    places: Option<Vec<usize>>,
    /// The indexes of rows that it skips.
    without: HashSet<usize>,
}

impl Each {
    pub fn of(text: String) -> Self {
        Self { text, places: None, without: HashSet::new() }
    }

    /// The statement for the second table.
    pub fn of_copy(copy: TableCopy, write: &TableWrite) -> Result<Self, GrantError> {
        let places = copy.column_indexes(write)?;
        if let OnConflict::ReplaceOlder { newer } = &copy.on_conflict {
            check_newer(copy.copied_rows(write), write.columns.iter().position(|column| column == newer))?;
        }
        let TableCopy { table, columns, key, on_conflict, without } = copy;
        let shape = TableWrite { table, columns, key, on_conflict, rows: Vec::new() };
        let text = plan_write(shape, SqlDialect::Sqlite)?.for_one_row();
        Ok(Self { text, places: Some(places), without: without.into_iter().collect() })
    }

    /// The rows that it applies to.
    pub fn own_rows<'r>(&self, rows: &'r [Vec<SqlValue>]) -> impl Iterator<Item = &'r [SqlValue]> {
        rows.iter().enumerate().filter(|(place, _)| !self.without.contains(place)).map(|(_, row)| &row[..])
    }

    /// The values of a row that it takes. All rows have as many values as the write has columns.
    pub fn own_values<'r>(&self, row: &'r [SqlValue]) -> impl Iterator<Item = &'r SqlValue> {
        let count = self.places.as_ref().map_or(row.len(), Vec::len);
        (0..count).filter_map(|at| row.get(self.places.as_ref().map_or(at, |places| places[at])))
    }
}

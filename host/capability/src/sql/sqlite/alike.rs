//! Which columns of a table's rows all have the same value, again and again: a source, a kind, what
//! is not there. Such a value is bound once a statement: binding is much of what a row costs.

use std::collections::HashMap;

use crate::sql::write::{Plan, is_same};

/// Writes of other tables and columns that are remembered.
const SHAPES: usize = 64;

/// Each set of columns makes another text, which is dear to prepare. So a column whose values once
/// differed is taken to differ from then on, and a table has few texts.
#[derive(Default)]
pub struct Alike {
    differ: HashMap<String, Vec<bool>>,
}

impl Alike {
    /// The columns, ascending, that have one value in all rows of this write as in those before it.
    pub fn of(&mut self, plan: &Plan) -> Vec<usize> {
        let Some((first, others)) = plan.rows.split_first().filter(|(_, others)| !others.is_empty()) else {
            return Vec::new();
        };
        if self.differ.len() >= SHAPES {
            self.differ.clear();
        }
        let differ = self.differ.entry(plan.head()).or_insert_with(|| vec![false; first.len()]);
        for (column, differs) in differ.iter_mut().enumerate() {
            *differs = *differs || others.iter().any(|row| !is_same(&first[column], &row[column]));
        }
        (0..first.len()).filter(|column| !differ[*column]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::write::plan;
    use kubewitness_core::ports::{Dialect, OnConflict, SqlValue, TableWrite};

    fn rows(rows: &[[SqlValue; 3]]) -> Plan {
        let write = TableWrite {
            table: "t".into(),
            columns: ["id", "kind", "load"].map(String::from).to_vec(),
            key: vec!["id".into()],
            on_conflict: OnConflict::Ignore,
            rows: rows.iter().map(|row| row.to_vec()).collect(),
        };
        plan(write, Dialect::Sqlite).unwrap()
    }

    fn row(id: i64, kind: &str, load: f64) -> [SqlValue; 3] {
        [SqlValue::Integer(id), SqlValue::Text(kind.into()), SqlValue::Float(load)]
    }

    #[test]
    fn a_column_that_once_differed_is_never_again_taken_to_be_alike() {
        let mut alike = Alike::default();
        assert_eq!(alike.of(&rows(&[row(1, "Job", 0.5), row(2, "Job", 0.5)])), [1, 2]);
        assert_eq!(alike.of(&rows(&[row(1, "Pod", 0.0), row(2, "Pod", -0.0)])), [1]);
        assert_eq!(alike.of(&rows(&[row(1, "Job", 0.5), row(2, "Job", 0.5)])), [1]);
    }

    #[test]
    fn one_row_alone_says_nothing_about_others() {
        let mut alike = Alike::default();
        assert!(alike.of(&rows(&[row(1, "Job", 0.5)])).is_empty());
        assert_eq!(alike.of(&rows(&[row(1, "Job", 0.5), row(2, "Pod", 0.5)])), [2]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut alike = Alike::default();
        for table in 0..3 * SHAPES {
            let mut plan = rows(&[row(1, "Job", 0.5), row(2, "Job", 0.5)]);
            plan.table = format!("t{table}");
            assert_eq!(alike.of(&plan), [1, 2]);
        }
        assert!(alike.differ.len() <= SHAPES);
    }
}

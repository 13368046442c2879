//! `KEY (a(24))` of MySQL: an index over the first 24 characters of a column. The tree represents it as a
//! function call.

use sqlparser::ast::{AlterTableOperation, Expr, Function, IndexColumn, Statement, TableConstraint};

/// The columns with a length, each as the tree renders it.
pub fn prefixed_columns(statement: &Statement) -> Vec<String> {
    match statement {
        Statement::CreateIndex(index) => index_prefixes(&index.columns),
        Statement::CreateTable(table) => table.constraints.iter().flat_map(of_constraint).collect(),
        Statement::AlterTable(table) => table.operations.iter().flat_map(of_operation).collect(),
        _ => Vec::new(),
    }
}

fn of_operation(operation: &AlterTableOperation) -> Vec<String> {
    match operation {
        AlterTableOperation::AddConstraint { constraint, .. } => of_constraint(constraint),
        _ => Vec::new(),
    }
}

fn of_constraint(constraint: &TableConstraint) -> Vec<String> {
    match constraint {
        TableConstraint::Unique(key) => index_prefixes(&key.columns),
        TableConstraint::PrimaryKey(key) => index_prefixes(&key.columns),
        TableConstraint::Index(key) => index_prefixes(&key.columns),
        _ => Vec::new(),
    }
}

/// A function call would have brackets of its own.
fn index_prefixes(columns: &[IndexColumn]) -> Vec<String> {
    let prefix = |column: &IndexColumn| match &column.column.expr {
        Expr::Function(function) if has_length_alone(function) => Some(function.to_string()),
        _ => None,
    };
    columns.iter().filter_map(prefix).collect()
}

fn has_length_alone(function: &Function) -> bool {
    let arguments = function.args.to_string();
    let length = arguments.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or_default();
    function.name.0.len() == 1 && !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit())
}

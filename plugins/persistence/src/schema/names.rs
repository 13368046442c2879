//! The names of tables, with the operator's prefix.

/// The name of the database in the manifest, where the operator gives its address.
pub const DATABASE: &str = "main";

pub const STATUS: &str = "object_status";
pub const HISTORY: &str = "object_history";
pub const TRANSITIONS: &str = "object_transitions";
pub const SCHEMA: &str = "object_schema";
/// Why objects ended badly, and up to which place that is written.
pub const OUTCOMES: &str = "object_outcomes";
pub const CURSORS: &str = "object_cursors";
/// The columns that configurations added, with the type of each.
pub const COLUMNS_TABLE: &str = "object_columns";

/// Puts the prefix before a name.
#[derive(Clone, Copy, Debug)]
pub struct PrefixedNames<'p>(pub &'p str);

impl PrefixedNames<'_> {
    pub fn of(self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

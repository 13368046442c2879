//! The names of tables, with the operator's prefix.

pub const STATUS: &str = "object_status";
pub const HISTORY: &str = "object_history";
pub const TRANSITIONS: &str = "object_transitions";
pub const SCHEMA: &str = "object_schema";
/// Which columns were added by configuration, and what each holds.
pub const COLUMNS_TABLE: &str = "object_columns";

/// Puts the prefix before a name.
#[derive(Clone, Copy, Debug)]
pub struct PrefixedNames<'p>(pub &'p str);

impl PrefixedNames<'_> {
    pub fn of(self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

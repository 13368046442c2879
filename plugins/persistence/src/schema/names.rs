//! The names of tables, with the operator's prefix.

/// The plugin's name for its database. The operator says which one it is.
pub const DATABASE: &str = "main";

pub const STATUS: &str = "object_status";
pub const HISTORY: &str = "object_history";
pub const TRANSITIONS: &str = "object_transitions";
pub const SCHEMA: &str = "object_schema";
/// Why objects ended badly, and how far that is written.
pub const OUTCOMES: &str = "object_outcomes";
pub const CURSORS: &str = "object_cursors";
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

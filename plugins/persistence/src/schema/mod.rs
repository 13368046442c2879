//! The tables as each version of this plugin creates them, in each dialect.
//!
//! People and other programs read the tables, so their columns are a contract: a change is a new version,
//! which only adds. The plugin is a guest without tools of its own, and several instances may start at once.
//! So it runs the statements of the versions that a database lacks, and `deploy/schema` has the same
//! statements as files for an administrator. This module makes texts, and runs no statement.

mod names;
mod types;
mod versions;
mod views;

pub use self::names::{
    COLUMNS_TABLE, CURSORS, DATABASE, HISTORY, OUTCOMES, PrefixedNames, SCHEMA, STATUS, TRANSITIONS,
};
pub use self::types::{ColumnContent, Type, of_type};
pub use self::versions::{VERSION, add_column, folder, indexes, indexes_by_time, outcome_tables, version};
pub use self::views::{causes_view, views};

/// The `id` alone makes a row of the history unique. The version comes first only so that new rows go to the
/// end of the index. With an index over ids alone, whose uids are random, an insert would take three times as
/// long, and longer as the table grows. An id has one version.
pub const HISTORY_KEY: [&str; 2] = ["resource_version", "id"];

/// The changes of one object are read together, in order.
pub const TRANSITIONS_KEY: [&str; 2] = ["uid", "seq"];

/// The columns that object_status and object_history have had since version 1, in the order of the contract.
pub const COLUMNS: [(&str, ColumnContent); 21] = [
    ("id", ColumnContent::Id),
    ("seq", ColumnContent::Position),
    ("source", ColumnContent::Word),
    ("api_group", ColumnContent::Word),
    ("kind", ColumnContent::Word),
    ("namespace", ColumnContent::Name),
    ("name", ColumnContent::Name),
    ("uid", ColumnContent::Uid),
    ("resource_version", ColumnContent::Version),
    ("change", ColumnContent::Word),
    ("phase", ColumnContent::Word),
    ("reason", ColumnContent::Word),
    ("message", ColumnContent::Word),
    ("attempt", ColumnContent::Count),
    ("ready", ColumnContent::Count),
    ("total", ColumnContent::Count),
    ("exit_code", ColumnContent::MaybeCount),
    ("terminal", ColumnContent::Count),
    ("owner_kind", ColumnContent::MaybeWord),
    ("owner_name", ColumnContent::MaybeWord),
    ("observed_at", ColumnContent::Word),
];
/// A column of object_history alone, since version 1.
pub const PREVIOUS: (&str, ColumnContent) = ("previous_phase", ColumnContent::MaybeWord);
/// A column of both tables, since version 2. It links a pod to its job.
pub const OWNER_UID: (&str, ColumnContent) = ("owner_uid", ColumnContent::MaybeWord);

/// A column of object_history alone, since version 2.
pub const DOCUMENT: (&str, ColumnContent) = ("document", ColumnContent::MaybeDocument);

/// The columns of object_transitions.
pub const TRANSITION: [(&str, ColumnContent); 19] = [
    ("uid", ColumnContent::Uid),
    ("seq", ColumnContent::Position),
    ("id", ColumnContent::Id),
    ("source", ColumnContent::Word),
    ("kind", ColumnContent::Word),
    ("namespace", ColumnContent::Name),
    ("name", ColumnContent::Name),
    ("owner_kind", ColumnContent::MaybeWord),
    ("owner_name", ColumnContent::MaybeWord),
    ("owner_uid", ColumnContent::MaybeWord),
    ("from_phase", ColumnContent::MaybeWord),
    ("to_phase", ColumnContent::Word),
    ("reason", ColumnContent::Word),
    ("attempt", ColumnContent::Count),
    ("exit_code", ColumnContent::MaybeCount),
    ("changed_at", ColumnContent::Word),
    ("changed_ms", ColumnContent::Position),
    ("lasted_ms", ColumnContent::MaybeCount),
    ("gpus", ColumnContent::MaybeCount),
];

/// The columns of object_outcomes. The table exists only if the configuration requests causes, so it is not
/// part of a version.
pub const OUTCOME: [(&str, ColumnContent); 22] = [
    ("uid", ColumnContent::Uid),
    ("seq", ColumnContent::Position),
    ("source", ColumnContent::Word),
    ("kind", ColumnContent::Word),
    ("namespace", ColumnContent::Name),
    ("name", ColumnContent::Name),
    ("cause", ColumnContent::Word),
    ("headline", ColumnContent::Word),
    ("sentence", ColumnContent::Word),
    ("doubt", ColumnContent::Word),
    ("pod", ColumnContent::MaybeWord),
    ("container", ColumnContent::MaybeWord),
    ("container_role", ColumnContent::MaybeWord),
    ("node", ColumnContent::MaybeWord),
    ("exit_code", ColumnContent::MaybeCount),
    ("signal_number", ColumnContent::MaybeCount),
    ("reason", ColumnContent::Word),
    ("message", ColumnContent::Word),
    ("because_of", ColumnContent::MaybeWord),
    ("failed_at", ColumnContent::Word),
    ("ended_at", ColumnContent::Word),
    ("ended_ms", ColumnContent::Position),
];

/// Whether object_status or object_history has such a column without configuration.
pub fn has_column(name: &str) -> bool {
    COLUMNS.iter().chain([&PREVIOUS, &OWNER_UID, &DOCUMENT]).any(|(column, _)| *column == name)
}

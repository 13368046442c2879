//! The tables as each version of this plugin makes them, in each dialect. People and other programs read them, so their
//! columns are a contract: a change of it is a new version, which only adds. The plugin runs the statements of the
//! versions that a database lacks, and `deploy/schema` has the same statements as files. It makes texts, and runs no
//! statement.

mod names;
mod types;
mod versions;
mod views;

pub use self::names::{COLUMNS_TABLE, HISTORY, Names, SCHEMA, STATUS, TRANSITIONS};
pub use self::types::{Holds, Type, of_type};
pub use self::versions::{VERSION, add_column, folder, indexes, indexes_by_time, version};
pub use self::views::views;

/// The `id` alone makes a row of the history unique. The version only comes first so that new rows go to the
/// end of the index. With an index over ids alone, whose uids are random, an insert takes three times as long
/// and grows with the table. No id has two versions.
pub const HISTORY_KEY: [&str; 2] = ["resource_version", "id"];

/// The changes of one object are read together, in order.
pub const TRANSITIONS_KEY: [&str; 2] = ["uid", "seq"];

/// The columns that object_status and object_history have had since version 1, in the order of the contract.
pub const COLUMNS: [(&str, Holds); 21] = [
    ("id", Holds::Id),
    ("seq", Holds::Position),
    ("source", Holds::Word),
    ("api_group", Holds::Word),
    ("kind", Holds::Word),
    ("namespace", Holds::Name),
    ("name", Holds::Name),
    ("uid", Holds::Uid),
    ("resource_version", Holds::Version),
    ("change", Holds::Word),
    ("phase", Holds::Word),
    ("reason", Holds::Word),
    ("message", Holds::Word),
    ("attempt", Holds::Count),
    ("ready", Holds::Count),
    ("total", Holds::Count),
    ("exit_code", Holds::MaybeCount),
    ("terminal", Holds::Count),
    ("owner_kind", Holds::MaybeWord),
    ("owner_name", Holds::MaybeWord),
    ("observed_at", Holds::Word),
];
/// Of object_history alone, since version 1.
pub const PREVIOUS: (&str, Holds) = ("previous_phase", Holds::MaybeWord);
/// Of both, since version 2. It links a pod to its job.
pub const OWNER_UID: (&str, Holds) = ("owner_uid", Holds::MaybeWord);

/// Of object_history alone, since version 2.
pub const DOCUMENT: (&str, Holds) = ("document", Holds::MaybeDocument);

/// The columns of object_transitions.
pub const TRANSITION: [(&str, Holds); 19] = [
    ("uid", Holds::Uid),
    ("seq", Holds::Position),
    ("id", Holds::Id),
    ("source", Holds::Word),
    ("kind", Holds::Word),
    ("namespace", Holds::Name),
    ("name", Holds::Name),
    ("owner_kind", Holds::MaybeWord),
    ("owner_name", Holds::MaybeWord),
    ("owner_uid", Holds::MaybeWord),
    ("from_phase", Holds::MaybeWord),
    ("to_phase", Holds::Word),
    ("reason", Holds::Word),
    ("attempt", Holds::Count),
    ("exit_code", Holds::MaybeCount),
    ("changed_at", Holds::Word),
    ("changed_ms", Holds::Position),
    ("lasted_ms", Holds::MaybeCount),
    ("gpus", Holds::MaybeCount),
];

/// Whether object_status or object_history has such a column without being told to.
pub fn has_column(name: &str) -> bool {
    COLUMNS.iter().chain([&PREVIOUS, &OWNER_UID, &DOCUMENT]).any(|(column, _)| *column == name)
}

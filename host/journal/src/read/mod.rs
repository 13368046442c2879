//! Makes states, documents and timelines from rows.
//!
//! A row is read in many ways (in order, by object, by time), and a damaged one must never be returned as a
//! state. So rows become states in this one place, which compares checksums and restores documents from
//! deltas. It writes nothing, and knows no SQL: it reads through the traits of `store`.

pub(crate) mod account;
pub(crate) mod documents;
mod ended_objects;
mod ids;
mod moment;
mod read_ahead;
mod reader;
mod shared_rows;
mod story;
mod watch_start;

pub use account::{PluginAccount, PluginAccounts, account_at};
pub use ended_objects::{EndedObject, EndedPage, EndedQuery, ObjectFilter};
pub use ids::{KnownIds, commit_notes_at, ids_at};
pub use moment::{AtCursor, AtPage, AtQuery, MomentKnowledge, ObjectAt, TimePosition, WALKED};
pub(crate) use read_ahead::RestoredDocuments;
pub(crate) use reader::JournalReader;
pub(crate) use shared_rows::SharedNames;
pub use story::ObjectStory;

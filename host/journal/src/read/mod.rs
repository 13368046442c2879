//! Makes states, documents and timelines of rows. Writes nothing, and knows no SQL: it reads through
//! the traits of `store`.

pub(crate) mod account;
pub(crate) mod documents;
mod ended_objects;
mod ids;
mod moment;
mod reader;
mod shared_rows;
mod story;
mod watch_start;

pub use account::{Account, Accounts, account_at};
pub use ended_objects::{Ended, EndedPage, EndedQuery, Fits};
pub use ids::{Known, ids_at};
pub use moment::{Knowledge, Moment, Then, ThenCursor, ThenPage, ThenQuery, WALKED};
pub(crate) use reader::Reader;
pub(crate) use shared_rows::Names;
pub use story::Story;

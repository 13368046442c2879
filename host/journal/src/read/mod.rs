//! Makes states, documents and timelines of rows. Writes nothing, and knows no SQL: it reads through
//! the traits of `store`.

pub(crate) mod account;
pub(crate) mod documents;
mod ended_objects;
mod ids;
mod moment;
mod names;
mod reader;
mod story;
mod warm;

pub use account::{Account, Accounts, account_at};
pub use ended_objects::{Ended, EndedPage, EndedQuery, Fits};
pub use ids::{Known, ids_at};
pub use moment::{Knowledge, Moment, Then, ThenCursor, ThenPage, ThenQuery, WALKED};
pub(crate) use names::Names;
pub(crate) use reader::Reader;
pub use story::Story;

//! Finds missed versions and reads them back: every version between the last witnessed one and the server's
//! present one, or a gap with exact bounds.
//!
//! | module | what it handles |
//! |---|---|
//! | `compare` | a list differs from the witnessed states |
//! | `walk_back` | versions of one object are missing |
//! | `sweep` | objects came and went while nobody watched |
//! | `history` | the server may have another history: landmarks, census, newest common version |
//! | `report` | the order in which the writer learns it, and when a hole becomes a gap |
//! | `rounds` | the work that a list left behind |
//! | `single_objects` | an event proves that something is missing |
//! | `lookup` | asks whether one object exists, or how it ended |
//! | `audit` | the watch lost something that no event proves |
//!
//! Compaction removes old versions after minutes, so the repair runs beside the watch, within a budget for
//! each connection. Stopping the watch for it was rejected: one large outage would delay every other object.
//! Only names with missing versions wait. A round is complete only once each missing version is either read
//! back or in a gap, and until then the checkpoint on disk stays.
//!
//! The repair writes nothing itself. It sends what it finds to the writer as messages.

pub(crate) mod audit;
pub(crate) mod compare;
pub(crate) mod history;
mod lookup;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod single_objects;
pub(crate) mod sweep;
pub(crate) mod walk_back;

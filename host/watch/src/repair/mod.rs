//! Finds what was missed, and reads it back: every version between the last one that was witnessed and what
//! the server has now, or a gap with exact bounds.
//!
//! | file | what it answers |
//! |---|---|
//! | `compare` | a list differs from what was witnessed |
//! | `walk_back` | versions of one object are missing |
//! | `sweep` | objects came and went while nobody looked |
//! | `history` | the server may have another history: landmarks, census, newest common version |
//! | `report` | in which order the writer learns it, and when a hole becomes a gap |
//! | `rounds` | works off what a list left behind |
//! | `missed` | an event shows by itself that something is missing |
//! | `audit` | the watch lost something and nobody noticed |
//!
//! It writes nothing itself: what it finds goes to the writer as messages.

pub(crate) mod audit;
pub(crate) mod compare;
pub(crate) mod history;
mod lookup;
pub(crate) mod missed;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod sweep;
pub(crate) mod walk_back;

//! The scope of a request: its sources, the part of the answer that the viewer may see, and the position
//! after which it begins.
//!
//! A forgotten check in one handler would show a tenant's objects to another. So handlers read objects and
//! states through this module, and states that were not checked yet have types that a handler can't render.
//! What is hidden must not show by its absence either: not by a count, a cursor, or a time. This module
//! renders nothing and changes nothing.

mod lists;
mod part;
mod position;
mod review;
mod sources;
mod status;
mod stories;
mod visibility;

pub(crate) use lists::MOST_READ;
pub(crate) use part::VisiblePart;
pub(crate) use position::{JournalCursor, PositionMatch};
pub(crate) use review::RightsReview;
pub(crate) use sources::{check, check_filters, describe_witnessed, kind_of};
pub(crate) use visibility::{AccessVerb, ViewerVisibility};

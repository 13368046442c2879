//! The rows of the table of faults, by what they are about. They judge nothing themselves: the oracle does.

mod bookmarks;
mod compacted;
mod expired;
mod kills;
mod lists;
mod lost;
mod misleading;
mod opaque;
mod outages;
mod rights;
mod scope;
mod storm;
mod streams;
mod trouble;

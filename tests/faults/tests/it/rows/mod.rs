//! The rows of the table of faults, by what they are about. They judge nothing themselves: the oracle does.

mod kills;
mod lists;
mod lost;
mod misleading;
mod outages;
mod rights;
mod scope;
mod storm;
mod streams;
mod trouble;
mod versions;

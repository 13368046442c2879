//! Decides whose turn is next. Namespaces take turns, share the window, and hand over their past beside new
//! states. Knows lanes by their keys alone.

pub(super) mod debts;
pub(super) mod in_flight;
pub(super) mod past;
pub(super) mod ready;
pub(super) mod shares;

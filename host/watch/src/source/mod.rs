//! The values that the tasks of one source share, and the messages between tasks.
//!
//! Reader, writer and repair run concurrently and would otherwise depend on each other in a circle. So they
//! share only these values, and send messages: each message has one receiver, and their order is the order of
//! events. This module asks the server nothing, decides nothing and writes nothing. It may use `connect` and
//! `cache`.

pub(crate) mod handle;
pub(crate) mod input;
pub(crate) mod landmarks;
pub(crate) mod life;
pub(crate) mod listers;
pub(crate) mod missing;
pub(crate) mod parts;
pub(crate) mod repair_budget;
pub(crate) mod round;

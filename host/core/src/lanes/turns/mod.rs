//! Decides whose turn is next. Namespaces take turns, share the window, and deliver their backfill beside new
//! states.
//!
//! A plain queue would let one namespace with a hundred thousand objects delay all others. So turns and room
//! are divided by namespace first ([`ready`], [`shares`]), and a backfill has its own rate ([`past`]). It
//! knows lanes only by their keys.

pub(super) mod debts;
pub(super) mod in_flight;
pub(super) mod latest;
pub(super) mod past;
pub(super) mod ready;
pub(super) mod shares;

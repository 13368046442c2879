//! Whose turn is next: namespaces take turns, share the memory of the window, and let the past in beside
//! what is new. Knows lanes by their keys alone.

pub(super) mod past;
pub(super) mod ready;
pub(super) mod shares;

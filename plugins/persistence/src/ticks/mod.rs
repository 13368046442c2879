//! The work of a tick: it writes why objects ended badly, and deletes old rows. States wait meanwhile, so the
//! time of each part is bounded.

pub mod outcomes;
pub mod retention;

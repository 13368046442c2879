//! The work of a tick: it writes why objects ended badly, and deletes old rows. States wait meanwhile, so each part has a
//! bound in time.

pub mod outcomes;
pub mod retention;

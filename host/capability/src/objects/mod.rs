//! The capabilities that read the journal and the cache. None of them has an effect.

pub mod documents;
pub mod lister;
pub mod subscribed;

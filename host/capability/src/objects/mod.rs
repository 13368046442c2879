//! What a plugin reads of the journal and of the cache. Nothing of it has an effect.

pub mod documents;
pub mod lister;

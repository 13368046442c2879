//! The capabilities that read the journal, the cache and what the host knows of outcomes. None of them has an effect.

pub mod call_documents;
pub mod documents;
pub mod lister;
pub mod outcomes;
pub mod subscribed;

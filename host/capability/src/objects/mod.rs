//! The capabilities that read the journal, the cache and the stored outcomes. None of them has an effect.

pub mod call_documents;
pub mod documents;
pub mod lister;
pub mod outcomes;
pub mod subscribed;

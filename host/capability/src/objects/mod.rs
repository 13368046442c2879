//! The capabilities that read the journal and the controller's cache.
//!
//! A plugin could read an API server itself, but then it would see other versions than those that it is
//! handed, without the redaction of the controller. So it asks the host: for the documents of the states in
//! its call, for the newest states of granted sources, and for the kinds that it is subscribed to.
//!
//! Invariant: they read only what the plugin's manifest grants, and none of them has an effect.

pub mod documents;
pub mod lister;
pub mod subscribed;

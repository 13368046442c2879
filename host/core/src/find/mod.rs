//! Finds objects by indexes over their documents, by label selectors, and by parts of their names.
//!
//! A person must not learn a hidden value from which objects match, or from how fast the answer comes. So an
//! [`index`] over hidden values refuses queries, and a text that may be secret rules out no document. The
//! module works on bytes and texts alone, and stores no objects: the cache does.

mod about;
pub mod cursor;
pub mod index;
pub mod order;
pub mod search;
pub mod search_filter;
pub mod selector;

//! Finds objects by indexes over their documents, by label selectors, and by parts of their names. Works on
//! bytes and texts alone, and stores no objects.

mod about;
pub mod cursor;
pub mod index;
pub mod order;
pub mod search;
pub mod search_filter;
pub mod selector;

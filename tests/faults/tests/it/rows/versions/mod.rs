//! Versions that are gone, have no order, or are promised too early.

mod bookmarks;
mod compacted;
mod expired;
mod opaque;

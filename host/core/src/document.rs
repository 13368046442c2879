//! Documents as bytes: packed for the cache, as deltas for the journal, back to the exact bytes.

use std::sync::Arc;

/// A document compressed on its own, shared between the cache and the journal.
pub type Packed = Arc<[u8]>;

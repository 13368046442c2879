//! What `kv` holds for others, or of them: the mutes that people make, and the reports that people read. This module
//! sends nothing, and reads no document.

pub mod mutes;
pub mod report;

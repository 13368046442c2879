//! What `kv` holds for others, or of them: the mutes that people make, and the reports that people read.

pub mod mutes;
pub mod report;

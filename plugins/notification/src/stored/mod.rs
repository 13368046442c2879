//! Reads and writes `kv` for people: the mutes that they set, and the reports that they read. This module
//! sends nothing, and reads no document.

pub mod mutes;
pub mod report;

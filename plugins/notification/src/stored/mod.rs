//! Reads and writes `kv` for people: the mutes that they make, and the reports that they read. This module
//! sends nothing, and reads no document.

pub mod mutes;
pub mod report;

//! A journal is exported, and read into another one.

mod export;
mod import;

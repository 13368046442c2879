//! The statements of the journal for database servers, in SQL that every supported server understands.
//!
//! PostgreSQL, MySQL and MariaDB differ in placeholders, upserts and limits. A set of statements for each of
//! them would triple the code, and one of the sets would sooner or later be wrong. So the statements exist
//! once, and the dialect beside them fills in the differences.
//!
//! The statements know tables and columns, but no locks and no seats, and not what rows mean.

mod checksums;
mod fetch;
pub(super) mod lookup;
mod moments;
mod past;
mod read;
mod remove;
mod save;
mod saved;
mod story;
mod write;

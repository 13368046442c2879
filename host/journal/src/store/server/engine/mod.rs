//! The differences between PostgreSQL on one side and MySQL and MariaDB on the other.
//!
//! The statements are written once, for every server ([`dialect`]). Only writing many rows differs too much:
//! PostgreSQL takes arrays, MySQL long lists of values. So each kind of server has one file that turns a
//! write, as data, into its fastest statement. It takes texts and values, returns rows, and knows no table of
//! the journal.

pub(super) mod dialect;
pub(super) mod fault;
pub(super) mod link;
mod mysql;
mod postgres;
pub(super) mod table;

//! The differences between PostgreSQL on one side and MySQL and MariaDB on the other. Takes texts and values,
//! returns rows, and knows no table of the journal.

pub(super) mod dialect;
pub(super) mod fault;
pub(super) mod link;
mod mysql;
mod postgres;
pub(super) mod table;

//! What PostgreSQL on one side and MySQL and MariaDB on the other do differently. Knows nothing of the
//! journal: texts and values in, rows out.

pub(super) mod dialect;
pub(super) mod fault;
pub(super) mod link;
mod mysql;
mod postgres;
pub(super) mod table;

//! Texts that say why a server can't be used. They name no address, no machine and no user.

use std::io;

/// The message for an operator, with a remedy that works at run time: the address is read for each
/// connection.
pub const REFUSED: &str = "it refuses the user or the password: correct them in what its `urlFrom` names";
pub const NO_DATABASE: &str = "it has no database of that name: make it, or correct what its `urlFrom` names";
pub const NO_RIGHT: &str =
    "its user has no right on that database: grant it, or correct what its `urlFrom` names";

/// The server takes no writes: for a while, or within this transaction.
pub const CANT_BE_WRITTEN: &str = "the database can't be written now";
/// The message when the user lacks a right. Plugins know the words, too.
pub const REFUSES: &str = "the database refuses it";
/// The message about a column that does not exist, or no longer. Plugins know the words, too.
pub const NO_COLUMN: &str = "the table has no column";

pub const UNREADABLE: &str = "the secret is no readable address: each `@`, `:` and `/` of its user and its password \
    is written as %40, %3A and %2F";

/// Why there is no connection, without an address.
pub fn connection_reason(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::ConnectionRefused => "no server listens at its address".into(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "it closes connections".into()
        }
        kind => kind.to_string(),
    }
}

//! Why a server can't be used. No text names an address, a machine or a user.

use std::io;
use std::time::Duration;

use kubewitness_core::address::AddressFileError;
use thiserror::Error;

use super::pooler::LENT;
use crate::secrets::SecretError;

/// Why a server can't be used, for an operator. Each remedy works at run time: the address is read for each
/// connection.
#[derive(Debug, Error)]
pub enum ServerFailure {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("the secret is no address that begins with {0}")]
    OtherScheme(&'static str),
    #[error(
        "the secret is no readable address: each `@`, `:` and `/` of its user and its password is written as %40, %3A \
         and %2F"
    )]
    UnreadableAddress,
    #[error("the secret's address names no database")]
    NoDatabaseNamed,
    #[error(transparent)]
    File(#[from] AddressFileError),
    #[error("no server listens at its address")]
    NobodyListens,
    #[error("it closes connections")]
    ClosesConnections,
    #[error("{kind}")]
    Unreached { kind: io::ErrorKind },
    #[error("it has not answered for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("its certificate or encryption is not accepted")]
    BadEncryption,
    #[error(
        "it takes this user's password over TLS alone: take `ssl-mode=DISABLED` out of the address that its `urlFrom` \
         names, or give it a certificate"
    )]
    NeedsEncryption,
    #[error("it refuses the user or the password: correct them in what its `urlFrom` names")]
    LoginRefused,
    #[error("it has no database of that name: make it, or correct what its `urlFrom` names")]
    NoSuchDatabase,
    #[error("its user has no right on that database: grant it, or correct what its `urlFrom` names")]
    NoRight,
    #[error("it has too many connections")]
    TooManyConnections,
    #[error("it is {0}")]
    Unsettled(&'static str),
    #[error("it answered with {kind} {code}")]
    OtherAnswer { kind: &'static str, code: String },
    #[error("it does not speak {0}'s protocol as expected")]
    OtherProtocol(&'static str),
    #[error("{LENT}")]
    Pooled,
}

impl From<io::ErrorKind> for ServerFailure {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionRefused => Self::NobodyListens,
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
                Self::ClosesConnections
            }
            kind => Self::Unreached { kind },
        }
    }
}

/// The error code for a server that accepts no writes, temporarily or within this transaction.
pub const CANT_BE_WRITTEN: &str = "the database can't be written now";

/// The server accepts no writes. A replica, or a server in recovery, may lack committed receipts.
#[derive(Debug, Error)]
#[error("{CANT_BE_WRITTEN}")]
struct TakesNoWrites;

pub fn expect_writable(is_writable: bool) -> Result<(), sqlx::Error> {
    match is_writable {
        true => Ok(()),
        false => Err(sqlx::Error::Configuration(TakesNoWrites.into())),
    }
}

pub fn is_unwritable(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(why) if why.is::<TakesNoWrites>())
}

/// The message for a missing right. Plugins match these words.
pub const REFUSES: &str = "the database refuses it";
/// The message for a missing column. Plugins match these words.
pub const NO_COLUMN: &str = "the table has no column";

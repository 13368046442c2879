//! The location of a journal: a file, or a database on a server. Opens the store for it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubewitness_core::clock::Clock;

use super::server::{self, ReplicaSharing, ServerAddress, ServerAddressError};
use super::{OpenStore, OpenedJournal, StoreWriter, sqlite};
use crate::report::OpenError;

/// A file, or a database on a server. It never shows a password.
#[derive(Clone)]
pub struct JournalLocation(LocationKind);

#[derive(Clone)]
enum LocationKind {
    File(PathBuf),
    Server(Box<ServerAddress>),
}

impl JournalLocation {
    pub fn file(path: &Path) -> Self {
        Self(LocationKind::File(path.to_path_buf()))
    }

    /// `postgres://…` or `mysql://…`. No error quotes any part of the address.
    pub fn server(address: &str) -> Result<Self, ServerAddressError> {
        Ok(Self(LocationKind::Server(Box::new(ServerAddress::of(address)?))))
    }

    /// Each connection reads the address from this file again, so that a rotated password needs no restart.
    pub fn read_again_from(self, file: &Path) -> Self {
        match self.0 {
            LocationKind::Server(server) => {
                Self(LocationKind::Server(Box::new(server.read_again_from(file))))
            }
            LocationKind::File(_) => self,
        }
    }

    /// `sqlite`, `postgres` or `mysql`.
    pub fn kind(&self) -> &'static str {
        match &self.0 {
            LocationKind::File(_) => "sqlite",
            LocationKind::Server(server) => server.kind(),
        }
    }

    pub(crate) fn is_server(&self) -> bool {
        matches!(self.0, LocationKind::Server(_))
    }

    /// Opens the journal for writing, and creates it if it does not exist. With `unfinished` it also opens a
    /// journal with an unfinished import, and returns whether it is one.
    pub(crate) async fn open(
        &self,
        readers: u32,
        clock: &Arc<dyn Clock>,
        sharing: Option<ReplicaSharing>,
        unfinished: bool,
    ) -> Result<(Box<dyn OpenStore>, Box<dyn StoreWriter>, bool), OpenError> {
        match &self.0 {
            LocationKind::File(path) if sharing.is_some() => {
                let reason = "replicas can't share a file: name a database of a server as the journal";
                Err(OpenError::Unavailable { path: path.clone(), reason: reason.into() })
            }
            LocationKind::File(path) => {
                let (store, writer, marked) = sqlite::SqliteStore::open(path, readers, unfinished).await?;
                Ok((Box::new(store), Box::new(writer), marked))
            }
            LocationKind::Server(server) => {
                let opened = server::ServerStore::open(
                    (**server).clone(),
                    readers,
                    clock.clone(),
                    sharing,
                    unfinished,
                );
                let (store, writer, marked) = opened.await?;
                Ok((Box::new(store), Box::new(writer), marked))
            }
        }
    }

    pub(crate) async fn open_to_read(&self) -> Result<OpenedJournal, OpenError> {
        match &self.0 {
            LocationKind::File(path) => sqlite::open_to_read(path).await,
            LocationKind::Server(server) => server::open_to_read(server).await,
        }
    }
}

/// Deletes a journal with an unfinished import. Any other journal stays untouched.
pub async fn discard_unfinished_import(place: &JournalLocation) -> Result<(), OpenError> {
    match &place.0 {
        LocationKind::File(path) => sqlite::discard_unfinished_import(path).await,
        LocationKind::Server(server) => server::discard_unfinished_import(server).await,
    }
}

impl fmt::Display for JournalLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            LocationKind::File(path) => write!(f, "{}", path.display()),
            LocationKind::Server(server) => server.fmt(f),
        }
    }
}

impl fmt::Debug for JournalLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_tells_the_kind_and_never_the_password() {
        for (address, kind) in [
            ("postgres://ann:hush@db/journal", "postgres"),
            ("postgresql://ann:hush@db/journal", "postgres"),
            ("mysql://ann:hush@db/journal", "mysql"),
            ("mariadb://ann:hush@db/journal", "mysql"),
        ] {
            let place = JournalLocation::server(address).unwrap();
            assert_eq!(place.kind(), kind);
            assert!(!format!("{place} {place:?}").contains("hush"));
        }
        assert!(
            JournalLocation::server("ann:hush@db").is_err_and(|error| !error.to_string().contains("hush"))
        );
    }
}

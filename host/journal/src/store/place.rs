//! Where a journal is.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::store::server::Server;

/// A file, or a database of a server. Shows no password.
#[derive(Clone)]
pub struct Place(pub(crate) Inner);

#[derive(Clone)]
pub(crate) enum Inner {
    File(PathBuf),
    Server(Box<Server>),
}

impl Place {
    pub fn file(path: &Path) -> Self {
        Self(Inner::File(path.to_path_buf()))
    }

    /// `postgres://…` or `mysql://…`. Nothing of the address is told in an error.
    pub fn server(address: &str) -> Result<Self, String> {
        let server = match address.split_once("://") {
            Some(("postgres" | "postgresql", _)) => Server::postgres(address)?,
            Some(("mysql" | "mariadb", rest)) => Server::mysql(&format!("mysql://{rest}"))?,
            _ => return Err("an address of a journal begins with postgres:// or mysql://".into()),
        };
        Ok(Self(Inner::Server(Box::new(server))))
    }

    /// `sqlite`, `postgres` or `mysql`.
    pub fn kind(&self) -> &'static str {
        match &self.0 {
            Inner::File(_) => "sqlite",
            Inner::Server(server) => server.kind(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::File(path) => write!(f, "{}", path.display()),
            Inner::Server(server) => server.fmt(f),
        }
    }
}

impl fmt::Debug for Place {
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
            let place = Place::server(address).unwrap();
            assert_eq!(place.kind(), kind);
            assert!(!format!("{place} {place:?}").contains("hush"));
        }
        assert!(Place::server("ann:hush@db").is_err_and(|error| !error.contains("hush")));
    }
}

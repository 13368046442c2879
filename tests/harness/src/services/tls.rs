//! Certificates for servers of tests, from an authority that is made for one server.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::output;

const PROGRAM: &str = "openssl";

/// What a server shows, and by what a client knows it.
pub struct Certificates {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

pub fn is_installed() -> bool {
    super::folder_with(super::search_path(), &[PROGRAM]).is_some()
}

fn openssl(folder: &Path, words: &str) -> Result<()> {
    let mut command = Command::new(PROGRAM);
    output(command.current_dir(folder).args(words.split_whitespace())).map(drop)
}

/// An authority, and a certificate of it for 127.0.0.1 alone.
pub fn make(folder: &Path) -> Result<Certificates> {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc";
    openssl(folder, &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"))?;
    openssl(folder, &format!("req {key} -keyout server.key -out server.csr -subj /CN=server"))?;
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").context("the names")?;
    let sign = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
    openssl(folder, &format!("{sign} -out server.pem"))?;
    let path = |name: &str| folder.join(name);
    Ok(Certificates { authority: path("ca.pem"), certificate: path("server.pem"), key: path("server.key") })
}

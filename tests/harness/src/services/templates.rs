//! Data folders of database servers, initialised once and copied for each server. To initialise one takes seconds.
//!
//! A template lies beside the build. Its name has what shapes it: the server's version, how it was initialised, and
//! what was done then. The first process that needs it makes it under a lock, and gives it its name when it is complete.
//! What a killed process left is made again.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{DatabaseServer, SqlService, mysql, output, postgres};
use crate::programs::templates_folder;

/// The subfolder with the data itself, in a folder of a server's data.
pub const DATA: &str = "data";
const UNFINISHED: &str = "unfinished";

/// Gives a server's folder data in which nobody has a database yet.
pub fn copy_into(service: SqlService, folder: &Path) -> Result<()> {
    copy(&template(service)?, &folder.join(DATA))
}

fn template(service: SqlService) -> Result<PathBuf> {
    let folder = templates_folder()?;
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let kind = service.to_string().to_lowercase();
    let template = folder.join(format!("{kind}-{:016x}", shape(service)?));
    if template.is_dir() {
        return Ok(template);
    }
    let lock = folder.join(format!("{kind}.lock"));
    let lock = File::create(&lock).with_context(|| format!("opening {}", lock.display()))?;
    lock.lock().context("waiting for the process that makes the template")?;
    if template.is_dir() {
        return Ok(template);
    }
    // Those of other versions, and what was not finished. Only the holder of the lock removes or makes one.
    for entry in folder.read_dir().with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name.starts_with(&format!("{kind}-")) {
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    let unfinished = folder.join(format!("{kind}-{UNFINISHED}"));
    // The server's user may be unable to enter the build's folder, so the data is made elsewhere.
    let server = DatabaseServer::initialize(service)?;
    copy(&server.own()?.folder.join(DATA), &unfinished)?;
    fs::rename(&unfinished, &template).with_context(|| format!("giving {} its name", template.display()))?;
    Ok(template)
}

fn shape(service: SqlService) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    match service {
        SqlService::Postgres => postgres::shape(&mut hasher)?,
        service => mysql::shape(service, &mut hasher)?,
    }
    Ok(hasher.finish())
}

/// A program of another version makes other data.
pub fn hash_version(program: &Path, hasher: &mut impl Hasher) -> Result<()> {
    output(Command::new(program).arg("--version"))?.hash(hasher);
    Ok(())
}

/// Owners stay, and blocks of zeros take no room: data folders have many.
fn copy(from: &Path, to: &Path) -> Result<()> {
    output(Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to)).map(drop)
}

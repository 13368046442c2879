//! Fetches MySQL for tests. Debian's stable release has only MariaDB, and the packages of its unstable suite
//! need a newer libc than this machine may have. So the packages are unpacked into a folder of the build,
//! with all dependencies, and their own loader runs them. Nothing is installed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::apt::{Apt, MIRROR, run};
use super::{runs, search_path};
use crate::build::{is_root, services_folder, step};

pub const NAME: &str = "mysqld (of MySQL)";

/// The programs, each with its folder in the package.
const PROGRAMS: [(&str, &str); 2] = [("mysqld", "usr/sbin"), ("mysql", "usr/bin")];
const PACKAGES: [&str; 2] = ["mysql-server-core", "mysql-client-core"];
/// The keys with which Debian's mirrors are signed. Only Debian has this file.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A mirror's index may be newer than its packages for a while, and networks fail.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10);

/// Fetches MySQL if it is missing, as root on Debian. Returns whether it exists then.
pub fn ensure() -> bool {
    if is_there() {
        return true;
    }
    if !is_root() || !runs("apt-get") || !Path::new(KEYS).is_file() {
        return false;
    }
    step("fetching MySQL");
    for left in (0..TRIES).rev() {
        match unpack() {
            Ok(()) => break,
            Err(why) => eprintln!("xtask: MySQL can't be fetched: {why:#}"),
        }
        if left > 0 {
            std::thread::sleep(PAUSE);
        }
    }
    is_there()
}

fn folder() -> PathBuf {
    services_folder().join("mysql")
}

fn is_there() -> bool {
    let mut folders = search_path().chain([folder().join("bin")]);
    folders.any(|folder| PROGRAMS.iter().all(|(program, _)| is_mysql(&folder.join(program))))
}

/// Whether a program is MySQL's, because MariaDB's programs have the same name. It is run as tests run it,
/// since servers do not run as root.
fn is_mysql(program: &Path) -> bool {
    if !program.is_file() {
        return false;
    }
    let mut command = Command::new(if is_root() { Path::new("setpriv") } else { program });
    if is_root() {
        command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]).arg(program);
    }
    let Ok(output) = command.arg("--version").stdin(Stdio::null()).output() else { return false };
    output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("MariaDB")
}

/// Unpacks the packages. Leftovers of a killed run are replaced; a folder with the final name is complete.
fn unpack() -> Result<()> {
    let (new, fetched) = (folder().with_extension("new"), folder().with_extension("packages"));
    for left in [&new, &fetched, &folder()] {
        if left.exists() {
            fs::remove_dir_all(left).with_context(|| format!("removing {}", left.display()))?;
        }
    }
    fs::create_dir_all(&new)?;
    let apt = Apt::new(&fetched, &format!("deb [signed-by={KEYS}] {MIRROR} sid main"))?;
    apt.run(&["update"])?;
    apt.run(&[&["install", "--yes", "--no-install-recommends", "--download-only"][..], &PACKAGES].concat())?;
    for package in apt.packages()? {
        // The packages' Perl scripts are not needed.
        if !package.to_string_lossy().contains("perl") {
            run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&new))?;
        }
    }
    for path in [&services_folder(), &new] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
    }
    for (program, place) in PROGRAMS {
        put_in_path(&new, place, program)?;
    }
    fs::rename(&new, folder()).context("giving it its name")?;
    fs::remove_dir_all(&fetched).context("removing the packages")
}

/// Writes a script that runs a program as if it were installed.
fn put_in_path(new: &Path, place: &str, program: &str) -> Result<()> {
    // The folder of this machine's architecture.
    let libraries = entry(&new.join("usr/lib"), |path| path.join("libc.so.6").exists())?;
    let is_loader = |path: &Path| path.file_name().is_some_and(|name| starts_with(name, "ld-linux"));
    let loader = entry(&libraries, is_loader)?;
    let within = |path: &Path| -> Result<String> { Ok(path.strip_prefix(new)?.display().to_string()) };
    let (loader, libraries) = (within(&loader)?, within(&libraries)?);
    // The path at which the server looks for its messages and other files.
    let more = match program {
        "mysqld" => r#" --basedir="$root/usr" --lc-messages-dir="$root/usr/share/mysql""#,
        _ => "",
    };
    let script = format!(
        "#!/bin/sh\nroot=${{0%/*}}/..\n\
         exec \"$root/{loader}\" --library-path \"$root/{libraries}\" \"$root/{place}/{program}\" \"$@\"{more}\n"
    );
    let path = new.join("bin").join(program);
    fs::create_dir_all(new.join("bin"))?;
    fs::write(&path, script)?;
    for path in [&new.join("bin"), &path] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
    }
    ensure!(is_mysql(&path), "{} does not run, or not as the user nobody", path.display());
    Ok(())
}

fn starts_with(name: &OsStr, start: &str) -> bool {
    name.to_string_lossy().starts_with(start)
}

fn entry(folder: &Path, is_it: impl Fn(&Path) -> bool) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let found = entries.flatten().map(|entry| entry.path()).find(|path| is_it(path));
    found.with_context(|| format!("the packages have no loader or no libc in {}", folder.display()))
}

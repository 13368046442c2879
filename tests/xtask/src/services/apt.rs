//! Fetches Debian packages with a separate package state, which leaves the machine's own unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

pub const MIRROR: &str = "http://deb.debian.org/debian";

pub struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Keeps everything in one folder. `list` is a line of `sources.list`.
    pub fn new(folder: &Path, list: &str) -> Result<Self> {
        for needed in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(needed))?;
        }
        fs::write(folder.join("sources.list"), format!("{list}\n"))?;
        // Nothing counts as installed in it, so apt fetches everything that a package needs.
        fs::write(folder.join("status"), "")?;
        Ok(Self { folder: folder.to_path_buf() })
    }

    /// Runs apt in the folder.
    pub fn run(&self, arguments: &[&str]) -> Result<()> {
        let mut apt = Command::new("apt-get");
        apt.args(["--quiet", "-o", "Dir::Etc::sourceparts=-", "-o", "Acquire::Languages=none"]);
        apt.args(["-o", "Acquire::Retries=5"]);
        let places = [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
        ];
        for (what, place) in places {
            apt.arg("-o").arg(format!("{what}={}", self.folder.join(place).display()));
        }
        apt.args(arguments).current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::null());
        run(&mut apt)
    }

    /// The fetched packages.
    pub fn packages(&self) -> Result<Vec<PathBuf>> {
        let archives = fs::read_dir(self.folder.join("cache/archives")).context("the fetched packages")?;
        let paths = archives.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|is| is == "deb")).collect())
    }
}

pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

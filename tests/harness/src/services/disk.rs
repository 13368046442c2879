//! A small disk for tests, which can be filled to the last byte.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// A file system in memory; unmounted when it is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `size` as `mount` takes it. `None`: only root may mount, and this one may not.
    pub fn mount(folder: &Path, size: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder);
        mount.output().is_ok_and(|output| output.status.success()).then(|| Self(folder.to_path_buf()))
    }

    /// Leaves no room at all.
    pub fn fill(&self) -> Result<()> {
        let mut ballast = std::fs::File::create(self.0.join("ballast"))?;
        while ballast.write_all(&[7; 4096]).is_ok() {}
        Ok(())
    }

    pub fn make_room(&self) -> Result<()> {
        std::fs::remove_file(self.0.join("ballast")).context("making room")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that was just killed may still be on its way out.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}

//! Fetches axe-core, with which the tests look for what keeps people from using the portal's pages. No page loads it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::build::{services_folder, step};
use crate::services::runs;

pub const NAME: &str = "axe-core";
/// A newer one knows other rules, so that a new finding would come with it alone.
const VERSION: &str = "axe-core@4.14.1";

fn script() -> PathBuf {
    services_folder().join("axe/node_modules/axe-core/axe.min.js")
}

/// Whether it is there.
pub fn ensure() -> bool {
    let folder = services_folder().join("axe");
    if !script().is_file() && runs("npm") && std::fs::create_dir_all(&folder).is_ok() {
        step("installing axe-core");
        let mut command = Command::new("npm");
        command.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", ".", VERSION]);
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        if let Err(error) = command.status() {
            eprintln!("xtask: starting npm: {error}");
        }
    }
    script().is_file()
}

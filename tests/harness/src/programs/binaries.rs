//! Finds the built programs and plugins. Tests of one package can't ask cargo for the binaries of another one, so
//! they are looked for beside the test itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const BUILD: &str = "build them and run the tests with `cargo xtask test`";

/// The folder that holds `Cargo.toml` of the workspace.
pub fn project_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// `target/debug` (or whatever profile this was built with). Programs of tests lie in `deps` there, other programs do not.
fn profile_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("where this program is")?;
    let folder = program.parent().context("the program lies outside of a target folder")?;
    let folder = if folder.ends_with("deps") { folder.parent().context("a target folder")? } else { folder };
    Ok(folder.to_path_buf())
}

fn binary(name: &str) -> Result<PathBuf> {
    let folder = match std::env::var_os("KUBEWITNESS_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => profile_folder()?,
    };
    let path = folder.join(name);
    if !path.is_file() {
        bail!("{} is missing: {BUILD}, or name the folder in KUBEWITNESS_BIN_DIR", path.display());
    }
    Ok(path)
}

pub fn kubewitness_binary() -> Result<PathBuf> {
    binary("kubewitness")
}

pub fn simulator_binary() -> Result<PathBuf> {
    binary("kubewitness-simulator")
}

/// A folder in the target folder; a variable may name another place.
fn beside_the_builds(variable: &str, name: &str) -> Result<PathBuf> {
    match std::env::var_os(variable) {
        Some(folder) => Ok(PathBuf::from(folder)),
        None => Ok(profile_folder()?.parent().context("a target folder")?.join(name)),
    }
}

/// Servers that this machine has no package of.
pub fn services_folder() -> Result<PathBuf> {
    beside_the_builds("KUBEWITNESS_SERVICES", "services")
}

/// Data folders that servers begin with: see `services::templates`.
pub fn templates_folder() -> Result<PathBuf> {
    beside_the_builds("KUBEWITNESS_DATABASE_TEMPLATES", "database-templates")
}

/// Code that controllers compiled before: see `compiled`.
pub fn compiled_folder() -> Result<PathBuf> {
    beside_the_builds("KUBEWITNESS_COMPILED", "compiled")
}

/// The folder with `persistence.wasm` and the others, beside the programs.
pub fn plugins_folder() -> Result<PathBuf> {
    let folder = match std::env::var_os("KUBEWITNESS_PLUGINS") {
        Some(folder) => PathBuf::from(folder),
        None => profile_folder()?.join("plugins"),
    };
    if !folder.join("persistence.wasm").is_file() {
        bail!(
            "{} has no persistence.wasm: {BUILD}, or name the folder in KUBEWITNESS_PLUGINS",
            folder.display()
        );
    }
    Ok(folder)
}

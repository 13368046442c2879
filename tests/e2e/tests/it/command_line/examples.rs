//! The plugins of `plugins/examples`, each built from a copy of its folder and run over its recorded states, as somebody does
//! who begins with it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Scratch, compiled, in_scratch, project_root};
use tokio::process::Command;

use crate::command_line::authors::{Author, componentize_js, componentize_py};

/// A copy without links: the interfaces come with it, as they do for somebody who has no checkout.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy(&path, &to)?,
            false => drop(fs::copy(&path, &to)?),
        }
    }
    Ok(())
}

fn example(scratch: &Scratch, name: &str) -> Result<Author> {
    let folder = scratch.path().join(name);
    copy(&project_root().join("plugins/examples").join(name), &folder)?;
    compiled::seed_author(&folder)?;
    Author::of(scratch, name)
}

/// The SDK as a registry would give it: packed, and unpacked elsewhere.
async fn packed_sdk(scratch: &Scratch) -> Result<PathBuf> {
    let target = scratch.folder("packing")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["package", "--package", "kubewitness-sdk", "--no-verify", "--allow-dirty", "--target-dir"]);
    let packed = cargo.arg(&target).current_dir(project_root()).output().await?;
    ensure!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let package = target.join("package");
    let file = fs::read_dir(&package)?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let file = file.into_iter().find(|path| path.extension().is_some_and(|it| it == "crate"));
    let file = file.context("cargo packed no crate")?;
    let unpacked = Command::new("tar").arg("xzf").arg(&file).current_dir(&package).status().await?;
    ensure!(unpacked.success(), "{} can't be unpacked", file.display());
    Ok(file.with_extension(""))
}

#[tokio::test]
async fn the_example_in_rust_is_built_from_the_packed_sdk_and_does_what_is_on_file() {
    in_scratch("example-rust", async |scratch| {
        let digest = example(scratch, "digest")?;
        let sdk = packed_sdk(scratch).await?;
        for file in ["README.md", "wit/README.md", "wit/types.wit"] {
            ensure!(sdk.join(file).is_file(), "the packed crate has no {file}");
        }
        let patch = format!("[patch.crates-io]\nkubewitness-sdk = {{ path = \"{}\" }}\n", sdk.display());
        fs::write(digest.folder.join(".cargo/config.toml"), patch)?;
        digest.builds_and_tests().await
    })
    .await;
}

#[tokio::test]
async fn the_example_in_python_is_built_from_the_interfaces_alone_and_does_what_is_on_file() {
    let Some(tool) = componentize_py("the example in Python") else { return };
    in_scratch("example-python", async |scratch| {
        let usage = example(scratch, "usage")?;
        std::os::unix::fs::symlink(tool, usage.folder.join("venv"))?;
        usage.builds_and_tests().await
    })
    .await;
}

#[tokio::test]
async fn the_example_in_javascript_is_built_from_the_interfaces_alone_and_does_what_is_on_file() {
    let Some(tool) = componentize_js("the example in JavaScript") else { return };
    in_scratch("example-javascript", async |scratch| {
        let stuck = example(scratch, "stuck")?;
        std::os::unix::fs::symlink(tool, stuck.folder.join("node_modules"))?;
        stuck.builds_and_tests().await
    })
    .await;
}

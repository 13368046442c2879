//! Builds the programs that real clusters are made of from their Go modules.
//!
//! `tests/real/modules` has a Go module for each program, or for each minor version of Kubernetes, because
//! their dependencies exclude each other. A module pins its dependencies by version and hash. The results
//! stay in `target/real`, with a copy of the module's file, and are built again when that file changes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build::{self, root, step};
use crate::measure::peer;
use crate::services::apt;

const MODULES: &str = "tests/real/modules";
/// The words before the version in the module's file.
const REQUIRED: &str = "k8s.io/kubernetes v";

pub struct GoModule {
    pub name: &'static str,
    /// The name of each program here, and its package.
    pub programs: &'static [(&'static str, &'static str)],
}

/// A controller of kinds that are not Kubernetes' own.
pub struct OperatorModule {
    pub module: GoModule,
    /// The path of the module that it comes from.
    pub path: &'static str,
    /// The folder there with the definitions of its kinds.
    pub definitions: &'static str,
}

impl GoModule {
    /// The folder with the files that pin it.
    pub fn source(&self) -> PathBuf {
        root().join(MODULES).join(self.name)
    }

    pub fn minor(&self) -> &'static str {
        self.name.trim_start_matches("kubernetes-")
    }
}

/// How Go is called.
pub struct GoBuild<'a> {
    go: &'a Path,
    /// How much time is left, if it runs beside tests.
    beside_tests: Option<Duration>,
}

impl<'a> GoBuild<'a> {
    pub fn alone(go: &'a Path) -> Self {
        Self { go, beside_tests: None }
    }

    pub fn beside_tests(go: &'a Path, left: Duration) -> Self {
        Self { go, beside_tests: Some(left) }
    }

    fn command(&self, source: &Path) -> Command {
        let build = peer::go_build(self.go, source);
        let Some(left) = self.beside_tests else { return build };
        let mut command = Command::new("nice");
        command.args(["-n", "19", "timeout", &left.as_secs().max(1).to_string()]);
        command.arg(build.get_program()).args(build.get_args());
        // One package at a time, so that the memory of the linker and the compilers is bounded.
        command.args(["-p", "1"]).current_dir(source);
        command
    }
}

pub fn folder() -> PathBuf {
    build::target().join("real")
}

/// Builds these programs of a module, unless they were built from its present files. `note` names the file
/// that records it.
pub fn ensure_built(
    go: &GoBuild<'_>,
    module: &GoModule,
    programs: &[(&str, &str)],
    note: &str,
) -> Result<()> {
    let source = module.source();
    let read = |name: &str| {
        let path = source.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let (pinned, sums) = (read("go.mod")?, read("go.sum")?);
    // A module may have a program of its own in addition to those that it pins.
    let own = read("main.go").unwrap_or_default();
    let (target, stamp) = (folder_of(module), pinned.clone() + &sums + &own);
    let note = target.join(note);
    if std::fs::read_to_string(&note).is_ok_and(|of| of == stamp) {
        return Ok(());
    }
    std::fs::create_dir_all(&target).with_context(|| format!("making {}", target.display()))?;
    for (program, package) in programs {
        step(&format!("building {program} of {}", module.name));
        let begun = Instant::now();
        let mut command = go.command(&source);
        command.args(["-ldflags", &linker_flags(&pinned)?]).env("CGO_ENABLED", "0");
        apt::run(command.arg("-o").arg(target.join(program)).arg(package))?;
        let size = target.join(program).metadata().context("what was built")?.len();
        step(&format!("{program}: {} s, {} MB", begun.elapsed().as_secs(), size / 1_000_000));
    }
    std::fs::write(&note, stamp).with_context(|| format!("writing {}", note.display()))
}

/// Copies the definitions of an operator's kinds beside its program, as its pinned module has them.
pub fn copy_definitions(go: &GoBuild<'_>, operator: &OperatorModule) -> Result<()> {
    let from = folder_in_cache(go, operator)?.join(operator.definitions);
    let to = folder_of(&operator.module).join("definitions");
    if to.exists() {
        std::fs::remove_dir_all(&to).with_context(|| format!("clearing {}", to.display()))?;
    }
    std::fs::create_dir_all(&to).with_context(|| format!("making {}", to.display()))?;
    for entry in std::fs::read_dir(&from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry.with_context(|| format!("reading {}", from.display()))?;
        let name = entry.file_name();
        // The folder may also say how kustomize puts the definitions together.
        if !name.to_string_lossy().ends_with(".yaml") || name == "kustomization.yaml" {
            continue;
        }
        // Files in the module cache are read-only, so their rights are not copied.
        let text =
            std::fs::read(entry.path()).with_context(|| format!("reading {}", entry.path().display()))?;
        std::fs::write(to.join(name), text).with_context(|| format!("writing to {}", to.display()))?;
    }
    Ok(())
}

/// The folder of the operator's module among those that Go has downloaded.
fn folder_in_cache(go: &GoBuild<'_>, operator: &OperatorModule) -> Result<PathBuf> {
    let mut list = Command::new(go.go);
    list.args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", operator.path]);
    let output = list.current_dir(operator.module.source()).output().context("starting go")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("`go list` does not find {} ({}): {}", operator.path, output.status, why.trim());
    }
    let folder = String::from_utf8(output.stdout).context("the folder of a module")?;
    Ok(PathBuf::from(folder.trim()))
}

fn folder_of(module: &GoModule) -> PathBuf {
    folder().join(module.name)
}

/// Flags with the version that a Kubernetes server reports to its clients. Without them it reports one that
/// clients refuse.
fn linker_flags(pinned: &str) -> Result<String> {
    let small = "-s -w".to_owned();
    let Some((_, rest)) = pinned.split_once(REQUIRED) else { return Ok(small) };
    let version = rest.split_whitespace().next().unwrap_or_default();
    let mut parts = version.split('.');
    let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
        bail!("`{REQUIRED}{version}` is no version");
    };
    let of = "-X k8s.io/component-base/version";
    Ok(format!("{small} {of}.gitVersion=v{version} {of}.gitMajor={major} {of}.gitMinor={minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_the_version_that_its_module_pins() {
        let flags = linker_flags("require (\n\tk8s.io/kubernetes v1.36.3\n)").expect("a version");
        assert!(flags.contains("gitVersion=v1.36.3 ") && flags.ends_with("gitMinor=36"), "{flags}");
        assert_eq!(linker_flags("require go.etcd.io/etcd/server/v3 v3.6.16").expect("none"), "-s -w");
    }
}

//! Builds the plugins as components, for people who install them or for a first look and tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{cargo, check, root, step, target};

const WASM_TARGET: &str = "wasm32-wasip2";
pub const SHIPPED: [&str; 3] = ["persistence", "notification", "audit"];
/// The largest shipped component: a ConfigMap holds up to 1 MiB, and this leaves room to spare.
const LARGEST_SHIPPED: u64 = 450_000;
/// The plugin that executes a test's commands, and the one that writes e-mail.
const FOR_TESTS: [&str; 2] = ["probe", "mailer"];
/// The package of hostile guests. Each of its examples is one.
const HOSTILE: &str = "kubewitness-hostile";

/// How components are compiled.
#[derive(Clone, Copy)]
pub enum PluginProfile {
    /// Small and fast: what people install, and what benchmarks measure.
    Shipped,
    /// Compiled in less than half the time, and up to twice as large: for the playground and for tests.
    Quick,
}

impl PluginProfile {
    fn name(self) -> &'static str {
        match self {
            Self::Shipped => "plugin",
            Self::Quick => "quick-plugin",
        }
    }

    /// The folder of the components. A controller in `target/debug` finds the quick ones beside it.
    pub fn folder(self) -> PathBuf {
        match self {
            Self::Shipped => target().join("plugins"),
            Self::Quick => target().join("debug").join("plugins"),
        }
    }

    /// The cargo command that builds these plugins.
    pub fn command(self, plugins: &[&str]) -> Command {
        let mut command = cargo();
        command.args(["build", "--locked", "--target", WASM_TARGET, "--profile", self.name()]);
        for plugin in plugins {
            command.args(["--package", &format!("kubewitness-plugin-{plugin}")]);
        }
        command
    }

    /// Copies the built components into the folder of this profile.
    pub fn take(self, plugins: &[&str]) -> Result<()> {
        let (built, folder) = (self.built_folder(), make(self.folder())?);
        for plugin in plugins {
            let file = built.join(format!("kubewitness_plugin_{plugin}.wasm"));
            copy_if_changed(&file, &folder.join(format!("{plugin}.wasm")))?;
        }
        Ok(())
    }

    fn built_folder(self) -> PathBuf {
        target().join(WASM_TARGET).join(self.name())
    }
}

/// Builds plugins as they are installed.
pub fn shipped(plugins: &[&str]) -> Result<()> {
    ensure_target()?;
    step("building the plugins");
    check(&mut PluginProfile::Shipped.command(plugins))?;
    PluginProfile::Shipped.take(plugins)?;
    plugins
        .iter()
        .filter(|plugin| SHIPPED.contains(plugin))
        .try_for_each(|plugin| fits_into_config_map(plugin))
}

fn fits_into_config_map(plugin: &str) -> Result<()> {
    let file = PluginProfile::Shipped.folder().join(format!("{plugin}.wasm"));
    let size = file.metadata().with_context(|| format!("reading {}", file.display()))?.len();
    if size > LARGEST_SHIPPED {
        bail!(
            "{} has {size} bytes, and may have {LARGEST_SHIPPED}: look for what made it larger",
            file.display()
        );
    }
    Ok(())
}

/// The same with those for tests, which benchmarks need, too.
pub fn shipped_and_for_tests() -> Result<()> {
    shipped(&all_plugins())
}

fn all_plugins() -> Vec<&'static str> {
    [SHIPPED.as_slice(), &FOR_TESTS].concat()
}

/// The cargo command that builds all components for tests.
pub fn for_tests() -> Command {
    let mut command = PluginProfile::Quick.command(&all_plugins());
    command.args(["--package", HOSTILE, "--lib", "--examples"]);
    command
}

/// Copies what [`for_tests`] built.
pub fn take_for_tests() -> Result<()> {
    PluginProfile::Quick.take(&all_plugins())?;
    let built = PluginProfile::Quick.built_folder().join("examples");
    let folder = make(PluginProfile::Quick.folder().join("hostile"))?;
    for name in hostile_names()? {
        let file = format!("{name}.wasm");
        copy_if_changed(&built.join(&file), &folder.join(&file))?;
    }
    Ok(())
}

/// The hostile guests: one for each file in a folder of `examples`. A file that `Cargo.toml` does not name is
/// not built, which is an error.
fn hostile_names() -> Result<Vec<String>> {
    let examples = root().join("tests/guests/hostile/examples");
    let mut names = Vec::new();
    for folder in examples.read_dir().with_context(|| format!("reading {}", examples.display()))? {
        for program in folder?.path().read_dir()? {
            names.extend(program?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

fn make(folder: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// Copies a file only if it changed. An unchanged file keeps its time, so that the host is not built again.
fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let new = std::fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if std::fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    std::fs::write(to, new).with_context(|| format!("writing {}", to.display()))
}

pub fn ensure_target() -> Result<()> {
    if target_installed() {
        return Ok(());
    }
    step(&format!("adding the Rust target {WASM_TARGET}"));
    let added = Command::new("rustup").args(["target", "add", WASM_TARGET]).current_dir(root()).status();
    if added.is_ok_and(|status| status.success()) && target_installed() {
        return Ok(());
    }
    bail!(
        "the plugins are built for {WASM_TARGET}, and this Rust installation lacks it.\n\
         With rustup: `rustup target add {WASM_TARGET}`. Without: install your distribution's package \
         of the standard library for {WASM_TARGET}."
    )
}

fn target_installed() -> bool {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", WASM_TARGET])
        .current_dir(root())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else { return false };
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some())
}

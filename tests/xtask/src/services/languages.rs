//! Installs tools from the registries of Python and of JavaScript into the build's folder: those that build
//! plugins in these languages, axe-core and schemathesis. Each is pinned to a version, and is installed anew
//! when that changes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::apt::run;
use super::{install, runs};
use crate::build::{root, services_folder, step};

/// The files that `kubewitness plugin new` puts into a plugin's folder.
const TEMPLATES: &str = "host/src/commands/plugin/templates";
/// Finds what prevents people from using the portal's pages. No page loads it. It is pinned because a newer
/// one has other rules.
const AXE: &str = "axe-core@4.14.1";
/// Compares the API's answers with its description. It is pinned because a newer one makes other requests.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

enum PackageRegistry {
    Python,
    JavaScript,
}

struct LanguageTool {
    name: &'static str,
    registry: PackageRegistry,
    /// In the folder of services.
    folder: &'static str,
    /// The program that its tests look for in that folder.
    program: &'static str,
}

const TOOLS: [LanguageTool; 4] = [
    LanguageTool {
        name: "axe-core",
        registry: PackageRegistry::JavaScript,
        folder: "axe",
        program: "node_modules/axe-core/axe.min.js",
    },
    LanguageTool {
        name: "schemathesis",
        registry: PackageRegistry::Python,
        folder: "schemathesis",
        program: "bin/st",
    },
    LanguageTool {
        name: "componentize-py",
        registry: PackageRegistry::Python,
        folder: "languages/venv",
        program: "bin/componentize-py",
    },
    LanguageTool {
        name: "componentize-js",
        registry: PackageRegistry::JavaScript,
        folder: "languages",
        program: "node_modules/.bin/componentize-js",
    },
];

/// Installs what is missing. Prints the reason for each failure, and returns the names of what is still
/// missing.
pub fn ensure() -> Vec<&'static str> {
    let missing = TOOLS.iter().filter(|tool| {
        let ensured = tool.ensure();
        ensured.inspect_err(|why| eprintln!("xtask: {} can't be installed: {why:#}", tool.name)).is_err()
    });
    missing.map(|tool| tool.name).collect()
}

impl LanguageTool {
    fn ensure(&self) -> Result<()> {
        let (folder, wanted) = (services_folder().join(self.folder), self.wanted()?);
        // Written once the installation has succeeded.
        let mark = folder.join(format!(".{}", self.name));
        if folder.join(self.program).exists() && fs::read_to_string(&mark).is_ok_and(|text| text == wanted) {
            return Ok(());
        }
        step(&format!("installing {}", self.name));
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        match self.registry {
            PackageRegistry::Python => self.install_from_python(&folder)?,
            PackageRegistry::JavaScript => self.install_from_npm(&folder)?,
        }
        if !folder.join(self.program).exists() {
            bail!("{} is not in {} afterwards", self.program, folder.display());
        }
        fs::write(&mark, wanted).with_context(|| format!("writing {}", mark.display()))
    }

    /// The package with its version, in the registry's form.
    fn wanted(&self) -> Result<String> {
        let template = |file: &str| {
            let path = root().join(TEMPLATES).join(file);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        match self.name {
            "axe-core" => Ok(AXE.to_owned()),
            "schemathesis" => Ok(SCHEMATHESIS.to_owned()),
            "componentize-py" => template("python/requirements.txt"),
            _ => Ok(template("javascript/package.json")?.replace("{{name}}", "languages")),
        }
    }

    fn install_from_python(&self, folder: &Path) -> Result<()> {
        // Debian has this part of Python in a separate package.
        if !in_folder(folder, "python3")
            .args(["-c", "import ensurepip"])
            .status()
            .is_ok_and(|it| it.success())
        {
            install(&["python3-venv"]);
        }
        run(in_folder(folder, "python3").args(["-m", "venv", "."]))?;
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, self.wanted()?).context("writing requirements.txt")?;
        run(in_folder(folder, folder.join("bin/pip")).args(["install", "--quiet", "-r"]).arg(requirements))
    }

    fn install_from_npm(&self, folder: &Path) -> Result<()> {
        if !runs("npm") {
            install(&["npm"]);
        }
        // npm considers an interrupted installation complete.
        remove(&folder.join("node_modules"))?;
        remove(&folder.join("package-lock.json"))?;
        let mut npm = in_folder(folder, "npm");
        npm.args(["install", "--no-audit", "--no-fund", "--prefix", "."]);
        match self.name {
            "componentize-js" => {
                fs::write(folder.join("package.json"), self.wanted()?).context("writing package.json")?;
            }
            _ => drop(npm.args(["--ignore-scripts", &self.wanted()?])),
        }
        run(&mut npm)
    }
}

fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A command that shows on the terminal why it fails.
fn in_folder(folder: &Path, program: impl Into<PathBuf>) -> Command {
    let mut command = Command::new(program.into());
    command.current_dir(folder).stdout(Stdio::null()).stdin(Stdio::null());
    command
}

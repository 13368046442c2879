//! Installs tools from the registries of Python and of JavaScript, beside the build: those that make plugins of these
//! languages, axe-core and schemathesis. A machine may lack both languages: their tests are skipped then.

use std::path::Path;
use std::process::{Command, Stdio};

use super::runs;
use crate::build::{root, services_folder, step};

/// What `kubewitness plugin new` puts into a plugin's folder.
const TEMPLATES: &str = "host/src/commands/plugin/templates";

/// It looks for what keeps people from using the portal's pages. No page loads it. A newer one knows other rules, so that a new finding would come with it alone.
const AXE_VERSION: &str = "axe-core@4.14.1";

fn ensure_axe() {
    let folder = services_folder().join("axe");
    let script = folder.join("node_modules/axe-core/axe.min.js");
    if !script.is_file() && runs("npm") && std::fs::create_dir_all(&folder).is_ok() {
        step("installing axe-core");
        let mut command = Command::new("npm");
        command.args([
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            ".",
            AXE_VERSION,
        ]);
        runs_well(&mut command, &folder);
    }
}

/// It compares the answers of the API with its description. A newer one makes other requests.
const SCHEMATHESIS_VERSION: &str = "schemathesis==4.32.5";

fn ensure_schemathesis() {
    let folder = services_folder().join("schemathesis");
    if folder.join("bin/st").is_file() || !runs("python3") || std::fs::create_dir_all(&folder).is_err() {
        return;
    }
    step("installing schemathesis");
    if runs_well(Command::new("python3").args(["-m", "venv", "."]), &folder) {
        let mut pip = Command::new(folder.join("bin/pip"));
        runs_well(pip.args(["install", "--quiet", SCHEMATHESIS_VERSION]), &folder);
    }
}

pub fn ensure() {
    ensure_axe();
    ensure_schemathesis();
    let folder = services_folder().join("languages");
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("xtask: making {}: {error}", folder.display());
        return;
    }
    let templates = root().join(TEMPLATES);
    let is_there = folder.join("venv/bin/componentize-py").is_file();
    if !is_there && runs("python3") {
        step("installing componentize-py");
        let pip = folder.join("venv/bin/pip");
        let requirements = templates.join("python/requirements.txt");
        if runs_well(Command::new("python3").args(["-m", "venv", "venv"]), &folder) {
            runs_well(Command::new(pip).args(["install", "--quiet", "-r"]).arg(requirements), &folder);
        }
    }
    let is_there = folder.join("node_modules/.bin/componentize-js").exists();
    if !is_there && runs("npm") {
        step("installing componentize-js");
        let package = std::fs::read_to_string(templates.join("javascript/package.json"));
        let written = package.and_then(|text| {
            std::fs::write(folder.join("package.json"), text.replace("{{name}}", "languages"))
        });
        match written {
            Ok(()) => {
                runs_well(Command::new("npm").args(["install", "--no-audit", "--no-fund"]), &folder);
            }
            Err(error) => eprintln!("xtask: writing package.json: {error}"),
        }
    }
}

/// What it says when it fails, it says on the terminal.
fn runs_well(command: &mut Command, folder: &Path) -> bool {
    command.current_dir(folder).stdout(Stdio::null()).stdin(Stdio::null());
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("xtask: starting {:?}: {error}", command.get_program());
            false
        }
    }
}

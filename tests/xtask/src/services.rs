//! What the tests need from the machine. Installed where that is possible; what can't be had is
//! named, and its tests are then counted as skipped.

use std::process::{Command, Stdio};

use crate::build::step;

struct Tool {
    program: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 3] = [
    Tool { program: "chromium", package: "chromium" },
    Tool { program: "chromedriver", package: "chromium-driver" },
    Tool { program: "kubectl", package: "kubernetes-client" },
];

/// Tries to install what is missing, as root on a Debian machine; the names of what is still missing.
pub fn ensure() -> Vec<&'static str> {
    let missing: Vec<_> = TOOLS.iter().filter(|tool| !runs(tool.program)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    install(&missing.iter().map(|tool| tool.package).collect::<Vec<_>>());
    TOOLS.iter().map(|tool| tool.program).filter(|program| !runs(program)).collect()
}

/// As root on a Debian machine; elsewhere nothing. Each by itself, so that one that this release
/// of Debian lacks keeps none of the others away.
pub fn install(packages: &[&str]) {
    if !is_root() || !runs("apt-get") {
        return;
    }
    step(&format!("installing {}", packages.join(", ")));
    apt(&["update", "--quiet"]);
    for package in packages {
        apt(&["install", "--yes", "--quiet", "--no-install-recommends", package]);
    }
}

/// A failure shows in what is still missing afterwards.
fn apt(args: &[&str]) {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    if !status.is_ok_and(|status| status.success()) {
        eprintln!("xtask: `apt-get {}` failed", args.join(" "));
    }
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

pub fn runs(program: &str) -> bool {
    let found = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&found).any(|folder| folder.join(program).is_file())
}

//! Generates the reference in `docs`. Each page comes from a test in the crate that has its content. The test
//! compares the page with the committed one, so `cargo xtask ci` checks it as well.

use anyhow::{Result, bail};

use crate::build::{FEATURES_OF_TESTS, cargo, check, step};

pub fn reference(args: &[String]) -> Result<()> {
    let is_check = match args {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => bail!("`docs` takes --check or nothing"),
    };
    step(if is_check { "comparing docs/reference with the code" } else { "writing docs/reference" });
    let mut command = cargo();
    command.args(["test", "--locked", "--quiet"]);
    command.args(
        [
            "kubewitness-core",
            "kubewitness-portal",
            "kubewitness-capability",
            "kubewitness-causes",
            "kubewitness-plugin-audit",
            "kubewitness-plugin-notification",
            "kubewitness-plugin-persistence",
            "kubewitness",
        ]
        .map(|name| format!("--package={name}")),
    );
    command.args(FEATURES_OF_TESTS).args(["--", "the_reference"]);
    if !is_check {
        command.env("KUBEWITNESS_WRITE_DOCS", "1");
    }
    check(&mut command)
}

//! Carries the built plugins in the binary, where `KUBEWITNESS_EMBED` names their folder. Without
//! it the binary is complete as well, and finds plugins in folders alone.

use std::path::{Path, PathBuf};
use std::{env, fs};

const SHIPPED: [&str; 3] = ["persistence", "notification", "audit"];

fn main() {
    println!("cargo::rerun-if-env-changed=KUBEWITNESS_EMBED");
    let folder = env::var_os("KUBEWITNESS_EMBED").map(PathBuf::from);
    let mut entries = String::new();
    for name in SHIPPED {
        let Some(file) = folder.as_ref().map(|folder| folder.join(format!("{name}.wasm"))) else { continue };
        println!("cargo::rerun-if-changed={}", file.display());
        assert!(file.is_file(), "KUBEWITNESS_EMBED has no {}: run `cargo xtask plugins`", file.display());
        entries.push_str(&format!("    ({name:?}, include_bytes!({:?})),\n", file.display().to_string()));
    }
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
    let text = format!("pub const EMBEDDED: &[(&str, &[u8])] = &[\n{entries}];\n");
    fs::write(Path::new(&out).join("embedded.rs"), text).expect("OUT_DIR can be written");
}

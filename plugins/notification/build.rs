//! Links the component without symbols, and embeds the schema of its configuration without white space. Both
//! make it smaller.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32") {
        // If the profile is overridden for one package, cargo does not strip what that package links. So this
        // tells the linker.
        println!("cargo::rustc-cdylib-link-arg=--strip-all");
    }
    // The file has lines and indentation for readers; the host needs none. No text in the JSON spans lines.
    println!("cargo::rerun-if-changed=src/config/schema.json");
    let schema = std::fs::read_to_string("src/config/schema.json").expect("the schema is beside its types");
    // The first blank of a line separates a name from its value.
    let short: String = schema.lines().map(|line| line.trim_start().replacen("\": ", "\":", 1)).collect();
    let folder = std::env::var("OUT_DIR").expect("Cargo names a folder");
    std::fs::write(Path::new(&folder).join("schema.json"), short).expect("the folder is Cargo's");
}

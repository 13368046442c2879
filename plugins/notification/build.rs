//! Links the component without symbols, and embeds the schema of its configuration without blanks: it is smaller.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32") {
        // A profile that is overridden for one package does not strip what it links, so the linker is told.
        println!("cargo::rustc-cdylib-link-arg=--strip-all");
    }
    // Readers of the code see the schema with its lines; the host needs none. No text of JSON goes over a line's end.
    println!("cargo::rerun-if-changed=src/config/schema.json");
    let schema = std::fs::read_to_string("src/config/schema.json").expect("the schema is beside its types");
    // The first of a line stands between a name and its value.
    let short: String = schema.lines().map(|line| line.trim_start().replacen("\": ", "\":", 1)).collect();
    let folder = std::env::var("OUT_DIR").expect("Cargo names a folder");
    std::fs::write(Path::new(&folder).join("schema.json"), short).expect("the folder is Cargo's");
}

//! No code, only features of dependencies.
//!
//! Cargo compiles a dependency once for each set of features. A build of one crate asks for fewer features
//! than a build of the workspace, so each choice of crates would compile kube, wasmtime and tokio again. A
//! build of some crates includes this package, too: then every build asks for the same features. `Cargo.toml`
//! has the list.

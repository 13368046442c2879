//! Figures: what benchmarks measure, where the repository keeps it, and where pages show it.
//!
//! A figure that somebody types is believed for ever. So nobody types one. A benchmark records what it measures, under
//! a name of [`catalog`]. `cargo xtask figures` takes the records into `tests/figures/figures.json`, with the commit and
//! the machine, and writes them into the pages. Tests compare each page with that file, and refuse what looks like a
//! figure and has no name. A figure is stale when the code that it measures has changed since; a release has none.
//!
//! | module | what it does |
//! |---|---|
//! | [`catalog`] | names each figure: what measures it, the code that it depends on, how far it may move |
//! | [`store`] | reads and writes `figures.json`, and reads what benchmarks recorded |
//! | [`machine`] | says where and from which commit figures come |
//! | [`pages`] | writes figures between marks of pages, and compares them |
//! | [`prose`] | finds what looks like a figure outside of marks |
//! | [`compare`] | compares a new run with what the repository keeps |
//! | [`stale`] | asks git whether the code of a figure has changed |
//! | [`reference`] | the generated page with all of them |

pub mod catalog;
pub mod compare;
pub mod machine;
pub mod pages;
pub mod prose;
pub mod reference;
pub mod stale;
pub mod store;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The file to which benchmarks append what they measure, a line for each figure. Without it they only print.
pub const RECORDS: &str = "KUBEWITNESS_FIGURES";

/// Keeps a measured value if the run was asked to.
pub fn record(name: &str, value: f64) -> Result<()> {
    let Some(path) = std::env::var_os(RECORDS).map(PathBuf::from) else { return Ok(()) };
    catalog::figure_of(name)
        .with_context(|| format!("no figure is called `{name}`: add it to the catalog"))?;
    append(&path, &serde_json::to_string(&store::RecordLine::Figure { name: name.into(), value })?)
}

fn append(path: &Path, line: &str) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(path);
    let file = file.as_mut().map_err(|error| anyhow::anyhow!("opening {}: {error}", path.display()))?;
    // One write, since programs may record at the same time.
    file.write_all(format!("{line}\n").as_bytes()).with_context(|| format!("writing {}", path.display()))
}

/// The folder that holds `Cargo.toml` of the workspace.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

//! How many instructions the hottest paths execute for each state. Unlike times, counts are the same on a busy machine,
//! so CI compares them with those in the repository.
//!
//! This program starts itself under valgrind, twice for each path: once with few rounds and once with twice as many.
//! The difference is what the rounds cost, without the start of the process and what the path prepares. A path has one
//! thread where it can. Where the journal has threads of its own, they wait for each other, and counts move by a few in
//! a thousand.
//!
//! Not counted: sockets, since valgrind sees system calls from outside. Libraries choose code by what the processor can
//! do, so counts of two machines are the same only if both can do the same; the repository notes the processor.

#[path = "../../fixtures/granted.rs"]
mod granted;
mod paths;
#[path = "../../fixtures/subscribed.rs"]
mod subscribed;
#[allow(dead_code, reason = "each benchmark uses its part")]
#[path = "../../fixtures/support.rs"]
mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use kubewitness_bench::wanted;
use kubewitness_figures::record;

use paths::{PATHS, PreparedPaths};

/// Names the path to the process that is counted, and its rounds.
const COUNTED: &str = "KUBEWITNESS_COUNTED";
/// Everything that the paths read is made before they are counted, and lies here.
const FOLDER: &str = "KUBEWITNESS_COUNTED_FOLDER";
const COUNTER: &str = "valgrind";
/// The words that cachegrind prints before the number of instructions. The number has commas.
const TOTAL: &str = "I refs:";

fn main() -> Result<()> {
    if !wanted("instructions") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    if let Ok(counted) = std::env::var(COUNTED) {
        let folder = std::env::var(FOLDER).context("a counted process needs its folder")?;
        return run_counted(&counted, Path::new(&folder));
    }
    println!("instructions: of each state, under valgrind");
    if Command::new(COUNTER).arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("  SKIPPED: valgrind is not on this machine");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    // Compiles the guests. Counted, that takes minutes; natively, it makes code for instructions that valgrind's processor
    // does not have.
    for guest in ["guest", "audit"] {
        under_valgrind(&["--tool=none"], guest, 1, folder.path())?;
    }
    for path in PATHS {
        let count = |rounds| count(path.name, rounds, folder.path());
        let (few, many) = std::thread::scope(|scope| {
            let few = scope.spawn(|| count(path.rounds));
            let many = count(path.rounds * 2);
            (few.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), many)
        });
        let (few, many) = (few?, many?);
        let each = (many.saturating_sub(few)) as f64 / (path.rounds * path.states) as f64;
        println!("  {:<10} {each:>10.0}", path.name);
        record(&format!("instructions.{}", path.name), each.round())?;
    }
    Ok(())
}

/// This process is the one that is counted.
fn run_counted(counted: &str, folder: &Path) -> Result<()> {
    let (name, rounds) = counted.split_once(':').context("PATH:ROUNDS")?;
    let path = PATHS.iter().find(|path| path.name == name).with_context(|| format!("no path `{name}`"))?;
    // One thread: what another one does meanwhile would be counted, and not always the same.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
    runtime.block_on((path.run)(PreparedPaths::of(folder), rounds.parse()?))
}

/// The instructions of a whole process.
fn count(name: &str, rounds: usize, folder: &Path) -> Result<u64> {
    let tool = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--fair-sched=yes"];
    let printed = under_valgrind(&tool, name, rounds, folder)?;
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let total =
        printed.lines().find_map(|line| Some(squeezed(line).split_once(TOTAL)?.1.replace([',', ' '], "")));
    let total = total.with_context(|| format!("valgrind printed no total: {printed}"))?;
    total.parse().with_context(|| format!("valgrind's total is `{total}`"))
}

/// Returns the text that valgrind prints.
fn under_valgrind(tool: &[&str], name: &str, rounds: usize, folder: &Path) -> Result<String> {
    let output = Command::new(COUNTER)
        .args(tool)
        .arg(std::env::current_exe()?)
        .env(COUNTED, format!("{name}:{rounds}"))
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .output()
        .context("starting valgrind")?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("`{name}` under valgrind ended with {}: {printed}", output.status);
    }
    Ok(printed)
}

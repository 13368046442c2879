//! The command line of figures: `cargo xtask figures` calls it before and after benchmarks.
//!
//! Benchmarks are separate programs, so they can't hand their results to each other. They append them to a
//! file instead. `begin` writes the commit and the machine into it, and `take` reads it when all benchmarks
//! have ended. The decisions are in the library; this file only reads arguments and prints.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kubewitness_figures::catalog::{BENCHMARKS, MeasureWay};
use kubewitness_figures::store::{FigureStore, RecordLine, RunRecords, recorded};
use kubewitness_figures::{compare, machine, pages, prose, reference, stale};

const HELP: &str = "\
figures COMMAND: `cargo xtask figures` is the way to call it

  plan [NAME...]   how each benchmark, or each of these, is started
  begin RECORDS    notes the commit and the machine at the beginning of a run
  take RECORDS     keeps what a run measured, writes the pages, prints what moved
  gate RECORDS     fails if a run moved further than the gate allows
  write            writes what the repository keeps into the pages
  check            fails if a page shows something else
  stale            fails if code has changed since its figures were measured
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("figures: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> Result<ExitCode> {
    match args {
        ["plan", names @ ..] => plan(names)?,
        ["begin", records] => begin(Path::new(records))?,
        ["take", records] => take(&recorded(Path::new(records))?)?,
        ["gate", records] => return gate(&recorded(Path::new(records))?),
        ["write"] => write(&FigureStore::read()?)?,
        ["check"] => return check(&FigureStore::read()?),
        ["stale"] => return list_stale(&FigureStore::read()?),
        _ => bail!("{HELP}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each: the way, and what it is started with.
fn plan(names: &[&str]) -> Result<()> {
    if let Some(name) = names.iter().find(|name| BENCHMARKS.iter().all(|one| one.name != **name)) {
        let known: Vec<_> = BENCHMARKS.iter().map(|one| one.name).collect();
        bail!("no benchmark of figures is called `{name}`; these are: {}", known.join(", "));
    }
    for one in BENCHMARKS.iter().filter(|one| names.is_empty() || names.contains(&one.name)) {
        match one.way {
            MeasureWay::Bench => println!("bench {}", one.name),
            MeasureWay::Tests(filter) => println!("tests {filter}"),
            MeasureWay::FirstBuild => println!("first-build {}", one.name),
        }
    }
    Ok(())
}

fn begin(records: &Path) -> Result<()> {
    let run = serde_json::to_string(&RecordLine::Run(Box::new(machine::MeasuredRun::begin()?)))?;
    std::fs::write(records, run + "\n").with_context(|| format!("writing {}", records.display()))
}

fn take(recorded: &RunRecords) -> Result<()> {
    if recorded.figures.is_empty() {
        bail!("nothing was measured: what the benchmarks printed above says why");
    }
    let mut store = FigureStore::read()?;
    print_moves(&store, recorded);
    store.take(recorded);
    store.write()?;
    write(&store)?;
    if recorded.run.is_dirty {
        println!(
            "the tree had uncommitted changes, so a release refuses these figures: commit, and measure again"
        );
    }
    Ok(())
}

fn print_moves(store: &FigureStore, recorded: &RunRecords) {
    println!("{:<28} {:>12} {:>12}", "figure", "old", "new");
    for moved in compare::moves(store, recorded) {
        println!("{moved}");
    }
}

fn gate(recorded: &RunRecords) -> Result<ExitCode> {
    let store = FigureStore::read()?;
    print_moves(&store, recorded);
    let violations = compare::violations(compare::moves(&store, recorded));
    if violations.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for violation in &violations {
        eprintln!("figures: {violation}");
    }
    eprintln!(
        "figures: if the change is worth it, `cargo xtask figures pipeline-gate instructions` keeps the new values, \
         and the commit says why"
    );
    Ok(ExitCode::FAILURE)
}

fn write(store: &FigureStore) -> Result<()> {
    for path in pages::write(store)? {
        println!("written: {}", path.display());
    }
    reference::write(store)
}

fn check(store: &FigureStore) -> Result<ExitCode> {
    let mut faults = pages::differences(store)?;
    faults.extend(reference::check(store).err().map(|error| error.to_string()));
    faults.extend(
        prose::suspects_of_pages()?.into_iter().map(|one| format!("{one}: nobody measures this figure")),
    );
    faults.iter().for_each(|fault| eprintln!("figures: {fault}"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list_stale(store: &FigureStore) -> Result<ExitCode> {
    let all = stale::stale(store, &stale::GitClone::open()?)?;
    for stale::StaleBenchmark { benchmark, why } in &all {
        println!("{benchmark:<18} {why}");
    }
    if all.is_empty() {
        println!("no figure is older than the code that it measures");
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = all.iter().map(|one| one.benchmark).collect();
    eprintln!("figures: measure them anew, on a quiet machine: `cargo xtask figures {}`", names.join(" "));
    Ok(ExitCode::FAILURE)
}

//! Builds `tests/fuzz/libfuzzer` with coverage and runs its fuzz targets.
//!
//! Coverage needs no nightly toolchain, so nothing is ever skipped. `cargo-fuzz` would do the same after a
//! minute of compiling itself. It reads the same folder and adds AddressSanitizer: `cargo +nightly fuzz run
//! --fuzz-dir tests/fuzz/libfuzzer projection`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::build::{self, check, step};

/// The time without `--for`. It suffices to run the stored inputs and to search near them.
const DEFAULT_TIME: Duration = Duration::from_secs(60);

/// Coverage of edges and of compared values guides the search.
const COVERAGE_FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg=fuzzing";

pub fn command(args: &[String]) -> Result<()> {
    let (known_targets, mut targets, mut time) = (known_targets()?, Vec::new(), DEFAULT_TIME);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--for" => time = seconds(args.next().context("--for needs a time, such as 60s")?)?,
            target if known_targets.iter().any(|known| known == target) => targets.push(target.to_owned()),
            target => bail!("there is no target `{target}`; there are {}", known_targets.join(", ")),
        }
    }
    run(if targets.is_empty() { &known_targets } else { &targets }, time)
}

fn seconds(text: &str) -> Result<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let scale = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => bail!("`{text}` is no time: write 60s, 10m or 8h"),
    };
    Ok(Duration::from_secs(digits.parse::<u64>().with_context(|| format!("`{text}` is no time"))? * scale))
}

/// Checks that the targets still compile. The tests run the same properties over the stored inputs, and over
/// hundreds of thousands of changed ones; a build with coverage would take minutes for a search of seconds.
pub fn compiles() -> Result<()> {
    step("the fuzz targets");
    let mut cargo = build::cargo();
    cargo.args(["check", "--locked", "--quiet", "--manifest-path", "tests/fuzz/libfuzzer/Cargo.toml"]);
    check(cargo.arg("--target-dir").arg(build::target().join("fuzz")))
}

fn folder() -> PathBuf {
    build::root().join("tests").join("fuzz")
}

/// The targets, each in a file of its own.
fn known_targets() -> Result<Vec<String>> {
    let folder = folder().join("libfuzzer").join("targets");
    let files = std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<String> = files
        .filter_map(|file| Some(file.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn run(targets: &[String], time: Duration) -> Result<()> {
    let (folder, built) = (folder(), build::target().join("fuzz"));
    let triple = triple()?;
    step("building the fuzz targets");
    let mut cargo = build::cargo();
    // With `--target`, build scripts and macros are compiled without these flags.
    cargo.args(["build", "--locked", "--release", "--target", &triple]);
    cargo.arg("--manifest-path").arg(folder.join("libfuzzer").join("Cargo.toml"));
    cargo
        .arg("--target-dir")
        .arg(&built)
        .env("RUSTFLAGS", COVERAGE_FLAGS)
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    check(&mut cargo)?;
    step(&format!("fuzzing {} for {} s", targets.join(" and "), time.as_secs()));
    let programs = built.join(&triple).join("release");
    let fuzz = |target: &String| fuzz(&folder, &built, &programs.join(target), target, time);
    std::thread::scope(|scope| {
        let running: Vec<_> = targets.iter().map(|target| scope.spawn(|| fuzz(target))).collect();
        running
            .into_iter()
            .try_for_each(|running| running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// New inputs go into the first folder; the stored ones are only read.
fn fuzz(folder: &Path, built: &Path, program: &Path, target: &str, time: Duration) -> Result<()> {
    let (found, failed) = (built.join("corpus").join(target), built.join("failed").join(target));
    for folder in [&found, &failed] {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let status = Command::new(program)
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-dict={}", folder.join("tokens.dict").display()))
        .arg(format!("-artifact_prefix={}/", failed.display()))
        // An input that hangs is a failure. The slowest stored input takes milliseconds.
        .args(["-timeout=10", "-print_final_stats=1", "-print_funcs=0", "-verbosity=0"])
        .args([&found, &folder.join("corpus").join(target)])
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    if !status.success() {
        bail!(
            "`{target}` fails for an input that was written to {}; the output above says why.\n\
             After the repair, keep the input: copy it to {} under a name that says what it is.",
            failed.display(),
            folder.join("corpus").join(target).display()
        );
    }
    Ok(())
}

/// This machine's target triple, in the form of the compiler.
fn triple() -> Result<String> {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--verbose", "--version"])
        .current_dir(build::root())
        .output()
        .context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc --verbose --version` names no host")?.to_owned())
}

//! The tables of `cargo xtask test --timings`.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;

use super::outcome::JobOutcome;
use crate::build::{BuildTimes, print_text};

/// Rows in the tables of crates and of tests.
const CRATES: usize = 20;
const TESTS: usize = 20;
/// How many waits of a test are listed, and the shortest of them in seconds.
const WAITS: usize = 3;
const SHORTEST_WAIT: f64 = 0.5;
const LONGEST_TEXT: usize = 60;

pub fn print(outcomes: &[JobOutcome], builds: &BuildTimes, wall: Duration) -> Result<()> {
    let mut text = String::new();
    add_builds(&mut text, builds)?;
    add_programs(&mut text, outcomes, wall.as_secs_f64())?;
    add_longest(&mut text, outcomes)?;
    print_text(&text)
}

fn add_builds(text: &mut String, times: &BuildTimes) -> std::fmt::Result {
    writeln!(text, "\nBUILD                       WALL s   PROCESSOR s")?;
    for build in &times.builds {
        writeln!(text, "{:26} {:7.0} {:13.0}", build.name, build.wall, build.processor)?;
    }
    for build in &times.builds {
        let mut units: Vec<_> = build.units.iter().collect();
        units.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        if !units.is_empty() {
            writeln!(text, "\nlongest crates of the build: {}", build.name)?;
            for unit in units.iter().take(CRATES) {
                writeln!(text, "{:7.1} s  {}", unit.seconds, unit.name)?;
            }
        }
    }
    Ok(())
}

fn add_programs(text: &mut String, outcomes: &[JobOutcome], wall: f64) -> std::fmt::Result {
    let mut programs: Vec<(&str, usize, f64, f64)> = Vec::new();
    for outcome in outcomes {
        let row = (&*outcome.program, outcome.tests.len(), outcome.wall, outcome.processor);
        match programs.iter_mut().find(|(name, ..)| *name == row.0) {
            Some(sum) => *sum = (sum.0, sum.1 + row.1, sum.2 + row.2, sum.3 + row.3),
            None => programs.push(row),
        }
    }
    programs.sort_by(|one, other| other.3.total_cmp(&one.3));
    writeln!(text, "\nPROGRAM                                            TESTS   WALL s   PROCESSOR s")?;
    for (name, tests, wall, processor) in &programs {
        writeln!(text, "{name:50} {tests:5} {wall:8.0} {processor:13.0}")?;
    }
    let processor: f64 = programs.iter().map(|row| row.3).sum();
    writeln!(
        text,
        "in all: {wall:.0} s; jobs computed for {processor:.0} s, {:.2} processors on average",
        processor / wall.max(1.0)
    )?;
    Ok(())
}

fn add_longest(text: &mut String, outcomes: &[JobOutcome]) -> std::fmt::Result {
    let mut longest: Vec<_> = outcomes.iter().filter(|outcome| outcome.tests.len() == 1).collect();
    longest.sort_by(|one, other| other.wall.total_cmp(&one.wall));
    writeln!(
        text,
        "\nLONGEST TESTS AND WHAT THEY WAIT FOR                                    WALL s   PROCESSOR s"
    )?;
    for outcome in longest.into_iter().take(TESTS) {
        writeln!(text, "{:70} {:8.1} {:13.1}", outcome.name, outcome.wall, outcome.processor)?;
        let waits = outcome.waits.iter().filter(|wait| wait.seconds >= SHORTEST_WAIT);
        for wait in waits.take(WAITS) {
            let what: String = wait.what.chars().take(LONGEST_TEXT).collect();
            writeln!(text, "    {:6.1} s for {what}", wait.seconds)?;
        }
    }
    Ok(())
}

//! Measures how long cargo's builds take, in total and by crate.

use std::process::Command;

use anyhow::{Context, Result};

use super::process::MeasuredChild;
use super::{succeeded, target};

#[derive(Default)]
pub struct BuildTimes {
    /// Whether cargo reports the times of crates.
    by_crate: bool,
    pub builds: Vec<BuildTime>,
}

/// One call of cargo.
pub struct BuildTime {
    pub name: String,
    pub wall: f64,
    pub processor: f64,
    pub units: Vec<UnitTime>,
}

/// One call of the compiler, or of a build script.
#[derive(Debug, PartialEq)]
pub struct UnitTime {
    /// The crate, and its target if that is not the library.
    pub name: String,
    pub seconds: f64,
}

impl BuildTimes {
    pub fn new(by_crate: bool) -> Self {
        Self { by_crate, builds: Vec::new() }
    }

    /// Measures a build that runs beside these.
    pub fn another(&self) -> Self {
        Self::new(self.by_crate)
    }

    pub fn append(&mut self, mut other: Self) {
        self.builds.append(&mut other.builds);
    }

    /// Runs a cargo build to its end.
    pub fn measure(&mut self, name: &str, command: &mut Command) -> Result<()> {
        if self.by_crate {
            command.arg("--timings");
        }
        let end = MeasuredChild::spawn(command)?.wait()?;
        succeeded(command, end.status)?;
        let units = if self.by_crate { units_of_report()? } else { Vec::new() };
        self.builds.push(BuildTime {
            name: name.to_owned(),
            wall: end.wall,
            processor: end.processor,
            units,
        });
        Ok(())
    }
}

/// Reads the data in cargo's page of timings. It contains only what was compiled, and not what was fresh.
fn units_of_report() -> Result<Vec<UnitTime>> {
    let path = target().join("cargo-timings").join("cargo-timing.html");
    let page = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(units(&page))
}

/// Reads the fields that are needed, each of which is a line. A JSON parser would have to be compiled before
/// anything else can begin.
fn units(page: &str) -> Vec<UnitTime> {
    let (_, data) = page.split_once("const UNIT_DATA = [").unwrap_or_default();
    let (data, _) = data.split_once("];").unwrap_or_default();
    data.split("\"i\":").filter_map(unit).collect()
}

fn unit(entry: &str) -> Option<UnitTime> {
    let field = |name: &str| {
        let (_, rest) = entry.split_once(&format!("\"{name}\": "))?;
        Some(rest.lines().next()?.trim_end_matches(',').trim_matches('"'))
    };
    let target = field("target")?.replace(['\\', '"'], "");
    Some(UnitTime { name: format!("{}{target}", field("name")?), seconds: field("duration")?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_crates_are_read_from_the_page_that_cargo_writes() {
        let page = "<script>\nconst UNIT_DATA = [\n  {\n    \"i\": 4,\n    \"name\": \"core\",\n    \"mode\": \"todo\",\n    \"target\": \" it \\\"test\\\"\",\n    \"duration\": 2.5,\n    \"sections\": null\n  }\n];\n";
        assert_eq!(units(page), [UnitTime { name: "core it test".into(), seconds: 2.5 }]);
        assert_eq!(units("another page"), []);
    }
}

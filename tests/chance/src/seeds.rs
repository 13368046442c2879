//! Which seeds a test runs with, and how a run is repeated.

use std::sync::OnceLock;
use std::time::SystemTime;

/// The seed of this run. `cargo xtask test` chooses it for all programs of tests.
const SEED: &str = "KUBEWITNESS_SEED";
/// Runs exactly this many seeds, from `KUBEWITNESS_SEED` or 1 on.
const COUNT: &str = "KUBEWITNESS_SEEDS";
const KILLS: &str = "KUBEWITNESS_KILLS";
const STATEMENTS: &str = "KUBEWITNESS_STATEMENTS";
/// Set for tests that were requested by name, and by `cargo xtask test --complete`.
const ALL_CASES: &str = "KUBEWITNESS_ALL_CASES";

const KNOWN_FAILURES: &str = include_str!("../known_failures.txt");

/// # Panics
///
/// A variable that is set is a number.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, and not `{text}`")))
}

/// The seed of this run: another one each time, unless `KUBEWITNESS_SEED` names it.
pub fn seed() -> u64 {
    static RUN: OnceLock<u64> = OnceLock::new();
    *RUN.get_or_init(|| {
        number(SEED).unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let seed = now.map_or(1, |since| since.as_secs());
            eprintln!("{}", repeat_command(seed));
            seed
        })
    })
}

/// How a run with this seed is repeated.
pub fn repeat_command(seed: u64) -> String {
    format!("seed {seed} (repeat with {SEED}={seed})")
}

/// How often a test kills or cuts something: as often as it says itself, or as `KUBEWITNESS_KILLS` says.
pub fn kills(by_default: u64) -> u64 {
    number(KILLS).unwrap_or(by_default)
}

/// How many statements a test makes: as many as it says itself, or as `KUBEWITNESS_STATEMENTS` says.
pub fn statements(by_default: u64) -> u64 {
    number(STATEMENTS).unwrap_or(by_default)
}

/// Half of the cases of a test, if all of them take too long for each run. The next seed has the other half, and a
/// test that was requested by name has all.
pub fn half<T>(cases: impl IntoIterator<Item = T>) -> Vec<T> {
    match std::env::var_os(ALL_CASES) {
        Some(_) => cases.into_iter().collect(),
        None => every_second(cases, seed()),
    }
}

fn every_second<T>(cases: impl IntoIterator<Item = T>, seed: u64) -> Vec<T> {
    cases.into_iter().skip(usize::from(seed % 2 == 1)).step_by(2).collect()
}

/// The seeds of a test that runs once for each of them.
#[derive(Clone, Copy, Debug)]
pub struct SeedPlan {
    /// Its name in `known_failures.txt`, by which `cargo test` finds it as well.
    pub test: &'static str,
    /// From 1 on, the same in each run: what a test expects to happen at least once happens with these.
    pub fixed: u64,
    /// From the seed of this run on.
    pub fresh: u64,
}

impl SeedPlan {
    /// `known_failures.txt` first, then the fixed ones, then the fresh ones. With `KUBEWITNESS_SEEDS` that many, from
    /// `KUBEWITNESS_SEED` or 1 on, and no others.
    pub fn list(self) -> Vec<u64> {
        self.chosen(number(COUNT), number(SEED).unwrap_or(1), seed)
    }

    fn chosen(self, count: Option<u64>, first: u64, fresh: impl FnOnce() -> u64) -> Vec<u64> {
        match count {
            Some(count) => (first..first.saturating_add(count)).collect(),
            None => {
                let start = if self.fresh > 0 { fresh() } else { 0 };
                let fresh = start..start.saturating_add(self.fresh);
                known_failures(self.test).chain(1..=self.fixed).chain(fresh).collect()
            }
        }
    }

    /// Whether all fixed seeds run: only then can a test expect that something happens at least once.
    pub fn include_fixed(self) -> bool {
        number(COUNT).is_none_or(|count| number(SEED).is_none() && count >= self.fixed)
    }
}

fn known_failures(test: &str) -> impl Iterator<Item = u64> {
    let lines = KNOWN_FAILURES.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(move |line| {
        let (name, seed) = line.split_once(' ')?;
        (name == test).then(|| seed.parse().unwrap_or_else(|_| panic!("`{line}` ends with no seed")))
    })
}

/// Says how a seed is repeated if the test panics while this value exists.
#[derive(Debug)]
pub struct ReplayHint {
    pub package: &'static str,
    pub test: &'static str,
    pub seed: u64,
}

impl Drop for ReplayHint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { package, test, seed } = self;
            eprintln!("seed {seed} (repeat with {SEED}={seed} {COUNT}=1 cargo test -p {package} {test})");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: SeedPlan = SeedPlan { test: "row_09_a_new_history", fixed: 2, fresh: 3 };

    #[test]
    fn known_failures_come_first_then_fixed_seeds_then_those_of_this_run() {
        assert_eq!(ROW.chosen(None, 1, || 90), [214, 1, 2, 90, 91, 92]);
        let other = SeedPlan { test: "another", fresh: 0, ..ROW };
        assert_eq!(other.chosen(None, 1, || unreachable!("it asks for no fresh seed")), [1, 2]);
    }

    #[test]
    fn a_number_of_seeds_runs_these_from_the_first_one_and_no_others() {
        assert_eq!(ROW.chosen(Some(1), 92, || 90), [92]);
        assert_eq!(ROW.chosen(Some(3), 1, || 90), [1, 2, 3]);
    }

    #[test]
    fn an_even_and_an_odd_seed_have_all_cases_of_a_test() {
        assert_eq!(every_second(["a", "b", "c"], 4), ["a", "c"]);
        assert_eq!(every_second(["a", "b", "c"], 5), ["b"]);
    }

    #[test]
    fn each_known_failure_is_a_test_and_a_seed() {
        for line in KNOWN_FAILURES.lines().filter(|line| !line.starts_with('#')) {
            let test = line.split_whitespace().next().expect("a test");
            assert_eq!(
                known_failures(test).filter(|seed| line.ends_with(&seed.to_string())).count(),
                1,
                "{line}"
            );
        }
    }
}

//! Each figure that the repository keeps: what it says, what measures it, and the code that it depends on.

/// Something that measures figures.
#[derive(Debug, PartialEq)]
pub struct Benchmark {
    /// The name that `cargo xtask figures` takes.
    pub name: &'static str,
    pub way: MeasureWay,
    /// The command that a reader types to see the figures.
    pub command: &'static str,
    /// Paths as git takes them. A commit that touches one makes the figures stale. Without paths they never are: CI
    /// compares them with each commit.
    pub code: &'static [&'static str],
    pub figures: &'static [Figure],
}

/// How a benchmark is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureWay {
    /// A benchmark of `tests/bench`, by its name.
    Bench,
    /// End-to-end tests whose names contain this.
    Tests(&'static str),
    /// The first command of the README, in an empty target folder.
    FirstBuild,
}

#[derive(Debug, PartialEq)]
pub struct Figure {
    pub name: &'static str,
    pub what: &'static str,
    pub unit: FigureUnit,
    pub guard: FigureGuard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureUnit {
    Times,
    StatesPerSecond,
    Milliseconds,
    Seconds,
    Minutes,
    Bytes,
    Megabytes,
    Mebibytes,
    Instructions,
}

/// How far a figure may move before the gate fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureGuard {
    /// The gate does not measure it.
    None,
    /// It may not fall below this share of what the repository keeps.
    Floor(f64),
    /// It may not move by more than this share, up or down.
    Within(f64),
}

const fn figure(name: &'static str, what: &'static str, unit: FigureUnit) -> Figure {
    Figure { name, what, unit, guard: FigureGuard::None }
}

const fn counted(name: &'static str, what: &'static str) -> Figure {
    Figure { name, what, unit: FigureUnit::Instructions, guard: FigureGuard::Within(TOLERANCE) }
}

/// The floor of the ratio with client-go: both programs run by turns on the same machine, and yet it moves by
/// a tenth.
const FLOOR: f64 = 0.75;
/// The tolerance of instruction counts. The same build counts the same, but for threads that wait for each
/// other.
const TOLERANCE: f64 = 0.05;

/// The controller without its portal and its command line, and the plugin that writes states.
const STATES: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    ".cargo",
    "wit",
    "plugins/sdk",
    "plugins/persistence",
    "host",
    ":(exclude)host/portal",
    ":(exclude)host/src/cli",
    ":(exclude)host/src/commands",
    ":(exclude,glob)host/**/tests/**",
    ":(exclude,glob)host/**/tests.rs",
    "tests/bench/src",
    "tests/bench/benches/whole/pipeline.rs",
    "tests/bench/benches/fixtures",
    "tests/bench/peers",
    "deploy/examples",
];
const WATCHED: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    ".cargo",
    "host/core",
    "host/watch",
    "host/journal",
    "host/dispatch",
    ":(exclude,glob)host/**/tests/**",
    ":(exclude,glob)host/**/tests.rs",
    "tests/bench/src",
    "tests/bench/benches/parts/latency.rs",
];
const RESTARTED: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    ".cargo",
    "host/core",
    "host/watch",
    "host/journal",
    "host/src",
    ":(exclude)host/src/cli",
    ":(exclude)host/src/commands",
    ":(exclude,glob)host/**/tests/**",
    ":(exclude,glob)host/**/tests.rs",
    "tests/bench/src",
    "tests/bench/benches/whole/restart.rs",
];
const HELD: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    ".cargo",
    "wit",
    "plugins/sdk",
    "plugins/persistence",
    "plugins/audit",
    "host",
    ":(exclude)host/src/cli",
    ":(exclude)host/src/commands",
    ":(exclude,glob)host/**/tests/**",
    ":(exclude,glob)host/**/tests.rs",
    "tests/bench/benches/whole/memory",
];
const AUTHORS: &[&str] =
    &["wit", "plugins/sdk", "host/src/commands/plugin", "tests/xtask/src/services/languages.rs"];
const BUILT: &[&str] = &["Cargo.lock", "Cargo.toml", "tests/xtask/src/build"];

pub const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "pipeline-sqlite",
        way: MeasureWay::Bench,
        command: "cargo xtask bench pipeline-sqlite",
        code: STATES,
        figures: PIPELINE,
    },
    Benchmark {
        name: "pipeline-servers",
        way: MeasureWay::Bench,
        command: "cargo xtask bench pipeline-servers",
        code: STATES,
        figures: SERVERS,
    },
    Benchmark {
        name: "pipeline-gate",
        way: MeasureWay::Bench,
        command: "cargo xtask bench pipeline-gate",
        code: STATES,
        figures: &[Figure {
            name: "pipeline.gate.ratio",
            what: "the ratio with client-go on the small load of the gate, with dependencies as tests have them",
            unit: FigureUnit::Times,
            guard: FigureGuard::Floor(FLOOR),
        }],
    },
    Benchmark {
        name: "latency",
        way: MeasureWay::Bench,
        command: "cargo xtask bench latency",
        code: WATCHED,
        figures: &[
            figure(
                "latency.p50",
                "from a change to the plugin's call, idle system, median",
                FigureUnit::Milliseconds,
            ),
            figure(
                "latency.p99",
                "from a change to the plugin's call, idle system, p99",
                FigureUnit::Milliseconds,
            ),
        ],
    },
    Benchmark {
        name: "restart",
        way: MeasureWay::Bench,
        command: "cargo xtask bench restart",
        code: RESTARTED,
        figures: &[figure(
            "restart.warm",
            "from the start of the process to its watch, 100,000 objects in the journal, no list, median",
            FigureUnit::Milliseconds,
        )],
    },
    Benchmark {
        name: "memory",
        way: MeasureWay::Bench,
        command: "cargo xtask bench memory",
        code: HELD,
        figures: &[
            figure("memory.again", "memory for each cached Job after a restart", FigureUnit::Bytes),
            figure("memory.first", "memory for each cached Job after the first start", FigureUnit::Bytes),
        ],
    },
    Benchmark {
        name: "plugins-languages",
        way: MeasureWay::Bench,
        command: "cargo xtask bench plugins-languages",
        code: AUTHORS,
        figures: &[
            figure("component.rust", "the guide's plugin in Rust, built", FigureUnit::Megabytes),
            figure("component.python", "the guide's plugin in Python, built", FigureUnit::Megabytes),
            figure("component.javascript", "the guide's plugin in JavaScript, built", FigureUnit::Megabytes),
        ],
    },
    Benchmark {
        name: "guide",
        way: MeasureWay::Tests("guide"),
        command: "cargo xtask test guide",
        code: AUTHORS,
        figures: &[
            figure("guide.rust", "from an empty folder to a plugin that runs, in Rust", FigureUnit::Minutes),
            figure(
                "guide.python",
                "from an empty folder to a plugin that runs, in Python",
                FigureUnit::Minutes,
            ),
            figure(
                "guide.javascript",
                "from an empty folder to a plugin that runs, in JavaScript",
                FigureUnit::Minutes,
            ),
        ],
    },
    Benchmark {
        name: "first-build",
        way: MeasureWay::FirstBuild,
        command: "cargo xtask playground",
        code: BUILT,
        figures: &[
            figure(
                "first-build.minutes",
                "until the first playground starts, nothing built",
                FigureUnit::Minutes,
            ),
            figure("first-build.again", "until a later playground starts", FigureUnit::Seconds),
        ],
    },
    Benchmark {
        name: "instructions",
        way: MeasureWay::Bench,
        command: "cargo xtask bench instructions",
        code: &[],
        figures: INSTRUCTIONS,
    },
];

const PIPELINE: &[Figure] = &[
    figure(
        "pipeline.5000.ratio",
        "states of 5,000 Jobs into SQLite, by those of client-go without a sink",
        FigureUnit::Times,
    ),
    figure("pipeline.5000.rate", "states of 5,000 Jobs into SQLite", FigureUnit::StatesPerSecond),
    figure("pipeline.5000.peak", "peak memory with 5,000 Jobs", FigureUnit::Mebibytes),
    figure(
        "pipeline.5000.peer.rate",
        "client-go with 5,000 Jobs, without a sink",
        FigureUnit::StatesPerSecond,
    ),
    figure("pipeline.5000.peer.peak", "peak memory of client-go with 5,000 Jobs", FigureUnit::Mebibytes),
    figure("pipeline.20000.ratio", "the same ratio with 20,000 Jobs", FigureUnit::Times),
    figure("pipeline.20000.rate", "states of 20,000 Jobs into SQLite", FigureUnit::StatesPerSecond),
    figure("pipeline.20000.peak", "peak memory with 20,000 Jobs", FigureUnit::Mebibytes),
    figure(
        "pipeline.20000.peer.rate",
        "client-go with 20,000 Jobs, without a sink",
        FigureUnit::StatesPerSecond,
    ),
    figure("pipeline.20000.peer.peak", "peak memory of client-go with 20,000 Jobs", FigureUnit::Mebibytes),
    figure("pipeline.50000.ratio", "the same ratio with 50,000 Jobs", FigureUnit::Times),
    figure("pipeline.50000.rate", "states of 50,000 Jobs into SQLite", FigureUnit::StatesPerSecond),
    figure("pipeline.50000.peak", "peak memory with 50,000 Jobs", FigureUnit::Mebibytes),
    figure(
        "pipeline.50000.peer.rate",
        "client-go with 50,000 Jobs, without a sink",
        FigureUnit::StatesPerSecond,
    ),
    figure("pipeline.50000.peer.peak", "peak memory of client-go with 50,000 Jobs", FigureUnit::Mebibytes),
];

const SERVERS: &[Figure] = &[
    figure("pipeline.postgresql.rate", "states of 5,000 Jobs into PostgreSQL", FigureUnit::StatesPerSecond),
    figure("pipeline.mariadb.rate", "states of 5,000 Jobs into MariaDB", FigureUnit::StatesPerSecond),
    figure("pipeline.mysql.rate", "states of 5,000 Jobs into MySQL", FigureUnit::StatesPerSecond),
];

/// Each is the count for one state, or for one call where the text says so.
const INSTRUCTIONS: &[Figure] = &[
    counted("instructions.frame", "a watch frame is projected"),
    counted("instructions.status", "the rules give a document its status"),
    counted("instructions.delta", "a document becomes a delta of the version before"),
    counted("instructions.pack", "a document is packed for the cache"),
    counted("instructions.redact", "secrets are looked for in a document"),
    counted("instructions.quotes", "the texts of a state are searched for the secrets of its document"),
    counted("instructions.lanes", "a state goes into its lane, is taken, and is finished"),
    counted("instructions.append", "a state is appended to the journal in SQLite, in batches of 256"),
    counted("instructions.phases", "a state with another phase is taken into the index of phases"),
    counted("instructions.recent", "a state is delivered from those that the journal holds in memory"),
    counted("instructions.backlog", "a state is read back from the journal's file and delivered"),
    // Threads of the journal take part, and runs of one build differ by 4 % either way.
    Figure {
        guard: FigureGuard::Within(0.08),
        ..counted("instructions.document", "a document is read back from its chain of deltas")
    },
    counted(
        "instructions.receipt",
        "a state's receipt is written into a granted SQLite file, in batches of 256",
    ),
    counted("instructions.guest", "a state goes to a guest and its verdict comes back, in batches of 64"),
    counted(
        "instructions.audit",
        "a change is read from the journal's file and recorded by the audit plugin",
    ),
];

/// The figure of this name, and what measures it.
pub fn figure_of(name: &str) -> Option<(&'static Benchmark, &'static Figure)> {
    BENCHMARKS
        .iter()
        .find_map(|benchmark| Some((benchmark, benchmark.figures.iter().find(|one| one.name == name)?)))
}

impl FigureUnit {
    /// As people read it: with the digits that a second run would show again.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Times if value < 10.0 => format!("{value:.2}"),
            Self::Times | Self::Seconds | Self::Minutes | Self::Megabytes => format!("{value:.1}"),
            Self::Milliseconds if value < 10.0 => format!("{value:.2}"),
            // Of a rate, three digits: a busy machine moves the others.
            Self::StatesPerSecond => grouped((value / 100.0).round() * 100.0),
            Self::Milliseconds | Self::Bytes | Self::Mebibytes | Self::Instructions => grouped(value),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Times => "times",
            Self::StatesPerSecond => "states/s",
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::Minutes => "minutes",
            Self::Bytes => "bytes",
            Self::Megabytes => "MB",
            Self::Mebibytes => "MiB",
            Self::Instructions => "instructions",
        }
    }
}

/// `1348.2` is `1,348`.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::root;

    #[test]
    fn a_value_has_the_digits_that_a_second_run_would_show_again() {
        assert_eq!(FigureUnit::Times.text(0.8449), "0.84");
        assert_eq!(FigureUnit::StatesPerSecond.text(10_149.0), "10,100");
        assert_eq!(FigureUnit::Milliseconds.text(1.8149), "1.81");
        assert_eq!(FigureUnit::Milliseconds.text(1_348.2), "1,348");
        assert_eq!(FigureUnit::Bytes.text(972.4), "972");
        assert_eq!(FigureUnit::Instructions.text(1_234_567.0), "1,234,567");
    }

    #[test]
    fn a_figure_has_one_name_and_its_code_exists() {
        let mut names = BTreeSet::new();
        for benchmark in BENCHMARKS {
            for path in benchmark.code.iter().filter(|path| !path.starts_with(':')) {
                assert!(root().join(path).exists(), "{}: there is no {path}", benchmark.name);
            }
            for figure in benchmark.figures {
                assert!(names.insert(figure.name), "{} stands twice in the catalog", figure.name);
            }
        }
    }
}

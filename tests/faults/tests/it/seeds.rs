//! One row over many seeds. A seed replays the choices; the moments at which they meet the source
//! are the machine's.

use std::time::Duration;

use anyhow::{Result, bail};
pub use kubewitness_faults::{Dice, Marks};

use crate::world::{Options, World};

/// A seed that takes longer than this hangs; a slow machine needs a few seconds for it.
const LONGEST: Duration = Duration::from_secs(120);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Says how to replay, should the row panic.
struct Replay<'a>(&'a str, u64);

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(row, seed) = self;
            eprintln!("again with: KUBEWITNESS_SEED={seed} cargo test -p kubewitness-faults {row}");
        }
    }
}

/// How a row is run.
pub struct Row {
    pub name: &'static str,
    /// Seeds when nothing is asked for: rows that wait have fewer.
    pub seeds: u64,
    pub options: Options,
    /// Seeds that once failed are run first, whatever is asked for.
    pub failed: &'static [u64],
    /// What must have happened at least once.
    pub sometimes: &'static [&'static str],
}

impl Row {
    pub fn new(name: &'static str) -> Self {
        Self { name, seeds: 4, options: Options::default(), failed: &[], sometimes: &[] }
    }

    /// `KUBEWITNESS_SEED=S` runs one seed, `KUBEWITNESS_SEEDS=N` so many.
    pub async fn run(self, row: impl AsyncFn(&mut World, &Marks) -> Result<()>) {
        let one = number("KUBEWITNESS_SEED");
        let seeds: Vec<u64> = match one {
            Some(seed) => vec![seed],
            None => {
                let many = number("KUBEWITNESS_SEEDS").unwrap_or(self.seeds);
                self.failed.iter().copied().chain(1..=many).collect()
            }
        };
        let marks = Marks::default();
        for seed in seeds {
            let replay = Replay(self.name, seed);
            let ran = tokio::time::timeout(LONGEST, self.seed(seed, &marks, &row)).await;
            match ran {
                Ok(Ok(())) => {}
                Ok(Err(error)) => panic!("seed {seed}: {error:#}"),
                Err(_) => panic!("seed {seed} took longer than {LONGEST:?}"),
            }
            drop(replay);
        }
        let never = marks.missing(self.sometimes);
        assert!(one.is_some() || never.is_empty(), "over all seeds this never happened: {never:?}");
    }

    async fn seed(
        &self,
        seed: u64,
        marks: &Marks,
        row: &impl AsyncFn(&mut World, &Marks) -> Result<()>,
    ) -> Result<()> {
        let mut world = World::new(seed, self.options.clone()).await?;
        if let Err(error) = row(&mut world, marks).await {
            bail!("{error:#}\n{}", world.tell().await);
        }
        Ok(())
    }
}

//! One row over many seeds. A seed replays the choices; the moments at which they meet the source
//! are the machine's.

use std::time::Duration;

use anyhow::{Result, bail};
use kubewitness_chance::{ReplayHint, SeedPlan};
pub use kubewitness_faults::{Dice, Marks};

use crate::world::{FaultWorld, WorldOptions};

/// A seed that takes longer than this hangs; a slow machine needs a few seconds for it.
const LONGEST: Duration = Duration::from_secs(600);

/// How a row is run.
pub struct RowOptions {
    pub name: &'static str,
    /// Fixed seeds: rows that wait have fewer. One fresh seed follows.
    pub seeds: u64,
    pub options: WorldOptions,
    /// The events that must have happened at least once.
    pub sometimes: &'static [&'static str],
}

impl RowOptions {
    pub fn new(name: &'static str) -> Self {
        Self { name, seeds: 4, options: WorldOptions::default(), sometimes: &[] }
    }

    pub async fn run(self, row: impl AsyncFn(&mut FaultWorld, &Marks) -> Result<()>) {
        let seeds = SeedPlan { test: self.name, fixed: self.seeds, fresh: 1 };
        let marks = Marks::default();
        for seed in seeds.list() {
            let replay = ReplayHint { package: "kubewitness-faults", test: self.name, seed };
            let ran = tokio::time::timeout(LONGEST, self.seed(seed, &marks, &row)).await;
            match ran {
                Ok(Ok(())) => {}
                Ok(Err(error)) => panic!("seed {seed}: {error:#}"),
                Err(_) => panic!("seed {seed} took longer than {LONGEST:?}"),
            }
            drop(replay);
        }
        let never = marks.missing(self.sometimes);
        assert!(!seeds.include_fixed() || never.is_empty(), "over all seeds this never happened: {never:?}");
    }

    async fn seed(
        &self,
        seed: u64,
        marks: &Marks,
        row: &impl AsyncFn(&mut FaultWorld, &Marks) -> Result<()>,
    ) -> Result<()> {
        let mut world = FaultWorld::new(seed, self.options.clone()).await?;
        if let Err(error) = row(&mut world, marks).await {
            bail!("{error:#}\n{}", world.tell().await);
        }
        Ok(())
    }
}

//! Where the persistence plugin's tables are, and waits for what it writes there.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{Kubewitness, Platform, until};

/// The database that the persistence plugin writes into.
#[derive(Clone, Debug)]
pub enum PlatformAddress {
    File(PathBuf),
    Server(String),
}

impl PlatformAddress {
    pub async fn open(&self) -> Result<Platform> {
        match self {
            Self::File(path) => Platform::open(path).await,
            Self::Server(url) => Platform::connect(url).await,
        }
    }

    /// From now on each write of a row is noted. Returns how many rows there are when the notes begin.
    pub async fn note_effects(&self) -> Result<i64> {
        let mut platform = match self {
            Self::File(path) => Platform::open_to_note(path).await?,
            Self::Server(url) => Platform::connect(url).await?,
        };
        platform.note_effects().await?;
        let rows = platform.count().await?;
        platform.close().await?;
        Ok(rows)
    }

    /// The rows of the history: 0 as long as its database or its table can't be read.
    pub async fn rows(&self) -> i64 {
        let counted = async {
            let mut platform = self.open().await?;
            let rows = platform.count().await?;
            platform.close().await?;
            anyhow::Ok(rows)
        };
        counted.await.unwrap_or(0)
    }

    /// Waits until the history has more rows than now.
    pub async fn grows(&self, within: Duration, what: &str) -> Result<()> {
        let before = self.rows().await;
        until(within, what, async || Ok((self.rows().await > before).then_some(()))).await
    }

    /// The same while one process is to write them: if it ends, the wait ends.
    pub async fn grows_by(&self, run: &mut Kubewitness, within: Duration) -> Result<()> {
        let before = self.rows().await;
        let grown = until(within, "the history to grow", async || {
            if let Some(ended) = run.process().ended()? {
                bail!("it ended with {ended:?}");
            }
            Ok((self.rows().await > before).then_some(()))
        });
        let grown = grown.await;
        grown.with_context(|| run.process().say())
    }
}

//! What happened while this witness was away and can't be read back any more is no gap where another
//! witness of the journal has seen it. Nobody knows yet whether that one has while its watch has brought
//! nothing newer: then it is waited for, for as long as its watch goes on.

use kubewitness_core::Version;
use kubewitness_core::ports::JournalError;
use tokio::time::{Instant, sleep};

use crate::source::parts::Parts;
use crate::source::round::Round;

/// So often in a row nobody else is found to watch before that is believed: one that has just begun, or
/// whose session with the journal was lost, is not heard of at once.
const LOOKS: u32 = 5;

/// Where the server showed an object newer than the journal has it, one whose watch goes on brings that soon:
/// after the longest pause of one that could not write.
const LOOKS_AT_TORN: u32 = 40;

/// The others, and up to where they must have seen everything.
pub(crate) struct OtherWitnesses {
    epoch: u32,
    listed: Version,
}

/// What came of waiting for them.
pub(crate) enum Waited {
    /// Another witness has seen everything.
    Seen(String),
    /// One watches, and does not bring what the server has shown.
    Behind,
    /// There is none any more that could have.
    InVain,
}

enum Look {
    /// One of them has seen everything.
    Seen(String),
    /// One of them watches since before.
    Watched(String),
    Nobody,
}

impl OtherWitnesses {
    /// `None` where nobody else can have seen what this round can't read back.
    pub fn of(parts: &Parts, round: &Round) -> Option<Self> {
        let outage = round.sweep.as_ref().filter(|_| round.may_be_seen)?;
        Some(Self { epoch: parts.shared.live().epoch, listed: outage.listed.clone() })
    }

    /// `torn`: versions of objects are missing that the server has shown, and these wait.
    pub async fn have_seen(&self, parts: &Parts, torn: bool) -> Waited {
        let (source, listed) = (&parts.spec.name, &self.listed);
        let (mut waited_for, mut looks, mut alone, since) = (None, 0, 0, Instant::now());
        loop {
            looks += 1;
            match self.look(parts).await {
                Ok(Look::Seen(why)) => {
                    tracing::info!(%source, %listed, waited = ?since.elapsed(), "no gap: {why}");
                    return Waited::Seen(why);
                }
                Ok(Look::Watched(other)) if torn && looks >= LOOKS_AT_TORN => {
                    tracing::info!(%source, %listed, other, "it brings nothing of what the server has: those objects wait no longer");
                    return Waited::Behind;
                }
                Ok(Look::Watched(other)) => {
                    alone = 0;
                    if waited_for.as_ref() != Some(&other) {
                        tracing::info!(%source, %listed, other, "what was missed and can't be read back is left to another witness, whose watch goes on");
                        waited_for = Some(other);
                    }
                }
                Ok(Look::Nobody) if alone + 1 >= LOOKS => return Waited::InVain,
                Ok(Look::Nobody) => alone += 1,
                // Nothing can be written meanwhile, and whoever writes says so.
                Err(error) => {
                    tracing::debug!(%source, "what other witnesses have seen can't be read: {error}");
                }
            }
            sleep(parts.tuning.others_every).await;
        }
    }

    async fn look(&self, parts: &Parts) -> Result<Look, JournalError> {
        let source = &parts.spec.name;
        // Before where the source stands: whoever has come there is done, whatever became of its watch.
        let other = parts.witness.watched_elsewhere(source, self.epoch, &self.listed).await?;
        let standing = parts.witness.standing(source).await?;
        Ok(match standing {
            Some((epoch, _)) if epoch > self.epoch => {
                Look::Seen(format!("another witness of {source} is ahead, in epoch {epoch}"))
            }
            Some((epoch, Some(at)))
                if epoch == self.epoch && at.is_comparable() && !self.listed.is_newer_than(&at) =>
            {
                Look::Seen(format!("another witness of {source} has seen everything up to {at}"))
            }
            _ => other.map_or(Look::Nobody, Look::Watched),
        })
    }
}

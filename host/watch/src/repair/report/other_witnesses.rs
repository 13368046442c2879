//! Waits for other replicas of a shared journal. Versions that this replica missed and can't read back are
//! not a gap if another replica has seen them. That is unknown until the other replica's watch delivers
//! something newer. So this replica waits as long as the other one watches.

use kubewitness_core::Version;
use kubewitness_core::ports::JournalError;
use tokio::time::{Instant, sleep};

use crate::source::parts::SourceParts;
use crate::source::round::RepairRound;

/// How often in a row no other witness may be found before that counts. A witness that has just started, or
/// that lost its session with the journal, does not appear at once.
const LOOKS: u32 = 5;

/// If the server showed a newer object than the journal has, a watching witness delivers it soon: within the
/// longest pause after a failed write.
const LOOKS_AT_TORN: u32 = 40;

/// The other witnesses, and the version up to which they must have seen everything.
pub(crate) struct OtherWitnesses {
    epoch: u32,
    listed: Version,
}

/// The result of waiting for them.
pub(crate) enum WaitResult {
    /// Another witness has seen everything.
    Seen(String),
    /// Another witness watches, but does not deliver what the server has shown.
    Behind,
    /// No witness that could have seen it exists any more.
    InVain,
}

enum WitnessLook {
    /// A witness has seen everything.
    Seen(String),
    /// A witness has watched without a break since before.
    Watched(String),
    Nobody,
}

impl OtherWitnesses {
    /// Returns `None` if no other witness can have seen what this round can't read back.
    pub fn of(parts: &SourceParts, round: &RepairRound) -> Option<Self> {
        let outage = round.sweep.as_ref().filter(|_| round.may_be_seen)?;
        Some(Self { epoch: parts.shared.lock_live().epoch, listed: outage.listed.clone() })
    }

    /// `torn` is set if the server has shown objects whose versions are missing, so these wait.
    pub async fn have_seen(&self, parts: &SourceParts, torn: bool) -> WaitResult {
        let (source, listed) = (&parts.spec.name, &self.listed);
        let (mut waited_for, mut looks, mut alone, since) = (None, 0, 0, Instant::now());
        loop {
            looks += 1;
            match self.look_for_others(parts).await {
                Ok(WitnessLook::Seen(why)) => {
                    tracing::info!(%source, %listed, waited = ?since.elapsed(), "no gap: {why}");
                    return WaitResult::Seen(why);
                }
                Ok(WitnessLook::Watched(other)) if torn && looks >= LOOKS_AT_TORN => {
                    tracing::info!(%source, %listed, other, "no other replica has delivered this version in time: the source goes on without it");
                    return WaitResult::Behind;
                }
                Ok(WitnessLook::Watched(other)) => {
                    alone = 0;
                    if waited_for.as_ref() != Some(&other) {
                        tracing::info!(%source, %listed, other, "versions that this replica missed and can't read back are left to another replica");
                        waited_for = Some(other);
                    }
                }
                Ok(WitnessLook::Nobody) if alone + 1 >= LOOKS => return WaitResult::InVain,
                Ok(WitnessLook::Nobody) => alone += 1,
                // Nothing can be written meanwhile, and the writer reports that.
                Err(error) => {
                    tracing::debug!(%source, "the progress of other replicas can't be read: {error}");
                }
            }
            sleep(parts.tuning.others_every).await;
        }
    }

    async fn look_for_others(&self, parts: &SourceParts) -> Result<WitnessLook, JournalError> {
        let source = &parts.spec.name;
        // This is read before the source's position. If a witness has reached the version, it has seen
        // everything, whatever happened to its watch since.
        let other = parts.witness.watched_elsewhere(source, self.epoch, &self.listed).await?;
        let standing = parts.witness.shared_standing(source).await?;
        Ok(match standing {
            Some((epoch, _)) if epoch > self.epoch => WitnessLook::Seen(format!(
                "another replica is ahead in the source {source}, in epoch {epoch}"
            )),
            Some((epoch, Some(at)))
                if epoch == self.epoch && at.is_comparable() && !self.listed.is_newer_than(&at) =>
            {
                WitnessLook::Seen(format!(
                    "another replica has seen everything of the source {source} up to {at}"
                ))
            }
            _ => other.map_or(WitnessLook::Nobody, WitnessLook::Watched),
        })
    }
}

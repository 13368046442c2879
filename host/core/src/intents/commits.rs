//! The newest commits of a plugin in its granted database, and what follows if the database no longer has them.
//!
//! A database that fails over to a standby, or is restored from a copy, loses the newest of its commits. The journal
//! calls the states of these commits finished, so nobody would ever look for their rows. So the journal notes the
//! newest commit that is known to have succeeded, and each new connection is asked for it first.
//!
//! Calls run side by side, so there is not always one newest commit. A commit certainly precedes another one only if
//! it was answered before the other one was sent. [`CommitFrontier`] keeps the commits that no other one certainly
//! follows. A database that has all of these has every commit. A number that the database counts was rejected: all
//! calls would wait for its row.
//!
//! A receipt that is gone is no loss if it was removed. So the database keeps with its receipts the moment before which
//! they may have been removed, and [`CommitHistory`] tells the one from the other.

use serde::{Deserialize, Serialize};

use super::{key, note_number};
use crate::ports::KvWrite;
use crate::state::Seq;

const NEWEST: &str = "newest";
const LOSS: &str = "loss";
/// Records of losses that are kept. Each is a line for people.
pub const LOSSES: usize = 16;
/// Databases of which a plugin's commits stay noted after it was granted another one.
pub const EARLIER: usize = 4;

/// A commit that the database has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedCommit {
    pub token: String,
    /// When it was sent, in milliseconds since 1970. No later commit of the plugin has the same or an earlier moment.
    pub at_ms: u64,
    /// A tick: the receipt of the next one replaces its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tick: bool,
}

/// A database's own word on the receipts that it no longer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitHistory {
    /// Receipts of commits before this moment may have been removed.
    pub pruned_before_ms: u64,
    /// The newest tick that it has.
    pub newest_tick_ms: u64,
}

impl CommitHistory {
    /// Whether the database has had this commit although it has no receipt of it. That is so beside an older copy of the
    /// journal, and if a process ended before it had saved the note of a newer commit.
    pub fn has_outlived(&self, commit: &NotedCommit) -> bool {
        commit.at_ms < self.pruned_before_ms || (commit.is_tick && commit.at_ms <= self.newest_tick_ms)
    }
}

/// The newest commits of one plugin: at most one for each call that ran beside the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitFrontier {
    newest: Vec<KnownCommit>,
    moments: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownCommit {
    commit: NotedCommit,
    answered: u64,
}

/// When a commit was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTicket(u64);

impl CommitFrontier {
    /// Goes on from commits that the journal or the database names.
    pub fn from_commits(commits: impl IntoIterator<Item = NotedCommit>) -> Self {
        let newest = commits.into_iter().map(|commit| KnownCommit { commit, answered: 0 }).collect();
        Self { newest, moments: 1 }
    }

    /// Call it before the commit is sent.
    pub fn begin_commit(&mut self) -> CommitTicket {
        self.moments += 1;
        CommitTicket(self.moments)
    }

    /// Call it once the database has answered that the commit succeeded.
    pub fn note_commit(&mut self, CommitTicket(begun): CommitTicket, commit: NotedCommit) {
        self.moments += 1;
        // A survey may have found it before its answer came.
        self.newest.retain(|known| known.answered > begun && known.commit.token != commit.token);
        self.newest.push(KnownCommit { commit, answered: self.moments });
    }

    /// The commits that the database must have.
    pub fn newest_commits(&self) -> impl Iterator<Item = &NotedCommit> {
        self.newest.iter().map(|known| &known.commit)
    }

    pub fn has_commit(&self, commit: &NotedCommit) -> bool {
        self.newest_commits().any(|known| known == commit)
    }

    /// Expects commits no longer whose receipts were removed, but the newest one that the database has. A process that was
    /// killed before it noted that one has left states that are finished by its receipt alone. Returns whether anything
    /// has changed.
    pub fn replace_commits(
        &mut self,
        is_removed: impl Fn(&NotedCommit) -> bool,
        newest: Option<&NotedCommit>,
    ) -> bool {
        let expected = self.newest.len();
        self.newest.retain(|known| !is_removed(&known.commit));
        let has_removed = self.newest.len() < expected;
        let is_known = newest.is_none_or(|newest| self.has_commit(newest));
        if let Some(newest) = newest.filter(|_| !is_known) {
            self.newest.push(KnownCommit { commit: newest.clone(), answered: self.moments });
        }
        has_removed || !is_known
    }
}

/// The newest commits of a plugin in one database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseCommits {
    /// The controller's name of the database.
    pub database: String,
    pub commits: Vec<NotedCommit>,
    /// The newest commit whose states do not come again after a loss: that of a tick, of a resync, or of states that lie
    /// before the position after which the database keeps every receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beneath: Option<NotedCommit>,
    /// States up to here are in the database although the journal took them back: its address led to another server
    /// meanwhile, which lacked them. `None` once the cursor has passed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_through: Option<Seq>,
}

/// The journal's note of the newest commits in granted databases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitNote {
    /// The database that the plugin wrote to last. `None` after a loss that was not taken back: the journal counts on
    /// nothing in it, and every receipt is kept from then on.
    pub current: Option<DatabaseCommits>,
    /// Databases that the plugin was granted before, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<DatabaseCommits>,
}

impl CommitNote {
    pub fn as_write(&self) -> KvWrite {
        KvWrite { key: key(NEWEST, 0), value: Some(encode_note(self)) }
    }

    /// The commits that a database must have.
    pub fn commits_in(&self, database: &str) -> Option<&DatabaseCommits> {
        self.current.iter().chain(&self.earlier).find(|known| known.database == database)
    }

    /// Whether the plugin has written to this database last.
    pub fn is_current(&self, database: &str) -> bool {
        self.current.as_ref().is_some_and(|current| current.database == database)
    }

    /// The notes of all databases but this one.
    pub fn notes_besides(self, database: &str) -> Vec<DatabaseCommits> {
        let known = self.earlier.into_iter().chain(self.current);
        let mut others: Vec<_> = known.filter(|known| known.database != database).collect();
        others.drain(..others.len().saturating_sub(EARLIER));
        others
    }
}

/// A database was found without commits that it had answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseLoss {
    pub database: String,
    pub found_ms: u64,
    /// Everything up to this position is in the database. `None`: the database does not say.
    pub after: Option<Seq>,
    /// The last position that the plugin had finished.
    pub through: Seq,
    /// States that are handed over again, without those whose receipts survived.
    pub again: u64,
    /// States in between of sources to which the plugin no longer subscribes: they are not handed over again.
    #[serde(default)]
    pub ended: u64,
    /// The most states in between that the journal no longer has.
    pub missing: u64,
    /// States of some lost commits do not come again: see [`DatabaseCommits::beneath`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beneath: bool,
}

impl DatabaseLoss {
    /// Whether the states at this position were taken back in the journal. So a position up to which the same database
    /// says that it has everything can be true, although the journal calls less finished.
    pub fn has_taken_back(&self, seq: Seq) -> bool {
        self.after.is_some_and(|after| after < seq) && seq <= self.through
    }

    /// Whether rows may be missing for good.
    pub fn is_gap(&self) -> bool {
        self.after.is_none_or(|after| after >= self.through)
            || self.missing > 0
            || self.ended > 0
            || self.beneath
    }

    /// The loss as a sentence for people, with what they can do.
    pub fn text(&self) -> String {
        let Self { database, after, through, again, ended, missing, .. } = self;
        let lost = format!("the database `{database}` has lost commits that it had answered");
        let remedy = "a `resync` of its sources writes the present state of each object again";
        let Some(after) = after else {
            return format!(
                "{lost}. They are not handed over again, because the database is new or empty, or because the plugin \
                 also writes a ledger: rows of states up to position {through} may be missing. Restore a copy, correct \
                 the database's address, or run a resync: {remedy}"
            );
        };
        let mut text = match after < through {
            true => format!(
                "{lost}: the plugin gets {again} states after position {after} again, up to {through}"
            ),
            false => {
                format!("{lost}. None of their states come again: all of them lie up to position {after}")
            }
        };
        if *missing > 0 {
            text += &format!(
                ". Up to {missing} states in between are no longer in the journal, and their rows may be missing"
            );
        }
        if *ended > 0 {
            text += &format!(
                ". {ended} states are of sources to which the plugin no longer subscribes, and their rows may be missing"
            );
        }
        if self.beneath || *after >= *through {
            text += ". Rows of a tick, a resync, a replayed dead letter or the past of an added source may be missing as \
                     well";
        }
        match self.is_gap() {
            true => text + ": " + remedy,
            false => text + ". The controller skips those whose rows are there",
        }
    }
}

/// The commits that a database still has after a loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurvivingCommits {
    /// The newest one.
    pub newest: Option<NotedCommit>,
    /// See [`DatabaseCommits::beneath`].
    pub beneath: Option<NotedCommit>,
}

fn encode_note(note: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(note).expect("strings and numbers always serialize")
}

/// The notes of one plugin about commits, as they were read from the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitNotes {
    pub newest: Option<CommitNote>,
    /// The losses so far, by number.
    pub losses: Vec<(u64, DatabaseLoss)>,
}

impl CommitNotes {
    /// Loads a stored note. Returns `None` if the key is not that of such a note, and `Some(false)` if it can't be read.
    pub fn read(&mut self, name: &str, value: &[u8]) -> Option<bool> {
        if note_number(NEWEST, name).is_some() {
            self.newest = serde_json::from_slice(value).ok();
            return Some(self.newest.is_some());
        }
        let number = note_number(LOSS, name)?;
        let Ok(loss) = serde_json::from_slice(value) else { return Some(false) };
        self.losses.push((number, loss));
        self.losses.sort_unstable_by_key(|(number, _)| *number);
        Some(true)
    }

    /// The writes that record one more loss, and what the database must have from now on.
    pub fn record_loss(&self, loss: &DatabaseLoss, survivors: SurvivingCommits) -> Vec<KvWrite> {
        let SurvivingCommits { newest, beneath } = survivors;
        let database = loss.database.clone();
        let before = |seq: &Seq| {
            self.losses.iter().any(|(_, before)| before.database == database && before.has_taken_back(*seq))
        };
        let done_through = loss.after.filter(before);
        // Among the states that count as done, some may never have been handed over, as those of an added source.
        let loss = DatabaseLoss { beneath: loss.beneath || done_through.is_some(), ..loss.clone() };
        let earlier = self.newest.clone().unwrap_or_default().notes_besides(&database);
        let commits = newest.into_iter().collect();
        let commits = DatabaseCommits { database, commits, beneath, done_through };
        let newest = CommitNote { current: loss.after.is_some().then_some(commits), earlier };
        let next = self.losses.last().map_or(1, |(number, _)| number + 1);
        let old = self.losses.len().saturating_sub(LOSSES - 1);
        let removals = self.losses.iter().take(old).map(|(number, _)| super::note_removal(LOSS, *number));
        let record = KvWrite { key: key(LOSS, next), value: Some(encode_note(&loss)) };
        removals.chain([record, newest.as_write()]).collect()
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests;

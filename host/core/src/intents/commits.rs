//! Tracks the newest commits of a plugin in its granted database, to detect that the database has lost some
//! of them.
//!
//! A database that fails over to a standby, or is restored from a copy, loses its newest commits. The journal
//! has recorded the states of these commits as finished, so nothing would ever write their rows again. So the
//! journal notes the newest commits that the database has answered, and each new connection first checks that
//! they exist.
//!
//! Calls run side by side, so there is not always one newest commit. A commit certainly precedes another one
//! only if it was answered before the other one was sent. [`CommitFrontier`] keeps the commits that no other
//! one certainly follows: a database that has all of these has every commit. A counter in the database was
//! rejected, because all calls would wait for its row.
//!
//! A missing receipt is no loss if the receipt was pruned. So the database stores, beside its receipts, the
//! time before which receipts may have been pruned, and [`CommitHistory`] distinguishes a pruned receipt from
//! a lost commit.

use serde::{Deserialize, Serialize};

use super::{key, note_number};
use crate::ports::KvWrite;
use crate::state::Seq;

const NEWEST: &str = "newest";
const LOSS: &str = "loss";
/// The most records of losses that are kept. Each is a line for people.
pub const LOSSES: usize = 16;
/// The most ranges of unfinished states that a loss records.
pub const UNFINISHED_RANGES: usize = 16_384;
/// The most databases whose commits stay noted after the plugin was granted another one.
pub const EARLIER: usize = 4;

/// A commit that the database has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedCommit {
    pub token: String,
    /// When it was sent, in milliseconds since 1970. Times of one plugin's commits are unique and ascending.
    pub at_ms: u64,
    /// Whether it is a tick's commit. The receipt of the next tick replaces its receipt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tick: bool,
}

/// The limits within which a database can prove a commit by its receipts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitHistory {
    /// Receipts of commits before this moment may have been removed.
    pub pruned_before_ms: u64,
    /// The time of the newest tick whose receipt it has.
    pub newest_tick_ms: u64,
}

impl CommitHistory {
    /// Whether the database had this commit although its receipt no longer exists. That happens beside an
    /// older copy of the journal, and if a process ended before it saved the note of a newer commit.
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
    /// Restores the frontier from commits that the journal or the database reports.
    pub fn from_commits(commits: impl IntoIterator<Item = NotedCommit>) -> Self {
        let newest = commits.into_iter().map(|commit| KnownCommit { commit, answered: 0 }).collect();
        Self { newest, moments: 1 }
    }

    /// Starts a commit. The caller sends it afterwards.
    pub fn begin_commit(&mut self) -> CommitTicket {
        self.moments += 1;
        CommitTicket(self.moments)
    }

    /// Notes that the database has answered a commit as successful.
    pub fn note_commit(&mut self, CommitTicket(begun): CommitTicket, commit: NotedCommit) {
        self.moments += 1;
        // A survey of the database may have found the commit before its answer arrived.
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

    /// Stops expecting commits whose receipts were pruned, and expects the newest commit that the database
    /// has instead. A process that was killed before it noted that commit has left states that are finished
    /// by its receipt alone. Returns whether anything changed.
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
    /// The newest commit whose states are not delivered again after a loss: the commit of a tick, of a
    /// resync, or of states below the position from which the database keeps every receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beneath: Option<NotedCommit>,
    /// The states up to this position are in the database although the journal took them back: the address
    /// temporarily led to another server, which lacked them. [`was_unfinished`] excludes some of them. `None`
    /// once the cursor has passed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_through: Option<Seq>,
}

/// The journal's note of the newest commits in granted databases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitNote {
    /// The database that the plugin wrote to last. After a loss that was not taken back it is `None`: the
    /// journal expects no commits, and the database keeps every receipt from then on.
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

    /// Whether this is the database that the plugin wrote to last.
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

/// A loss: a database was found without commits that it had answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseLoss {
    pub database: String,
    pub found_ms: u64,
    /// The position up to which the database has everything; `None` if the database does not report one.
    pub after: Option<Seq>,
    /// The last position that the plugin had finished.
    pub through: Seq,
    /// The number of states that are delivered again, without those whose receipts survived.
    pub again: u64,
    /// The number of states in between whose sources the plugin no longer subscribes to. They are not
    /// delivered again.
    #[serde(default)]
    pub ended: u64,
    /// The most states in between that the journal no longer has.
    pub missing: u64,
    /// Whether states of some lost commits are not delivered again: see [`DatabaseCommits::beneath`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beneath: bool,
    /// Positions, in order, that the plugin had not finished although its cursor had passed them: dead letters
    /// and owed states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<(Seq, Seq)>,
    /// The floor of receipts in the server to which the address led before; `None` if it was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_floor: Option<Seq>,
}

impl DatabaseLoss {
    /// Whether the journal took back the state at this position. If so, the same database may truly have
    /// everything up to a position although the journal records less as finished.
    pub fn has_taken_back(&self, seq: Seq) -> bool {
        self.after.is_some_and(|after| after < seq) && seq <= self.through
    }

    fn has_unfinished(&self, seq: Seq) -> bool {
        let following = self.unfinished.partition_point(|(_, last)| *last < seq);
        self.unfinished.get(following).is_some_and(|(first, _)| *first <= seq)
    }

    /// Records these positions as unfinished. Past [`UNFINISHED_RANGES`], everything that follows counts as
    /// unfinished: then its receipts alone keep it from being applied twice.
    pub fn note_unfinished(&mut self, seqs: impl IntoIterator<Item = Seq>) {
        for seq in seqs {
            let is_full = self.unfinished.len() == UNFINISHED_RANGES;
            match self.unfinished.last_mut() {
                Some((_, last)) if *last + 1 == seq => *last = seq,
                Some((_, last)) if is_full => {
                    *last = self.through;
                    return;
                }
                _ => self.unfinished.push((seq, seq)),
            }
        }
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

/// A server to which the address leads again lacks the states that were unfinished when the address led away.
/// The server is recognized by its floor. If no loss names that floor, any loss counts: a state may come twice,
/// and none is lost.
pub fn was_unfinished(losses: &[DatabaseLoss], floor: Seq, seq: Seq) -> bool {
    let mut from_server = losses.iter().filter(|loss| loss.former_floor == Some(floor)).peekable();
    match from_server.peek() {
        Some(_) => from_server.any(|loss| loss.has_unfinished(seq)),
        None => losses.iter().any(|loss| loss.has_unfinished(seq)),
    }
}

/// The commits that a database still has after a loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurvivingCommits {
    /// The newest of them.
    pub newest: Option<NotedCommit>,
    /// See [`DatabaseCommits::beneath`].
    pub beneath: Option<NotedCommit>,
}

fn encode_note(note: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(note).expect("strings and numbers always serialize")
}

/// The notes of one plugin about commits, as read from the journal.
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

    /// Returns the writes that record one more loss, and the commits that the database must have from now on.
    pub fn record_loss(&self, loss: &DatabaseLoss, survivors: SurvivingCommits) -> Vec<KvWrite> {
        let SurvivingCommits { newest, beneath } = survivors;
        let database = loss.database.clone();
        let before = |seq: &Seq| {
            self.losses.iter().any(|(_, before)| before.database == database && before.has_taken_back(*seq))
        };
        let done_through = loss.after.filter(before);
        // Some of these states count as finished but may never have been delivered, such as those of an added
        // source.
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

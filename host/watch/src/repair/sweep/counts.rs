//! Searches for objects that were created and deleted while nobody watched. Pure: it decides at which
//! versions to count, when to list all names, and what stays unknown.
//!
//! Listing every name at every version was rejected: it costs a full list for each version. An exact list of
//! one item costs little and returns the count of the collection.
//!
//! The store's versions are one counter. A version that belongs to a known object hides nothing. At every
//! other version the collection is counted. The count minus the known objects grows exactly at the version at
//! which an unknown object was created. Before it shrinks again, an unknown object may end. So at the last
//! counted version all names are listed: every object created since then still exists there. Deletions are
//! counted, too, because several can share a version.

use crate::source::life::UnwitnessedLife;
use crate::source::missing::{MissingVersions, reason};
use crate::version::version_number;

const COMPACTED: &str = "compaction has removed the versions that would show them";

/// The facts about one object within the outage.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownVersions {
    /// The versions at which it was written.
    pub versions: Vec<u128>,
    /// The version among them that may be its creation, if that is uncertain.
    pub unsure: Option<u128>,
    /// The version of its creation, if it is certain and in the outage.
    pub born: Option<u128>,
    /// The version of its deletion, if it is certain and in the outage.
    pub died: Option<u128>,
}

impl From<&UnwitnessedLife> for KnownVersions {
    fn from(life: &UnwitnessedLife) -> Self {
        let found = life.walked.iter().flat_map(|walked| &walked.found);
        let versions: Vec<u128> = found.filter_map(|(version, _)| version_number(version)).collect();
        let born = versions.first().copied().filter(|_| life.is_whole());
        let unsure = versions.first().copied().filter(|_| !life.is_whole());
        Self { born, died: life.died.as_ref().and_then(version_number), unsure, versions }
    }
}

/// The next step after a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCount {
    Continue,
    /// List all names at this version before the count is taken. At most this many objects are unknown, if
    /// that is certain.
    ListNames(u128, Option<u64>),
}

#[derive(Debug)]
pub(crate) struct SweepCounts {
    after: u128,
    listed: u128,
    accounted: Vec<u128>,
    /// Known versions that are counted nevertheless, because an unknown object may have been created there.
    unsure: Vec<u128>,
    births: Vec<u128>,
    deaths: Vec<u128>,
    expected: Option<u64>,
    /// The next version to hand out. With `anyway` it is handed out even if a known object accounts for it.
    next: u128,
    anyway: bool,
    /// The version from which the search continued after compaction, until it is listed.
    resumed: Option<u128>,
    /// Nothing is hidden up to here.
    clean: u128,
    /// The last counted version, with its count.
    last: Option<(u128, u64)>,
    /// A known difference between the counts and the known objects.
    base: i128,
    holes: Vec<MissingVersions>,
}

impl SweepCounts {
    /// Everything up to `after` was witnessed, and everything was listed at `listed`.
    pub fn new(after: u128, listed: u128, expected: Option<u64>) -> Self {
        Self {
            after,
            listed,
            accounted: Vec::new(),
            unsure: Vec::new(),
            births: Vec::new(),
            deaths: Vec::new(),
            expected,
            next: after,
            anyway: true,
            resumed: None,
            clean: after,
            last: None,
            base: 0,
            holes: Vec::new(),
        }
    }

    fn sort_and_dedup(&mut self) {
        let (after, listed) = (self.after, self.listed);
        for known in [&mut self.accounted, &mut self.unsure, &mut self.births, &mut self.deaths] {
            known.retain(|version| *version > after && *version <= listed);
            known.sort_unstable();
        }
        self.accounted.dedup();
        self.unsure.dedup();
        // One write creates one object. Deletions can share a version.
        self.births.dedup();
    }

    pub fn learn_versions(&mut self, objects: impl IntoIterator<Item = KnownVersions>) {
        for object in objects {
            let unsure = object.unsure;
            self.accounted.extend(object.versions.into_iter().filter(|version| Some(*version) != unsure));
            self.unsure.extend(unsure);
            self.births.extend(object.born);
            self.deaths.extend(object.died);
        }
        self.sort_and_dedup();
    }

    /// Whether anything must be searched.
    pub fn is_needed(&self) -> bool {
        self.may_hide_unknown(self.after, self.listed + 1)
    }

    /// The versions still to be counted, above the compacted ones.
    pub fn count_uncounted(&self, gone: u128) -> u128 {
        let from = self.after.max(gone);
        let known = self.accounted.len() - self.accounted.partition_point(|version| *version <= from);
        self.listed.saturating_sub(from).saturating_sub(known as u128)
    }

    /// Whether something unknown may be strictly between two versions.
    fn may_hide_unknown(&self, after: u128, before: u128) -> bool {
        let (from, to) = (after + 1, before);
        let within = |known: &[u128]| {
            let upto = |bound: u128| known.partition_point(|version| *version < bound);
            upto(to).saturating_sub(upto(from)) as u128
        };
        to.saturating_sub(from) > within(&self.accounted) + within(&self.unsure)
    }

    /// The next version at which to count, oldest first.
    pub fn next_sample(&mut self) -> Option<u128> {
        let mut at = self.next;
        let anyway = std::mem::take(&mut self.anyway);
        while !anyway && self.accounted.binary_search(&at).is_ok() {
            at += 1;
        }
        if at >= self.listed {
            return None;
        }
        self.next = at + 1;
        Some(at)
    }

    fn predicted_count(&self, at: u128) -> i128 {
        let upto = |known: &[u128]| known.partition_point(|version| *version <= at) as i128;
        upto(&self.births) - upto(&self.deaths)
    }

    fn count_excess(&self, at: u128, count: u64) -> i128 {
        i128::from(count) - self.predicted_count(at)
    }

    /// Takes the count at a version. Counts arrive in the order in which they were requested.
    pub fn take_count(&mut self, at: u128, count: u64) -> NextCount {
        let excess = self.count_excess(at, count);
        match self.last {
            None => {
                (self.last, self.base) = (Some((at, count)), excess);
                if at == self.after && self.expected == Some(count) {
                    return NextCount::Continue;
                }
                return NextCount::ListNames(at, None);
            }
            Some((last, counted)) => {
                let before = self.count_excess(last, counted);
                if excess < before && before > self.base {
                    return NextCount::ListNames(last, u64::try_from(before - self.base).ok());
                }
            }
        }
        self.last = Some((at, count));
        self.base = self.base.min(excess);
        if excess == self.base {
            self.clean_to(at);
        }
        NextCount::Continue
    }

    /// Every object up to here is known, except those that were compacted.
    pub fn clean_through(&self) -> u128 {
        self.clean
    }

    /// Records that every object at the last counted version is known now.
    pub fn note_looked(&mut self) {
        if let Some((last, counted)) = self.last {
            self.base = self.count_excess(last, counted);
            self.clean_to(last);
        }
    }

    /// Records that all names at a version were listed, without a count.
    pub fn note_listed(&mut self, at: u128) {
        self.last = Some((at, 0));
        self.clean_to(at);
    }

    /// The rest that must be listed once all versions are counted.
    pub fn list_the_rest(&self) -> NextCount {
        match self.last {
            Some((last, counted)) if self.count_excess(last, counted) > self.base => {
                NextCount::ListNames(last, u64::try_from(self.count_excess(last, counted) - self.base).ok())
            }
            _ => NextCount::Continue,
        }
    }

    /// Records that compaction has passed. `first` is the oldest version that can still be read; `None` if
    /// not even the list's version can. The search continues there and lists all names.
    pub fn note_compacted(&mut self, first: Option<u128>) {
        let Some(first) = first.filter(|first| *first <= self.listed) else {
            return self.end_search(reason::COMPACTED, COMPACTED);
        };
        self.resumed = Some(first);
        (self.last, self.next, self.anyway) = (None, first, true);
    }

    /// Nothing is hidden up to here, except what was compacted below the version where the search continued.
    fn clean_to(&mut self, clean: u128) {
        if let Some(first) = self.resumed.take()
            && self.may_hide_unknown(self.clean, first)
        {
            // Everything at the first readable version is known by now. If no object has that version, it may
            // be the version of a deletion.
            let somebodys =
                [&self.accounted, &self.unsure].iter().any(|known| known.binary_search(&first).is_ok());
            let before = if somebodys { first } else { first + 1 };
            self.push_hole(before, reason::COMPACTED, COMPACTED);
        }
        self.clean = clean;
    }

    /// Gives up: what was not searched stays unknown.
    pub fn end_search(&mut self, reason: &'static str, why: &str) {
        self.resumed = None;
        self.push_hole(self.listed + 1, reason, why);
        (self.clean, self.next, self.last) = (self.listed, self.listed, None);
    }

    fn push_hole(&mut self, before: u128, reason: &'static str, why: &str) {
        if !self.may_hide_unknown(self.clean, before) {
            return;
        }
        let after = self.clean;
        self.holes.push(MissingVersions {
            after: after.to_string(),
            before: before.to_string(),
            reason,
            message: format!(
                "objects that were created and deleted between versions {after} and {before} are not \
                 known: {why}"
            ),
        });
    }

    pub fn into_holes(mut self) -> Vec<MissingVersions> {
        self.clean_to(self.listed);
        self.holes
    }
}

//! The facts behind a removal: the condition of a source, which states of a segment may be removed, and
//! whether both still hold when the transaction begins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kubewitness_core::ports::{JournalError, PluginProgress};
use kubewitness_core::{Seq, Version};

use crate::report::RetentionHolder;
use crate::retention::decide::{self, PluginHold, RetentionCut};
use crate::store::RetentionReader;
use crate::store::rows::SEGMENT;
use crate::store::rows::removal::{LinkRow, RemovalPlan, SegmentTally, StateLink, TakenStates};

/// A deletion that was found by comparison has no version: only its age tells that its watch is
/// not resumed before it.
const UNVERSIONED_MS: u64 = 10 * 60 * 1000;

/// The most states after the newest state of an ended object that go in one transaction.
const WHOLE: usize = 1024;

/// How a source stands at one moment.
pub(crate) struct SourceFacts {
    pub streams: Vec<i64>,
    /// The stream of the newest epoch, and from where its watch would be resumed.
    newest_stream: i64,
    pub epochs: HashMap<i64, u32>,
    checkpoint: Option<Version>,
    pub tallies: Arc<[SegmentTally]>,
    pub plugins: Vec<(String, PluginProgress)>,
    pub holds: Vec<PluginHold>,
    pub newest: Seq,
    newest_object: i64,
    pub now_ms: u64,
}

/// How many states what holds.
pub(crate) type HeldCounts = BTreeMap<RetentionHolder, u64>;

/// A segment's states, and what may go of them. Behind those of the segment lie those that would
/// have to go with them.
pub(crate) struct SegmentView {
    pub rows: Vec<LinkRow>,
    pub states: Vec<StateLink>,
    /// Whether each of the segment's own states is expired.
    pub expired: Vec<bool>,
    pub may_go: Vec<bool>,
    /// And whether nobody can take them back any more.
    pub letters: HashMap<Seq, bool>,
    /// The states that plugins are owed.
    pub owed: OwedPositions,
}

/// The states that plugins are owed although their cursors have passed them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwedPositions(HashMap<Seq, Vec<String>>);

impl OwedPositions {
    async fn between(past: &mut dyn RetentionReader, from: Seq, through: Seq) -> Result<Self, JournalError> {
        let mut owed = Self::default();
        owed.extend(past.owed_between(from, through).await?);
        Ok(owed)
    }

    fn extend(&mut self, rows: Vec<(String, Seq)>) {
        for (plugin, seq) in rows {
            self.0.entry(seq).or_default().push(plugin);
        }
    }

    /// A plugin that is there waits for this state.
    fn is_held(&self, seq: Seq, plugins: &[(String, PluginProgress)], now_ms: u64) -> bool {
        let is_there = |name: &String| {
            plugins.iter().any(|(other, progress)| other == name && !decide::is_gone(progress, now_ms))
        };
        self.0.get(&seq).is_some_and(|names| names.iter().any(is_there))
    }

    /// The rows of these states.
    pub fn rows_of(&self, taken: &[StateLink]) -> BTreeSet<(String, Seq)> {
        let rows = taken.iter().filter_map(|link| Some((link.seq, self.0.get(&link.seq)?)));
        rows.flat_map(|(seq, names)| names.iter().map(move |name| (name.clone(), seq))).collect()
    }
}

impl SegmentView {
    /// The states of the segment itself.
    pub fn own_states(&self) -> &[StateLink] {
        &self.states[..self.expired.len()]
    }
}

impl SourceFacts {
    /// `in_hand` is given where states may go that plugins have not finished.
    pub async fn of(
        past: &mut dyn RetentionReader,
        source: &str,
        in_hand: Option<u64>,
        newest: Seq,
        now_ms: u64,
    ) -> Result<Self, JournalError> {
        let streams: Vec<i64> = past.streams_of(source).await?.iter().map(|(id, ..)| *id).collect();
        let tallies = past.tallies_of(&streams).await?.into();
        Self::with_tallies(past, source, tallies, in_hand, newest, now_ms).await
    }

    /// The same with tallies that were read before: a pass over many segments must not read all of them for each one.
    /// The writer decides with tallies of its own.
    pub async fn with_tallies(
        past: &mut dyn RetentionReader,
        source: &str,
        tallies: Arc<[SegmentTally]>,
        in_hand: Option<u64>,
        newest: Seq,
        now_ms: u64,
    ) -> Result<Self, JournalError> {
        let known = past.streams_of(source).await?;
        let plugins = past.progress_of_all().await?;
        let holds = plugin_holds(&plugins, source, &tallies, in_hand, now_ms);
        let last = known.last();
        Ok(Self {
            streams: known.iter().map(|(id, ..)| *id).collect(),
            epochs: known.iter().map(|(id, epoch, _)| (*id, *epoch)).collect(),
            newest_stream: last.map_or(0, |(id, ..)| *id),
            checkpoint: last.and_then(|(_, _, checkpoint)| checkpoint.as_deref().map(Version::new)),
            tallies,
            plugins,
            holds,
            newest,
            newest_object: past.newest_object().await?,
            now_ms,
        })
    }

    fn is_settled(&self, row: &LinkRow) -> bool {
        if row.stream != self.newest_stream {
            return true;
        }
        let order = match (row.version(), &self.checkpoint) {
            (Some(version), Some(checkpoint)) => version.compare_to(checkpoint),
            _ => None,
        };
        match order {
            Some(order) => order != std::cmp::Ordering::Greater,
            None => row.observed_ms + UNVERSIONED_MS < self.now_ms,
        }
    }

    /// Past cursors, what a plugin may have in its hands keeps nothing but itself.
    pub fn passes_hold(&self, seq: Seq) -> bool {
        self.holds.iter().any(|hold| hold.through != Seq::MAX && hold.covers(seq))
    }

    /// Finds what keeps a state beyond its source's bounds.
    pub fn find_holder(&self, found: &SegmentView, link: &StateLink) -> RetentionHolder {
        if let Some(hold) = self.holds.iter().find(|hold| hold.covers(link.seq)) {
            return RetentionHolder::Plugin(hold.plugin.clone());
        }
        match () {
            () if found.letters.get(&link.seq) == Some(&true) => RetentionHolder::Dropped,
            () if found.letters.contains_key(&link.seq) => RetentionHolder::DeadLetter,
            () if found.owed.is_held(link.seq, &self.plugins, self.now_ms) => RetentionHolder::DeadLetter,
            () if !link.settled => RetentionHolder::Checkpoint,
            () if link.seq >= self.newest => RetentionHolder::Last,
            () if link.end.live && link.seq >= link.end.newest => RetentionHolder::Live,
            () => RetentionHolder::Older,
        }
    }

    /// Counts the holders of states beyond the bounds, when none of these states can go.
    pub fn count_holders(&self, found: &SegmentView) -> HeldCounts {
        let mut held = HeldCounts::new();
        for (link, _) in found.states.iter().zip(&found.expired).filter(|(_, expired)| **expired) {
            *held.entry(self.find_holder(found, link)).or_default() += 1;
        }
        held
    }

    /// Whether what held a segment's states does so still, as far as that is known without reading them.
    pub fn still_holds(&self, segment: u64, held: &HeldCounts) -> bool {
        let (from, through) = (segment * SEGMENT, (segment + 1) * SEGMENT - 1);
        let holds = |name: &str| {
            let its = self.holds.iter().filter(|hold| hold.plugin == name);
            its.into_iter().any(|hold| hold.after < through && hold.through >= from)
        };
        held.keys().all(|holder| !matches!(holder, RetentionHolder::Plugin(name) if !holds(name)))
    }

    /// The journal's last position stays, since the next one is counted from it; so does the object
    /// with the greatest number.
    fn is_free(&self, link: &StateLink, owed: &OwedPositions) -> bool {
        let numbers = link.end.live || link.object != self.newest_object;
        numbers
            && link.settled
            && link.seq < self.newest
            && !self.holds.iter().any(|hold| hold.covers(link.seq))
            && !owed.is_held(link.seq, &self.plugins, self.now_ms)
    }
}

pub(crate) async fn view_segment(
    past: &mut dyn RetentionReader,
    facts: &SourceFacts,
    cut: &RetentionCut,
    segment: u64,
) -> Result<SegmentView, JournalError> {
    let (from, through) = (segment * SEGMENT, (segment + 1) * SEGMENT - 1);
    let rows = past.links_between(&facts.streams, from, through).await?;
    let letters: HashMap<Seq, bool> = past.letters_between(from, through).await?.into_iter().collect();
    let mut owed = OwedPositions::between(past, from, through).await?;
    let mut states: Vec<StateLink> = rows.iter().map(|row| row.as_link(facts.is_settled(row))).collect();
    let expired = cut.expired_states(segment, &states);
    let is_free = |link: &StateLink, expired: bool| {
        expired && facts.is_free(link, &owed) && !letters.contains_key(&link.seq)
    };
    let mut may_go: Vec<bool> =
        states.iter().zip(&expired).map(|(link, expired)| is_free(link, *expired)).collect();
    complete_objects(past, facts, (cut, through), &mut states, &mut may_go, &mut owed).await?;
    Ok(SegmentView { rows, states, expired, may_go, letters, owed })
}

/// Adds what lies in later segments of objects that have ended, where it has to go with what
/// is here.
async fn complete_objects(
    past: &mut dyn RetentionReader,
    facts: &SourceFacts,
    (cut, through): (&RetentionCut, Seq),
    states: &mut Vec<StateLink>,
    may_go: &mut Vec<bool>,
    owed: &mut OwedPositions,
) -> Result<(), JournalError> {
    let is_first =
        |link: &StateLink| link.seq >= link.end.newest && !link.end.live && link.end.tail > through;
    let firsts = states.iter().zip(may_go.iter());
    let mut ended: BTreeMap<i64, Seq> = BTreeMap::new();
    for (link, _) in firsts.filter(|(link, may_go)| **may_go && is_first(link)) {
        ended.entry(link.object).or_insert(link.seq);
    }
    let mut more = Vec::new();
    for (object, _) in ended {
        let rows = past.links_to(object, through + 1, WHOLE + 1).await?;
        if rows.len() <= WHOLE {
            more.extend(rows);
        }
    }
    more.sort_by_key(|row| row.seq);
    let Some(last) = more.last().map(|row| row.seq) else { return Ok(()) };
    let letters: HashMap<Seq, bool> = past.letters_between(through + 1, last).await?.into_iter().collect();
    owed.extend(past.owed_between(through + 1, last).await?);
    for row in more {
        let link = row.as_link(facts.is_settled(&row));
        // Alone in its segment it may be within the count or the size: that is the segment's
        // to say, so here only the age counts. What is not beyond it keeps the object a while.
        let expired = cut.is_certain(link.seq / SEGMENT, &link);
        may_go.push(expired && facts.is_free(&link, owed) && !letters.contains_key(&link.seq));
        states.push(link);
    }
    Ok(())
}

/// The states of a source that plugins hold.
fn plugin_holds(
    plugins: &[(String, PluginProgress)],
    source: &str,
    tallies: &[SegmentTally],
    in_hand: Option<u64>,
    now_ms: u64,
) -> Vec<PluginHold> {
    let each = plugins.iter();
    let of = |(name, progress): &(String, PluginProgress)| {
        decide::holds_of_plugin(name, progress, source, tallies, in_hand, now_ms)
    };
    each.flat_map(of).collect()
}

fn is_of(progress: &PluginProgress, source: &str, seq: Seq) -> bool {
    if progress.sources.is_empty() && !progress.is_unstarted {
        return seq > progress.start;
    }
    progress.sources.iter().any(|start| {
        &*start.source == source && seq > start.after && start.until.is_none_or(|until| seq <= until)
    })
}

pub(super) fn is_untold(progress: &PluginProgress, source: &str, seq: Seq) -> bool {
    let is_former = || progress.former_cursors.iter().any(|former| former.has_finished(source, seq));
    seq > progress.cursor && is_of(progress, source, seq) && !is_former()
}

/// Counts these states for each plugin.
pub(super) fn count(
    plugins: &[(String, PluginProgress)],
    source: &str,
    taken: &[StateLink],
    owed: &BTreeSet<(String, Seq)>,
) -> BTreeMap<String, TakenStates> {
    let mut counts = BTreeMap::new();
    for (name, progress) in plugins {
        let mut of_it = TakenStates::default();
        for link in taken.iter().filter(|link| is_of(progress, source, link.seq)) {
            match is_untold(progress, source, link.seq) || owed.contains(&(name.clone(), link.seq)) {
                true => of_it.untold += 1,
                false => of_it.finished += 1,
            }
        }
        if of_it != TakenStates::default() {
            counts.insert(name.clone(), of_it);
        }
    }
    counts
}

/// Whether all that a removal was decided on is as it was. Nobody else writes, so that what is found
/// here holds until its transaction.
pub(crate) async fn is_still_valid(
    past: &mut dyn RetentionReader,
    removal: &RemovalPlan,
) -> Result<bool, JournalError> {
    let seqs: Vec<Seq> = removal.taken.iter().map(|link| link.seq).collect();
    let (Some(first), Some(last)) = (seqs.iter().min(), seqs.iter().max()) else { return Ok(false) };
    // Done already, for a caller that left before the answer.
    if past.count_existing(&seqs).await? != seqs.len() {
        return Ok(false);
    }
    let streams = past.streams_of(&removal.source).await?;
    let ended = past.still_ended(&removal.streams, &removal.ends).await?;
    if streams.len() != removal.streams.len() || ended != removal.ends.len() {
        return Ok(false);
    }
    let letters = past.letters_between(*first, *last).await?;
    if letters.iter().any(|(letter, _)| seqs.contains(letter)) {
        return Ok(false);
    }
    let tallies = match removal.in_hand {
        Some(_) => past.tallies_of(&removal.streams).await?,
        None => Vec::new(),
    };
    let owed = OwedPositions::between(past, *first, *last).await?;
    let plugins = past.progress_of_all().await?;
    if owed.rows_of(&removal.taken) != removal.owed
        || seqs.iter().any(|seq| owed.is_held(*seq, &plugins, removal.now_ms))
    {
        return Ok(false);
    }
    let holds = plugin_holds(&plugins, &removal.source, &tallies, removal.in_hand, removal.now_ms);
    let is_held = seqs.iter().any(|seq| holds.iter().any(|hold| hold.covers(*seq)));
    Ok(!is_held && count(&plugins, &removal.source, &removal.taken, &removal.owed) == removal.plugins)
}

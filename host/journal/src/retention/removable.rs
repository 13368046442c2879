//! The facts on which a removal is based: the condition of a source, and which states of a segment may be
//! removed. The writer checks them again when the transaction begins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kubewitness_core::ports::{JournalError, PluginProgress};
use kubewitness_core::{Seq, Version};

use crate::report::RetentionHolder;
use crate::retention::decide::{self, PluginHold, RetentionCut};
use crate::store::RetentionReader;
use crate::store::rows::removal::{LinkRow, RemovalPlan, SegmentTally, StateLink, TakenStates};
use crate::store::rows::{DROPPED, MarkedLetter, OWED_STATE, SEGMENT};

/// When a deletion without a version counts as settled. A deletion that was found by comparing lists has no
/// version, so only its age shows that its watch no longer resumes before it.
const UNVERSIONED_MS: u64 = 10 * 60 * 1000;

/// The most states after an ended object's newest state that one transaction removes.
const WHOLE: usize = 1024;

/// The condition of a source at one moment.
pub(crate) struct SourceFacts {
    pub streams: Vec<i64>,
    /// The stream of the newest epoch, whose watch resumes at `checkpoint`.
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

/// The number of states that each holder keeps.
pub(crate) type HeldCounts = BTreeMap<RetentionHolder, u64>;

/// The states of a segment, and which of them may be removed. They are followed by states of later segments
/// that would have to be removed together with them.
pub(crate) struct SegmentView {
    pub rows: Vec<LinkRow>,
    pub states: Vec<StateLink>,
    /// Whether each of the segment's own states is expired.
    pub expired: Vec<bool>,
    pub may_go: Vec<bool>,
    /// Dead letters, and the states that are owed to plugins.
    pub letters: LetterPositions,
}

/// The dead letters at positions, and the states that are owed to plugins although their cursors have passed
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LetterPositions(HashMap<Seq, Vec<MarkedLetter>>);

impl LetterPositions {
    async fn read_between(
        past: &mut dyn RetentionReader,
        from: Seq,
        through: Seq,
    ) -> Result<Self, JournalError> {
        let mut letters = Self::default();
        letters.extend(past.letters_between(from, through).await?);
        Ok(letters)
    }

    fn extend(&mut self, letters: Vec<MarkedLetter>) {
        for letter in letters {
            self.0.entry(letter.seq).or_default().push(letter);
        }
    }

    /// Whether somebody still waits for this state: an operator could replay a dead letter of it, or it is
    /// owed to a plugin that still exists. A dropped dead letter is never replayed, so it keeps nothing.
    fn is_held(&self, seq: Seq, plugins: &[(String, PluginProgress)], now_ms: u64) -> bool {
        let is_there = |name: &String| {
            plugins.iter().any(|(other, progress)| other == name && !decide::is_gone(progress, now_ms))
        };
        let holds = |letter: &MarkedLetter| match letter.mark {
            DROPPED => false,
            OWED_STATE => is_there(&letter.plugin),
            _ => true,
        };
        self.0.get(&seq).is_some_and(|letters| letters.iter().any(holds))
    }

    /// The rows of owed states to remove together with these states.
    pub fn owed_rows(&self, taken: &[StateLink]) -> BTreeSet<(String, Seq)> {
        self.rows_of(taken, OWED_STATE)
    }

    /// The rows of dropped letters to remove together with these states.
    pub fn dropped_rows(&self, taken: &[StateLink]) -> BTreeSet<(String, Seq)> {
        self.rows_of(taken, DROPPED)
    }

    fn rows_of(&self, taken: &[StateLink], mark: i64) -> BTreeSet<(String, Seq)> {
        let letters = taken.iter().filter_map(|link| self.0.get(&link.seq)).flatten();
        let marked = letters.filter(|letter| letter.mark == mark);
        marked.map(|letter| (letter.plugin.clone(), letter.seq)).collect()
    }
}

impl SegmentView {
    /// The states of the segment itself.
    pub fn own_states(&self) -> &[StateLink] {
        &self.states[..self.expired.len()]
    }
}

impl SourceFacts {
    /// If `in_hand` is given, states that plugins have not finished may be removed.
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

    /// Uses tallies that were read before, because a pass over many segments must not read all tallies for
    /// each of them. The writer decides by its own.
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

    /// Whether removal may continue after this state: it is held only because a plugin may be working on it.
    pub fn passes_hold(&self, seq: Seq) -> bool {
        self.holds.iter().any(|hold| hold.through != Seq::MAX && hold.covers(seq))
    }

    /// Finds the holder of an expired state.
    pub fn find_holder(&self, found: &SegmentView, link: &StateLink) -> RetentionHolder {
        if let Some(hold) = self.holds.iter().find(|hold| hold.covers(link.seq)) {
            return RetentionHolder::Plugin(hold.plugin.clone());
        }
        match () {
            () if found.letters.is_held(link.seq, &self.plugins, self.now_ms) => RetentionHolder::DeadLetter,
            () if !link.settled => RetentionHolder::Checkpoint,
            () if link.seq >= self.newest => RetentionHolder::Last,
            () if link.end.live && link.seq >= link.end.newest => RetentionHolder::Live,
            () => RetentionHolder::Older,
        }
    }

    /// Counts the holders of a segment's expired states, once no more of these can be removed.
    pub fn count_holders(&self, found: &SegmentView) -> HeldCounts {
        let mut held = HeldCounts::new();
        for (link, _) in found.states.iter().zip(&found.expired).filter(|(_, expired)| **expired) {
            *held.entry(self.find_holder(found, link)).or_default() += 1;
        }
        held
    }

    /// Whether the plugins among the holders of a segment still hold it. It reads no states, so it can't
    /// judge other holders.
    pub fn still_holds(&self, segment: u64, held: &HeldCounts) -> bool {
        let (from, through) = (segment * SEGMENT, (segment + 1) * SEGMENT - 1);
        let holds = |name: &str| {
            let plugin_holds = self.holds.iter().filter(|hold| hold.plugin == name);
            plugin_holds.into_iter().any(|hold| hold.after < through && hold.through >= from)
        };
        held.keys().all(|holder| !matches!(holder, RetentionHolder::Plugin(name) if !holds(name)))
    }

    /// The newest position stays, because the next one is counted from it. For the same reason, the object
    /// with the greatest number stays.
    fn is_free(&self, link: &StateLink, letters: &LetterPositions) -> bool {
        let numbers = link.end.live || link.object != self.newest_object;
        numbers
            && link.settled
            && link.seq < self.newest
            && !self.holds.iter().any(|hold| hold.covers(link.seq))
            && !letters.is_held(link.seq, &self.plugins, self.now_ms)
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
    let mut letters = LetterPositions::read_between(past, from, through).await?;
    let mut states: Vec<StateLink> = rows.iter().map(|row| row.as_link(facts.is_settled(row))).collect();
    let expired = cut.expired_states(segment, &states);
    let mut may_go: Vec<bool> = states
        .iter()
        .zip(&expired)
        .map(|(link, expired)| *expired && facts.is_free(link, &letters))
        .collect();
    complete_objects(past, facts, (cut, through), &mut states, &mut may_go, &mut letters).await?;
    Ok(SegmentView { rows, states, expired, may_go, letters })
}

/// Adds later states of ended objects, if they have to be removed together with states of this segment.
async fn complete_objects(
    past: &mut dyn RetentionReader,
    facts: &SourceFacts,
    (cut, through): (&RetentionCut, Seq),
    states: &mut Vec<StateLink>,
    may_go: &mut Vec<bool>,
    letters: &mut LetterPositions,
) -> Result<(), JournalError> {
    let is_first =
        |link: &StateLink| link.seq >= link.end.newest && !link.end.live && link.end.tail > through;
    let firsts = states.iter().zip(may_go.iter());
    let mut ended: BTreeMap<i64, Seq> = BTreeMap::new();
    for (link, _) in firsts.filter(|(link, may_go)| **may_go && is_first(link)) {
        ended.entry(link.object).or_insert(link.seq);
    }
    let mut later_rows = Vec::new();
    for (object, _) in ended {
        let rows = past.links_to(object, through + 1, WHOLE + 1).await?;
        if rows.len() <= WHOLE {
            later_rows.extend(rows);
        }
    }
    later_rows.sort_by_key(|row| row.seq);
    let Some(last) = later_rows.last().map(|row| row.seq) else { return Ok(()) };
    letters.extend(past.letters_between(through + 1, last).await?);
    for row in later_rows {
        let link = row.as_link(facts.is_settled(&row));
        // Whether the count or the size has been reached depends on all states of that segment, so only
        // certain expiry counts. A state that is not certain keeps its object for now.
        let expired = cut.is_certain(link.seq / SEGMENT, &link);
        may_go.push(expired && facts.is_free(&link, letters));
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
        let mut removed = TakenStates::default();
        for link in taken.iter().filter(|link| is_of(progress, source, link.seq)) {
            match is_untold(progress, source, link.seq) || owed.contains(&(name.clone(), link.seq)) {
                true => removed.untold += 1,
                false => removed.finished += 1,
            }
        }
        if removed != TakenStates::default() {
            counts.insert(name.clone(), removed);
        }
    }
    counts
}

/// Whether the facts of a removal still hold. The caller is the only writer, so the answer is valid until its
/// transaction ends.
pub(crate) async fn is_still_valid(
    past: &mut dyn RetentionReader,
    removal: &RemovalPlan,
) -> Result<bool, JournalError> {
    let seqs: Vec<Seq> = removal.taken.iter().map(|link| link.seq).collect();
    let (Some(first), Some(last)) = (seqs.iter().min(), seqs.iter().max()) else { return Ok(false) };
    // An earlier attempt has removed them, but its caller left before the answer.
    if past.count_existing(&seqs).await? != seqs.len() {
        return Ok(false);
    }
    let streams = past.streams_of(&removal.source).await?;
    let ended = past.still_ended(&removal.streams, &removal.ends).await?;
    if streams.len() != removal.streams.len() || ended != removal.ends.len() {
        return Ok(false);
    }
    let tallies = match removal.in_hand {
        Some(_) => past.tallies_of(&removal.streams).await?,
        None => Vec::new(),
    };
    let letters = LetterPositions::read_between(past, *first, *last).await?;
    let plugins = past.progress_of_all().await?;
    if letters.owed_rows(&removal.taken) != removal.owed
        || letters.dropped_rows(&removal.taken) != removal.dropped
        || seqs.iter().any(|seq| letters.is_held(*seq, &plugins, removal.now_ms))
    {
        return Ok(false);
    }
    let holds = plugin_holds(&plugins, &removal.source, &tallies, removal.in_hand, removal.now_ms);
    let is_held = seqs.iter().any(|seq| holds.iter().any(|hold| hold.covers(*seq)));
    Ok(!is_held && count(&plugins, &removal.source, &removal.taken, &removal.owed) == removal.plugins)
}

//! Retention of one source: pass by pass, segment by segment, in small transactions. What may go
//! is decided in `retain`; here it is looked up, and handed to the writer with what it was decided
//! on, so that the writer can refuse what is no longer so.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::document::pack;
use kubewitness_core::ports::{Backlog, JournalError, Progress};
use kubewitness_core::{Gap, Seq, Version};

use crate::journal::Journal;
use crate::plan::SEGMENT;
use crate::read::Reader;
use crate::removal::{LinkRow, Removal, SharedRows, Sweep, Taken};
use crate::report::Retained;
use crate::retain::{self, BATCH, Bounds, Cut, Hold, IN_HAND, Link, Run, Tally};
use crate::rows::{Encoding, Flags, GapRow, StateRow};
use crate::store::Past;

/// Between two transactions, and between two looks at segments: appends and readers go first.
const REST: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(2);

/// States that have to go before rows that many share are looked through, and states of one look.
const SWEEP: u64 = 8 * SEGMENT;
const PAGE: usize = 4096;

/// A segment of which nothing could go is looked at again after so long: what holds its states
/// (an object that is there, a dead letter) seldom lets go of them sooner.
const AGAIN_MS: u64 = 10 * 60 * 1000;

/// A deletion that was found by comparison has no version: only its age tells that its watch is
/// not resumed before it.
const UNVERSIONED_MS: u64 = 10 * 60 * 1000;

/// States behind the newest of an object that has ended, at most, that go in one transaction.
const WHOLE: usize = 1024;

/// Steps from an object's end, and positions of one look, in search of the state after another.
const STEPS: usize = 256;
const WINDOW: u64 = 16 * SEGMENT;

/// Retention of one source, and what it remembers between two passes.
pub struct Retention {
    journal: Journal,
    source: String,
    /// Segments of which nothing could go, and until when they are left alone.
    fruitless: HashMap<u64, u64>,
    in_hand: u64,
    /// States that were taken since rows that many share were looked through.
    taken: u64,
}

/// How a source stands at one moment.
pub(crate) struct Scene {
    pub streams: Vec<i64>,
    /// The stream of the newest epoch, and from where its watch would be resumed.
    newest_stream: i64,
    epochs: HashMap<i64, u32>,
    checkpoint: Option<Version>,
    pub tallies: Vec<Tally>,
    plugins: Vec<(String, Progress)>,
    pub holds: Vec<Hold>,
    pub newest: Seq,
    newest_object: i64,
    pub now_ms: u64,
}

/// A segment's states, and what may go of them. Behind those of the segment lie those that would
/// have to go with them.
pub(crate) struct Look {
    pub rows: Vec<LinkRow>,
    pub states: Vec<Link>,
    /// Of the segment's own.
    pub expired: Vec<bool>,
    pub may_go: Vec<bool>,
    pub letters: HashSet<Seq>,
}

/// What a pass took of each stream that a plugin had not been handed.
#[derive(Clone, Default)]
struct Untold(BTreeMap<i64, Begun>);

#[derive(Clone, Default)]
struct Begun {
    states: u64,
    from: Seq,
    after: String,
    through: Seq,
    before: String,
}

/// The next transaction, and what is told of it once it was done.
struct Step {
    removal: Removal,
    untold: Untold,
}

impl Retention {
    pub fn new(journal: Journal, source: &str) -> Self {
        Self { journal, source: source.to_owned(), fruitless: HashMap::new(), in_hand: IN_HAND, taken: 0 }
    }

    /// How many states a plugin may have read beyond what it saved. For tests, which have fewer.
    #[doc(hidden)]
    pub fn in_hand(mut self, states: u64) -> Self {
        self.in_hand = states;
        self
    }

    /// Takes what may go now. May be dropped at any point.
    pub async fn pass(&mut self, spec: &RetentionSpec) -> Result<Retained, JournalError> {
        let mut told = Retained::default();
        let scene = self.scene(spec).await?;
        let cut = Cut::of(Bounds::of(spec, scene.now_ms), &scene.tallies);
        let mut untold = Untold::default();
        self.fruitless.retain(|_, until| *until > scene.now_ms);
        for tally in &scene.tallies {
            let goes_on = if self.fruitless.contains_key(&tally.segment) {
                true
            } else {
                self.segment(spec, &cut, tally.segment, &mut untold, &mut told).await?
            };
            if !goes_on {
                break;
            }
        }
        if let Some(before_ms) = Bounds::of(spec, scene.now_ms).before_ms {
            self.poison(&scene, before_ms).await?;
        }
        self.taken += told.states;
        let kept: u64 = scene.tallies.iter().map(|tally| tally.states).sum();
        if self.taken >= SWEEP.max(kept / 8) {
            self.sweep().await?;
        }
        Ok(told)
    }

    /// What came and was no object is bounded by its age.
    async fn poison(&self, scene: &Scene, before_ms: u64) -> Result<(), JournalError> {
        loop {
            let mut reader = self.journal.reader().await?;
            let poison = reader.past()?.old_poison(&scene.streams, before_ms, BATCH).await?;
            drop(reader);
            if poison.is_empty() {
                return Ok(());
            }
            self.journal.sweep(Sweep { through: scene.newest, poison, ..Sweep::default() }).await?;
            tokio::time::sleep(REST).await;
        }
    }

    /// Takes rows that states shared and that none of those kept refers to: statuses, anchors,
    /// owners. Reads all states, so it is done seldom.
    pub async fn sweep(&mut self) -> Result<(), JournalError> {
        self.taken = 0;
        let (mut statuses, mut anchors, mut through) = (HashSet::new(), HashSet::new(), 0);
        loop {
            let mut reader = self.journal.reader().await?;
            let found = reader.past()?.references(through, PAGE).await?;
            statuses.extend(found.statuses);
            anchors.extend(found.anchors);
            let Some(last) = found.last else { break };
            through = last;
            tokio::time::sleep(LOOK).await;
        }
        loop {
            let mut reader = self.journal.reader().await?;
            let owned = reader.past()?.orphaned(BATCH).await?;
            drop(reader);
            if owned.is_empty() {
                break;
            }
            self.journal.sweep(Sweep { through, owned, ..Sweep::default() }).await?;
            tokio::time::sleep(REST).await;
        }
        for which in [SharedRows::Statuses, SharedRows::Anchors, SharedRows::Owners] {
            let used = match which {
                SharedRows::Statuses => &statuses,
                SharedRows::Anchors => &anchors,
                SharedRows::Owners => &HashSet::new(),
            };
            self.sweep_unused(which, used, through).await?;
        }
        Ok(())
    }

    async fn sweep_unused(
        &self,
        which: SharedRows,
        used: &HashSet<i64>,
        through: Seq,
    ) -> Result<(), JournalError> {
        let mut after = 0;
        loop {
            let mut reader = self.journal.reader().await?;
            let numbers = reader.past()?.shared(which, after, BATCH).await?;
            drop(reader);
            let Some(last) = numbers.last() else { return Ok(()) };
            after = *last;
            let unused: Vec<i64> = numbers.into_iter().filter(|number| !used.contains(number)).collect();
            if unused.is_empty() {
                continue;
            }
            let mut sweep = Sweep { through, ..Sweep::default() };
            match which {
                SharedRows::Statuses => sweep.statuses = unused,
                SharedRows::Anchors => sweep.anchors = unused,
                SharedRows::Owners => sweep.owners = unused,
            }
            if !self.journal.sweep(sweep).await? {
                // So much came meanwhile that it has to be looked for again, next time.
                return Ok(());
            }
            tokio::time::sleep(REST).await;
        }
    }

    async fn scene(&self, spec: &RetentionSpec) -> Result<Scene, JournalError> {
        let newest = *self.journal.newest().borrow();
        let mut reader = self.journal.reader().await?;
        let in_hand = spec.past_cursors.then_some(self.in_hand);
        Scene::of(reader.past()?, &self.source, in_hand, newest, self.journal.now_ms()).await
    }

    /// Whether a later one has to be looked at.
    async fn segment(
        &mut self,
        spec: &RetentionSpec,
        cut: &Cut,
        segment: u64,
        untold: &mut Untold,
        told: &mut Retained,
    ) -> Result<bool, JournalError> {
        let mut took = false;
        loop {
            // Anew each time: between two transactions, cursors moved and objects ended.
            let scene = self.scene(spec).await?;
            let (expired, step) = self.plan(spec, &scene, cut, segment, untold).await?;
            let goes_on = cut.goes_on(segment, &expired);
            let Some(Step { removal, untold: after }) = step else {
                if !took && goes_on {
                    self.fruitless.insert(segment, scene.now_ms + AGAIN_MS);
                }
                tokio::time::sleep(LOOK).await;
                return Ok(goes_on);
            };
            let (states, bytes) = (removal.taken.len() as u64, removal.bytes());
            let untold_now = removal.plugins.values().map(|taken| taken.untold).max().unwrap_or_default();
            if self.journal.remove(removal).await? {
                took = true;
                *untold = after;
                told.states += states;
                told.bytes += bytes;
                told.untold += untold_now;
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// What of a segment's states is expired, and the next removal.
    async fn plan(
        &self,
        spec: &RetentionSpec,
        scene: &Scene,
        cut: &Cut,
        segment: u64,
        untold: &Untold,
    ) -> Result<(Vec<bool>, Option<Step>), JournalError> {
        let mut reader = self.journal.reader().await?;
        let Look { rows, states, expired, may_go, .. } = look(reader.past()?, scene, cut, segment).await?;
        let runs = retain::batch(retain::select(&states, &may_go, |seq| scene.passes(seq)), BATCH);
        if runs.is_empty() {
            return Ok((expired, None));
        }
        let mut removal = Removal {
            source: self.source.clone(),
            streams: scene.streams.clone(),
            in_hand: spec.past_cursors.then_some(self.in_hand),
            taken: runs.iter().flat_map(|run| run.links.iter().cloned()).collect(),
            ..Removal::default()
        };
        removal.plugins = count(&scene.plugins, &self.source, &removal.taken);
        successors(&mut reader, &runs, scene.newest, &mut removal).await?;
        let untold = self.gaps(scene, &rows, untold.clone(), &mut removal);
        Ok((expired, Some(Step { removal, untold })))
    }

    /// One record a pass and stream, which grows with each transaction.
    fn gaps(&self, scene: &Scene, rows: &[LinkRow], mut untold: Untold, removal: &mut Removal) -> Untold {
        let names: Vec<&str> = removal
            .plugins
            .iter()
            .filter(|(_, taken)| taken.untold > 0)
            .map(|(name, _)| name.as_str())
            .collect();
        let names = names.join(", ");
        let mut by_stream: BTreeMap<i64, Vec<Seq>> = BTreeMap::new();
        for link in &removal.taken {
            if scene.plugins.iter().any(|(_, progress)| is_untold(progress, &self.source, link.seq)) {
                by_stream.entry(link.stream).or_default().push(link.seq);
            }
        }
        let version = |seq: Seq| rows.iter().find(|row| row.seq == seq).and_then(LinkRow::version);
        for (stream, mut seqs) in by_stream {
            seqs.sort_unstable();
            let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else { continue };
            let begun =
                Begun { states: 0, from: *first, after: beside(version(*first), -1), ..Begun::default() };
            let begun = untold.0.entry(stream).or_insert(begun);
            begun.states += seqs.len() as u64;
            if *last > begun.through {
                (begun.through, begun.before) = (*last, beside(version(*last), 1));
            }
            let Begun { states, from, after, through, before } = begun.clone();
            let gap = Gap {
                source: self.source.clone(),
                object: None,
                epoch: scene.epochs.get(&stream).copied().unwrap_or_default(),
                after,
                before,
                reason: "Retention".into(),
                message: format!(
                    "retention took {states} states at positions {from} to {through} that {names} had not been handed"
                ),
                recorded_ms: scene.now_ms,
            };
            let body = serde_json::to_string(&gap).expect("strings and numbers always serialize");
            removal.gaps.push(GapRow { stream, seq: 0, key: format!("retention-{from}"), body });
        }
        untold
    }
}

impl Scene {
    /// `in_hand` is given where states may go that plugins have not finished.
    pub async fn of(
        past: &mut dyn Past,
        source: &str,
        in_hand: Option<u64>,
        newest: Seq,
        now_ms: u64,
    ) -> Result<Self, JournalError> {
        let known = past.streams_of(source).await?;
        let streams: Vec<i64> = known.iter().map(|(id, ..)| *id).collect();
        let tallies = past.tallies_of(&streams).await?;
        let plugins = past.progress_of_all().await?;
        let holds = holds(&plugins, source, &tallies, in_hand);
        let last = known.last();
        Ok(Self {
            streams,
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
            (Some(version), Some(checkpoint)) => version.compare(checkpoint),
            _ => None,
        };
        match order {
            Some(order) => order != std::cmp::Ordering::Greater,
            None => row.observed_ms + UNVERSIONED_MS < self.now_ms,
        }
    }

    /// Past cursors, what a plugin may have in its hands keeps nothing but itself.
    pub fn passes(&self, seq: Seq) -> bool {
        self.holds.iter().any(|hold| hold.through != Seq::MAX && hold.covers(seq))
    }

    /// The journal's last position stays, since the next one is counted from it; so does the object
    /// with the greatest number.
    fn is_free(&self, link: &Link) -> bool {
        let numbers = link.end.live || link.object != self.newest_object;
        numbers
            && link.settled
            && link.seq < self.newest
            && !self.holds.iter().any(|hold| hold.covers(link.seq))
    }
}

pub(crate) async fn look(
    past: &mut dyn Past,
    scene: &Scene,
    cut: &Cut,
    segment: u64,
) -> Result<Look, JournalError> {
    let (from, through) = (segment * SEGMENT, (segment + 1) * SEGMENT - 1);
    let rows = past.links(&scene.streams, from, through).await?;
    let letters: HashSet<Seq> = past.letters_between(from, through).await?.into_iter().collect();
    let mut states: Vec<Link> = rows.iter().map(|row| row.link(scene.is_settled(row))).collect();
    let expired = cut.expired(segment, &states);
    let is_free = |link: &Link, expired: bool| expired && scene.is_free(link) && !letters.contains(&link.seq);
    let mut may_go: Vec<bool> =
        states.iter().zip(&expired).map(|(link, expired)| is_free(link, *expired)).collect();
    complete(past, scene, cut, through, &mut states, &mut may_go).await?;
    Ok(Look { rows, states, expired, may_go, letters })
}

/// Adds what lies in later segments of objects that have ended, where it has to go with what
/// is here.
async fn complete(
    past: &mut dyn Past,
    scene: &Scene,
    cut: &Cut,
    through: Seq,
    states: &mut Vec<Link>,
    may_go: &mut Vec<bool>,
) -> Result<(), JournalError> {
    let is_first = |link: &Link| link.seq >= link.end.newest && !link.end.live && link.end.tail > through;
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
    let letters = match more.last() {
        Some(last) => past.letters_between(through + 1, last.seq).await?.into_iter().collect(),
        None => HashSet::new(),
    };
    for row in more {
        let link = row.link(scene.is_settled(&row));
        // Alone in its segment it may be within the count or the size: that is the segment's
        // to say, so here only the age counts. What is not beyond it keeps the object a while.
        let expired = cut.is_certain(link.seq / SEGMENT, &link);
        may_go.push(expired && scene.is_free(&link) && !letters.contains(&link.seq));
        states.push(link);
    }
    Ok(())
}

/// The version next to one, where versions are numbers.
fn beside(version: Option<Version>, step: i64) -> String {
    let text = version.map(|version| version.to_string()).unwrap_or_default();
    let number = text.parse::<u64>().ok().and_then(|number| number.checked_add_signed(step));
    number.map_or(text, |number| number.to_string())
}

/// What all plugins hold of a source.
pub(crate) fn holds(
    plugins: &[(String, Progress)],
    source: &str,
    tallies: &[Tally],
    in_hand: Option<u64>,
) -> Vec<Hold> {
    let each = plugins.iter();
    each.flat_map(|(name, progress)| retain::holds(name, progress, source, tallies, in_hand)).collect()
}

fn is_of(progress: &Progress, source: &str, seq: Seq) -> bool {
    if progress.sources.is_empty() {
        return seq > progress.start;
    }
    progress.sources.iter().any(|start| {
        &*start.source == source && seq > start.after && start.until.is_none_or(|until| seq <= until)
    })
}

fn is_untold(progress: &Progress, source: &str, seq: Seq) -> bool {
    seq > progress.cursor && is_of(progress, source, seq)
}

/// What these states are to each plugin.
pub(crate) fn count(plugins: &[(String, Progress)], source: &str, taken: &[Link]) -> BTreeMap<String, Taken> {
    let mut counts = BTreeMap::new();
    for (name, progress) in plugins {
        let mut of_it = Taken::default();
        for link in taken.iter().filter(|link| is_of(progress, source, link.seq)) {
            match is_untold(progress, source, link.seq) {
                true => of_it.untold += 1,
                false => of_it.finished += 1,
            }
        }
        if of_it != Taken::default() {
            counts.insert(name.clone(), of_it);
        }
    }
    counts
}

/// Finds the state that follows each run and makes it the first of its object.
async fn successors(
    reader: &mut Reader<'_>,
    runs: &[Run],
    newest: Seq,
    removal: &mut Removal,
) -> Result<(), JournalError> {
    let taken: HashSet<Seq> = removal.taken.iter().map(|link| link.seq).collect();
    let followed: HashSet<Seq> = removal.taken.iter().map(|link| link.before).collect();
    let mut far = Vec::new();
    let mut found: Vec<(Seq, Seq)> = Vec::new();
    for run in runs {
        let Some(last) = run.links.last() else { continue };
        let mut has_later = followed.contains(&last.seq);
        if !has_later {
            let behind = reader.past()?.behind(&removal.streams, last.object, last.seq, STEPS).await?;
            let next = behind.iter().find(|(_, before)| *before == last.seq).map(|(seq, _)| *seq);
            has_later = next.is_some() || behind.len() >= STEPS;
            match next {
                Some(next) => found.push((next, run.root)),
                None if has_later => far.push((last.seq, run.root)),
                None => {}
            }
        }
        if run.is_all() {
            removal.ends.push((last.object, last.seq, has_later));
            removal.objects.push(last.object);
        } else if !has_later {
            return Err(JournalError::Fatal(format!("state {}: nothing of its object follows it", last.seq)));
        }
    }
    found.extend(search(reader, far, newest).await?);
    for (seq, root) in found.into_iter().filter(|(seq, _)| !taken.contains(seq)) {
        let (row, stream, growth) = rebased(reader, seq, root).await?;
        removal.growth.push((seq, stream, growth));
        removal.rebased.push(row);
    }
    Ok(())
}

/// The states that point back to these, where they lie far from the ends of their chains: of
/// objects that change so often, the next is near.
async fn search(
    reader: &mut Reader<'_>,
    ends: Vec<(Seq, Seq)>,
    newest: Seq,
) -> Result<Vec<(Seq, Seq)>, JournalError> {
    let mut found = Vec::new();
    let roots: HashMap<Seq, Seq> = ends.iter().copied().collect();
    let mut seqs: Vec<Seq> = ends.iter().map(|(seq, _)| *seq).collect();
    let mut after = seqs.iter().copied().min().unwrap_or(newest);
    while !seqs.is_empty() && after < newest {
        for (before, seq) in reader.past()?.pointing(&seqs, after, after + WINDOW).await? {
            seqs.retain(|seq| *seq != before);
            found.push((seq, roots.get(&before).copied().unwrap_or_default()));
        }
        after += WINDOW;
    }
    match seqs.first() {
        None => Ok(found),
        Some(seq) => Err(JournalError::Fatal(format!("state {seq}: nothing of its object follows it"))),
    }
}

/// A state as the first of its object, or the first behind a hole: it needs none before it.
/// Also its stream, and by how many bytes it grows.
async fn rebased(reader: &mut Reader<'_>, seq: Seq, root: Seq) -> Result<(StateRow, i64, i64), JournalError> {
    let missing = || JournalError::Fatal(format!("state {seq}: it is not there"));
    let (mut envelope, mut document, stream) = reader.past()?.stored_at(seq).await?.ok_or_else(missing)?;
    let before = document.len() as i64;
    if envelope.flags.encoding == Encoding::Delta {
        let whole = reader.whole(seq).await?.ok_or_else(missing)?;
        document = pack(&whole).to_vec();
        envelope.flags = Flags { encoding: Encoding::Full, depth: 0, ..envelope.flags };
        envelope.anchor = None;
    }
    envelope.back = if root == 0 { 0 } else { seq - root };
    let growth = document.len() as i64 - before;
    Ok((StateRow { envelope, document }, stream, growth))
}

/// Whether all that a removal was decided on is as it was. Nobody else writes, so that what is found
/// here holds until its transaction.
pub(crate) async fn is_still_so(past: &mut dyn Past, removal: &Removal) -> Result<bool, JournalError> {
    let seqs: Vec<Seq> = removal.taken.iter().map(|link| link.seq).collect();
    let (Some(first), Some(last)) = (seqs.iter().min(), seqs.iter().max()) else { return Ok(false) };
    // Done already, by a caller that was gone before it was told.
    if past.there(&seqs).await? != seqs.len() {
        return Ok(false);
    }
    let streams = past.streams_of(&removal.source).await?;
    let ended = past.still_ended(&removal.streams, &removal.ends).await?;
    if streams.len() != removal.streams.len() || ended != removal.ends.len() {
        return Ok(false);
    }
    let letters = past.letters_between(*first, *last).await?;
    if letters.iter().any(|letter| seqs.contains(letter)) {
        return Ok(false);
    }
    let tallies = match removal.in_hand {
        Some(_) => past.tallies_of(&removal.streams).await?,
        None => Vec::new(),
    };
    let plugins = past.progress_of_all().await?;
    let holds = holds(&plugins, &removal.source, &tallies, removal.in_hand);
    let is_held = seqs.iter().any(|seq| holds.iter().any(|hold| hold.covers(*seq)));
    Ok(!is_held && count(&plugins, &removal.source, &removal.taken) == removal.plugins)
}

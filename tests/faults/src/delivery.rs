//! Finds states of the journal that a plugin was not handed as it should be.
//!
//! Every state of a subscription takes effect in the order of its object, or is parked as a dead letter, or waits
//! behind one where the operator wants that. Where receipts are kept, it takes effect once. A plugin's durable
//! progress never claims more than that, and the figures add up.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use kubewitness_core::ports::PluginProgress;
use kubewitness_core::{Seq, StateId};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeliveryBreach {
    /// A state neither took effect, nor is parked, nor waits behind one that is.
    Lost,
    /// It took effect twice, although receipts are kept.
    Twice,
    /// It took effect after a later one of its object.
    Order,
    /// The progress says of a state that it is finished, and it isn't.
    Ahead,
    /// A state that the subscription doesn't want, or that is in no journal, took effect.
    Uncalled,
    /// observed = delivered + filtered + dead + waiting does not hold.
    Sum,
    /// Two calls had states of one object at the same time.
    Together,
    /// Something that must settle had not within its time.
    Late,
    /// A journal whose last write is in doubt was written to again.
    Doubted,
}

/// One breach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBreach {
    pub breach: DeliveryBreach,
    pub about: String,
}

impl fmt::Display for FoundBreach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.breach, self.about)
    }
}

/// A state of the journal within a subscription.
#[derive(Clone, Debug)]
pub struct DueState {
    pub seq: Seq,
    pub id: StateId,
    /// The object, by its name.
    pub lane: String,
    /// Otherwise the subscription's mode leaves it out.
    pub wanted: bool,
}

/// One state's effect at the sink, in the order in which they came.
#[derive(Clone, Debug)]
pub struct SinkEffect {
    pub id: StateId,
    /// Which start of the dispatcher.
    pub life: u32,
}

/// A plugin's account at one moment.
#[derive(Clone, Debug)]
pub struct PluginAccount {
    pub plugin: String,
    /// By position.
    pub due: Vec<DueState>,
    pub effects: Vec<SinkEffect>,
    /// Parked, and whether it is taken back.
    pub letters: BTreeMap<Seq, bool>,
    /// Not finished, although the progress has passed them.
    pub owed: BTreeSet<Seq>,
    /// All that ever were parked: those that are replayed come late.
    pub ever_parked: BTreeSet<Seq>,
    pub progress: PluginProgress,
    /// Receipts are kept with the effects.
    pub once: bool,
    /// A dead letter holds its lane.
    pub hold: bool,
    /// Nothing is under way, so that all that can be there must be.
    pub quiet: bool,
}

impl PluginAccount {
    pub fn judge(&self) -> Vec<FoundBreach> {
        let mut found = FoundBreaches(&self.plugin, Vec::new());
        let took: HashSet<&StateId> = self.effects.iter().map(|effect| &effect.id).collect();
        self.finished(&took, &mut found);
        self.called(&mut found);
        self.ordered(&mut found);
        if self.quiet {
            self.complete(&took, &mut found);
        }
        found.1
    }

    fn is_finished(&self, seq: Seq) -> bool {
        let above = &self.progress.above;
        let is_passed =
            seq <= self.progress.cursor || above.iter().any(|(first, last)| (*first..=*last).contains(&seq));
        is_passed && !self.owed.contains(&seq)
    }

    /// Checks the durable part of the progress, and its sums.
    fn finished(&self, took: &HashSet<&StateId>, found: &mut FoundBreaches<'_>) {
        let (mut wanted, mut filtered) = (0, 0);
        for due in self.due.iter().filter(|due| self.is_finished(due.seq)) {
            if !due.wanted {
                filtered += 1;
                continue;
            }
            wanted += 1;
            if !took.contains(&due.id) && !self.letters.contains_key(&due.seq) {
                found.add(
                    DeliveryBreach::Ahead,
                    format!("{} at {} is finished, and nobody had it", due.id, due.seq),
                );
            }
        }
        let (progress, letters) = (&self.progress, self.letters.len() as u64);
        if progress.filtered != filtered || progress.delivered + letters != wanted {
            let kept = (progress.delivered, progress.filtered);
            let about = format!("{kept:?} delivered and filtered, {letters} parked, of {wanted}+{filtered}");
            found.add(DeliveryBreach::Sum, about);
        }
    }

    fn called(&self, found: &mut FoundBreaches<'_>) {
        let wanted: HashSet<&StateId> = self.due.iter().filter(|due| due.wanted).map(|due| &due.id).collect();
        let mut seen = HashSet::new();
        for SinkEffect { id, .. } in &self.effects {
            if !wanted.contains(id) {
                found.add(DeliveryBreach::Uncalled, format!("{id} took effect"));
            }
            if !seen.insert(id) && self.once {
                found.add(DeliveryBreach::Twice, format!("{id} took effect twice"));
            }
        }
    }

    fn ordered(&self, found: &mut FoundBreaches<'_>) {
        let due: HashMap<&StateId, &DueState> = self.due.iter().map(|due| (&due.id, due)).collect();
        let mut first: HashMap<&str, Seq> = HashMap::new();
        let mut in_life: HashMap<(u32, &str), Seq> = HashMap::new();
        let mut seen = HashSet::new();
        for SinkEffect { id, life } in &self.effects {
            let Some(due) = due.get(id) else { continue };
            // What is taken back under `continue` comes late, as the operator wanted it.
            if self.ever_parked.contains(&due.seq) && !self.hold {
                continue;
            }
            let last = if seen.insert(id) {
                first.entry(&due.lane).or_default()
            } else {
                in_life.entry((*life, &due.lane)).or_default()
            };
            if due.seq < *last {
                found.add(DeliveryBreach::Order, format!("{id} at {} took effect after {last}", due.seq));
            }
            *last = due.seq.max(*last);
            let last = in_life.entry((*life, &due.lane)).or_default();
            *last = due.seq.max(*last);
        }
    }

    /// Wanted states that wait behind a dead letter which holds its lane.
    pub fn held_count(&self) -> u64 {
        if !self.hold {
            return 0;
        }
        let mut holders: HashMap<&str, Seq> = HashMap::new();
        for due in self.due.iter().filter(|due| self.letters.contains_key(&due.seq)) {
            holders.entry(&due.lane).or_insert(due.seq);
        }
        let behind = |due: &&DueState| holders.get(due.lane.as_str()).is_some_and(|holder| *holder < due.seq);
        let waits = |due: &&DueState| due.wanted && !self.letters.contains_key(&due.seq);
        self.due.iter().filter(waits).filter(behind).count() as u64
    }

    fn complete(&self, took: &HashSet<&StateId>, found: &mut FoundBreaches<'_>) {
        let mut missing = Vec::new();
        for due in self.due.iter().filter(|due| due.wanted && !self.letters.contains_key(&due.seq)) {
            if !took.contains(&due.id) {
                missing.push(due);
            }
        }
        let held = self.held_count();
        if missing.len() as u64 > held {
            let ids: Vec<_> = missing.iter().take(5).map(|due| (due.seq, due.id.as_str())).collect();
            let many = missing.len();
            found.add(
                DeliveryBreach::Lost,
                format!("{many} states had no effect and {held} may wait: {ids:?}"),
            );
        }
        let dead = self.letters.values().filter(|replaying| !**replaying).count() as u64;
        if self.progress.dead != dead {
            found.add(DeliveryBreach::Sum, format!("{} are parked and {} counted", dead, self.progress.dead));
        }
    }
}

struct FoundBreaches<'a>(&'a str, Vec<FoundBreach>);

impl FoundBreaches<'_> {
    fn add(&mut self, breach: DeliveryBreach, about: impl fmt::Display) {
        self.1.push(FoundBreach { breach, about: format!("{}: {about}", self.0) });
    }
}

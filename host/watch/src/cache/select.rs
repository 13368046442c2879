//! Searches the cache. It takes a page of candidates under the lock and does everything else outside of it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use kubewitness_core::index::{IndexError, Indexes, Key};
use kubewitness_core::ports::{Current, Selected, Selection};
use kubewitness_core::state::Status;
use kubewitness_core::views::{Counts, NAMESPACES};

use super::record::{Kind, Read};
use super::{Cache, Kept, Slot};

/// The candidates of one hold of the lock, which takes some microseconds.
const PAGE: usize = 256;

/// Pages up to this size, newest first, are taken from the index over positions.
const ORDERED: usize = 1024;

/// Documents that one page of such a search reads: some 100 ms.
const READ: usize = 4_000;

/// Where the candidates come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    All,
    Name(Slot),
    Keyed(u32),
    /// Newest change first.
    Newest,
    Nothing,
}

/// The records at one moment, and the slot at which the next page begins.
pub(crate) struct Page {
    found: Vec<(Slot, Kept, Arc<Status>)>,
    kind: Option<Arc<Kind>>,
    pub next: Option<Slot>,
    /// With [`Plan::Newest`]: below which position the next page begins.
    pub below: Option<u64>,
}

impl Cache {
    /// The plan with the fewest candidates.
    pub fn plan(&self, search: &Search<'_>) -> Plan {
        let selection = search.selection;
        if let (Some(namespace), Some(name)) = (&selection.namespace, &selection.name) {
            return self.slot_of_name(namespace, name).map_or(Plan::Nothing, Plan::Name);
        }
        let namespace = selection.namespace.as_deref().map(Key::Namespace);
        let labels = selection.labels.equalities().map(|(key, value)| Key::Label(key, value));
        let keys = search.key.into_iter().chain(namespace).chain(labels);
        let hashes = keys.map(|key| self.keyer.hash(key));
        let fewest = hashes.map(|hash| (self.by_key.estimate(hash), hash)).min();
        // A search reads documents, so it must be one that ends early.
        let is_ordered = selection.newest && (selection.limit <= ORDERED || selection.search.is_some());
        match fewest {
            Some((few, hash)) if !is_ordered || few < self.len() / 8 => Plan::Keyed(hash),
            _ if is_ordered => Plan::Newest,
            _ => Plan::All,
        }
    }

    /// The objects that changed last before a position. An object that changes between two pages is newer than
    /// both, and in neither.
    pub fn newest_page(&self, below: u64) -> Page {
        let slots: Vec<(u64, Slot)> = self.by_seq.range(..(below, 0)).rev().take(PAGE).copied().collect();
        let below = slots.last().filter(|_| slots.len() == PAGE).map(|(seq, _)| *seq);
        let held = |(_, slot): (u64, Slot)| {
            self.at(slot).map(|held| (slot, held.kept.clone(), Arc::clone(&held.status)))
        };
        let found = slots.into_iter().filter_map(held).collect();
        Page { found, kind: self.kind.clone(), next: None, below }
    }

    pub fn page(&self, plan: Plan, from: Slot) -> Page {
        let slots: Vec<Slot> = match plan {
            Plan::All => (from..self.slots.len() as Slot).take(PAGE).collect(),
            Plan::Name(slot) => (slot >= from).then_some(slot).into_iter().collect(),
            Plan::Keyed(hash) => self.by_key.from(hash, from).take(PAGE).collect(),
            Plan::Newest | Plan::Nothing => Vec::new(),
        };
        let next = (slots.len() == PAGE).then(|| slots[PAGE - 1] + 1);
        let held = |slot: Slot| self.at(slot).map(|held| (slot, held.kept.clone(), Arc::clone(&held.status)));
        Page {
            found: slots.into_iter().filter_map(held).collect(),
            kind: self.kind.clone(),
            next,
            below: None,
        }
    }

    pub fn indexes(&self) -> Arc<Indexes> {
        Arc::clone(&self.keyer.indexes)
    }
}

/// A selection that fits the source's indexes, and the objects found so far.
pub(crate) struct Search<'s> {
    selection: &'s Selection,
    key: Option<Key<'s>>,
    indexes: &'s Indexes,
    found: Vec<Current>,
    newest: BinaryHeap<Reverse<Newest>>,
    next: Option<Slot>,
    read: usize,
    looked: Option<u64>,
}

struct Newest {
    seq: u64,
    kept: Kept,
    status: Arc<Status>,
    kind: Arc<Kind>,
}

impl PartialEq for Newest {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}

impl Eq for Newest {}

impl PartialOrd for Newest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Newest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.seq.cmp(&other.seq)
    }
}

impl<'s> Search<'s> {
    pub fn new(selection: &'s Selection, indexes: &'s Indexes) -> Result<Self, IndexError> {
        let key = selection.index.as_ref().map(|(name, key)| indexes.key(name, key)).transpose()?;
        Ok(Self {
            selection,
            key,
            indexes,
            found: Vec::new(),
            newest: BinaryHeap::new(),
            next: None,
            read: 0,
            looked: None,
        })
    }

    /// Takes the matches of a page. Returns `true` once the search needs no more.
    pub fn take(&mut self, page: Page) -> bool {
        let Some(kind) = page.kind else { return true };
        let limit = self.selection.limit;
        for (slot, kept, status) in page.found {
            let read = kept.read();
            if self.selection.newest {
                if self.selection.before.is_some_and(|before| read.seq >= before) {
                    continue;
                }
                let old = self.newest.len() >= limit
                    && self.newest.peek().is_none_or(|Reverse(oldest)| oldest.seq >= read.seq);
                if old || !self.matches(&read, &status) {
                    continue;
                }
                let (seq, kind) = (read.seq, Arc::clone(&kind));
                self.newest.push(Reverse(Newest { seq, kept, status, kind }));
                if self.newest.len() > limit {
                    self.newest.pop();
                }
            } else if self.matches(&read, &status) {
                if self.found.len() >= limit {
                    self.next = Some(slot);
                    return true;
                }
                self.found.push(read.current(&kind, status));
            }
        }
        false
    }

    /// Takes the matches of a page that is newest first. Returns `true` once the search needs no more.
    pub fn take_newest(&mut self, page: Page) -> bool {
        let below = page.below;
        let is_over = self.take(page);
        if let Some(below) = below.filter(|_| !is_over && self.read >= READ) {
            self.looked = Some(below);
            return true;
        }
        is_over || self.newest.len() >= self.selection.limit
    }

    /// Counts the matches of a page.
    pub fn tally(&mut self, page: Page, counts: &mut Counts) {
        for (_, kept, status) in page.found {
            let read = kept.read();
            if !self.matches(&read, &status) {
                continue;
            }
            match counts.phases.get_mut(&status.phase) {
                Some(count) => *count += 1,
                None => drop(counts.phases.insert(status.phase.clone(), 1)),
            }
            if !counts.namespaces.contains(read.namespace) && counts.namespaces.len() < NAMESPACES {
                counts.namespaces.insert(read.namespace.to_owned());
            }
        }
    }

    /// The objects found, and the slot from which a further search begins.
    pub fn end(self) -> Selected {
        let Self { found, next, looked, .. } = self;
        if !self.selection.newest {
            return Selected { objects: found, next, looked: None };
        }
        // The heap holds reversed values, so this is ascending: the newest comes first.
        let newest = self.newest.into_sorted_vec().into_iter();
        let current = |Reverse(Newest { kept, status, kind, .. })| kept.read().current(&kind, status);
        Selected { objects: newest.map(current).collect(), next: None, looked }
    }

    /// Runs the cheap tests first. It unpacks the document only if nothing else can tell.
    fn matches(&mut self, read: &Read<'_>, status: &Status) -> bool {
        let Selection { namespace, name, phase, labels, search, .. } = self.selection;
        if namespace.as_deref().is_some_and(|namespace| namespace != read.namespace)
            || name.as_deref().is_some_and(|name| name != read.name)
            || phase.as_deref().is_some_and(|phase| !phase.eq_ignore_ascii_case(&status.phase))
        {
            return false;
        }
        let wanted = match self.key {
            Some(Key::Namespace(namespace)) if namespace != read.namespace => return false,
            Some(Key::Owner(uid)) if read.owner_is(uid) => None,
            Some(Key::Namespace(_)) => None,
            key => key,
        };
        let search = search.as_ref().filter(|search| !search.fits_name(read.name, &read.uid.text()));
        if wanted.is_none() && labels.is_empty() && search.is_none() {
            return true;
        }
        self.read += 1;
        let Ok(document) = read.document.read() else { return false };
        if search.is_some_and(|search| !search.fits_document(&document)) {
            return false;
        }
        if wanted.is_none() && labels.is_empty() {
            return true;
        }
        let mut has_key = wanted.is_none();
        let mut own: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
        let scanned = self.indexes.keys(&document, |key| {
            has_key |= wanted == Some(key);
            if let (Key::Label(key, value), false) = (key, labels.is_empty()) {
                own.push((key.to_owned().into(), value.to_owned().into()));
            }
        });
        let value = |key: &str| own.iter().find(|(label, _)| label == key).map(|(_, value)| &**value);
        scanned.is_ok() && has_key && labels.matches(value)
    }
}

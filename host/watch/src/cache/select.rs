//! Searches the cache. It takes a page of candidates under the lock and does everything else outside of it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use kubewitness_core::index::{IndexError, Indexes, Key};
use kubewitness_core::ports::{Current, Selection};
use kubewitness_core::state::Status;

use super::record::{Kind, Read};
use super::{Cache, Kept, Slot};

/// The candidates of one hold of the lock, which takes some microseconds.
const PAGE: usize = 256;

/// Where the candidates come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    All,
    Name(Slot),
    Keyed(u32),
    Nothing,
}

/// The records at one moment, and the slot at which the next page begins.
pub(crate) struct Page {
    found: Vec<(Slot, Kept, Arc<Status>)>,
    kind: Option<Arc<Kind>>,
    pub next: Option<Slot>,
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
        hashes.min_by_key(|hash| self.by_key.estimate(*hash)).map_or(Plan::All, Plan::Keyed)
    }

    pub fn page(&self, plan: Plan, from: Slot) -> Page {
        let slots: Vec<Slot> = match plan {
            Plan::All => (from..self.slots.len() as Slot).take(PAGE).collect(),
            Plan::Name(slot) => (slot >= from).then_some(slot).into_iter().collect(),
            Plan::Keyed(hash) => self.by_key.from(hash, from).take(PAGE).collect(),
            Plan::Nothing => Vec::new(),
        };
        let next = (slots.len() == PAGE).then(|| slots[PAGE - 1] + 1);
        let held = |slot: Slot| self.at(slot).map(|held| (slot, held.kept.clone(), Arc::clone(&held.status)));
        Page { found: slots.into_iter().filter_map(held).collect(), kind: self.kind.clone(), next }
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
        Ok(Self { selection, key, indexes, found: Vec::new(), newest: BinaryHeap::new(), next: None })
    }

    /// Takes the matches of a page. Returns `true` once the search needs no more.
    pub fn take(&mut self, page: Page) -> bool {
        let Some(kind) = page.kind else { return true };
        let limit = self.selection.limit;
        for (slot, kept, status) in page.found {
            let read = kept.read();
            if self.selection.newest {
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

    /// The objects found, and the slot from which a further search begins.
    pub fn end(self) -> (Vec<Current>, Option<Slot>) {
        if !self.selection.newest {
            return (self.found, self.next);
        }
        // The heap holds reversed values, so this is ascending: the newest comes first.
        let newest = self.newest.into_sorted_vec().into_iter();
        let current = |Reverse(Newest { kept, status, kind, .. })| kept.read().current(&kind, status);
        (newest.map(current).collect(), None)
    }

    /// Runs the cheap tests first. It unpacks the document only if nothing else can tell.
    fn matches(&self, read: &Read<'_>, status: &Status) -> bool {
        let Selection { namespace, name, phase, labels, .. } = self.selection;
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
        if wanted.is_none() && labels.is_empty() {
            return true;
        }
        let Ok(document) = read.document.read() else { return false };
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

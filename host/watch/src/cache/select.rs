//! Searches the cache. It takes a page of candidates under the lock and does everything else outside of it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use kubewitness_core::index::{IndexError, IndexKey, IndexSet};
use kubewitness_core::order::{ObjectOrder, OrderKey, OrderPosition};
use kubewitness_core::ports::{CurrentObject, ObjectSelection, SelectedObjects};
use kubewitness_core::search_filter::SearchGrams;
use kubewitness_core::state::Status;
use kubewitness_core::views::{NAMESPACES, ObjectCounts};

use super::record::SourceKind;
use super::{CacheSlot, ObjectCache, SlotContent, StoredObject};

/// How many candidates are taken under the lock at once, which takes some microseconds.
const PAGE: usize = 256;

/// Pages up to this size are read from the index of their order.
const ORDERED: usize = 1024;

/// How many documents one page of such a search reads: some 100 ms.
const READ: usize = 4_000;

/// How many signatures are tested under the lock at once, which takes some 100 microseconds.
const SIGNATURES: usize = 16 * 1024;

/// The source of the candidates.
#[derive(Clone, Debug)]
pub(crate) enum SelectPlan {
    All,
    Name(CacheSlot),
    Keyed(u32),
    /// The slots of a phase, or those whose signatures match, as of the start of the search.
    Slots(Vec<CacheSlot>),
    /// In the selection's order.
    Ordered,
    Nothing,
}

/// The records at one moment, and the start of the next page.
pub(crate) struct RecordPage {
    found: Vec<SelectCandidate>,
    kind: Option<Arc<SourceKind>>,
    /// The next slot of a plan without an order.
    pub next: Option<CacheSlot>,
    /// With [`SelectPlan::Ordered`].
    pub beyond: Option<OrderPosition>,
}

struct SelectCandidate {
    slot: CacheSlot,
    kept: StoredObject,
    status: Arc<Status>,
    /// Whether its document may match the search.
    may_be_documented: bool,
}

impl ObjectCache {
    /// The plan with the fewest candidates, as far as the indexes show.
    pub fn plan_search(&self, search: &SelectSearch<'_>) -> SelectPlan {
        let selection = search.selection;
        if let (Some(namespace), Some(name)) = (&selection.namespace, &selection.name) {
            return self.slot_of_name(namespace, name).map_or(SelectPlan::Nothing, SelectPlan::Name);
        }
        let of_namespace = selection.namespace.as_deref().filter(|_| search.walks_namespaces());
        let namespace =
            selection.namespace.as_deref().filter(|_| of_namespace.is_none()).map(IndexKey::Namespace);
        let labels = selection.labels.required_equalities().map(|(key, value)| IndexKey::Label(key, value));
        let keys = search.key.into_iter().chain(namespace).chain(labels);
        let hashes = keys.filter_map(|key| self.keyer.hash_key(key));
        let fewest = hashes.map(|hash| (self.by_key.estimate_slots(hash), hash)).min();
        // A search reads documents, so it must be able to end early.
        let is_ordered =
            selection.order.is_some() && (selection.limit <= ORDERED || selection.search.is_some());
        // A phase that is searched in the order of changes needs no plan of its own.
        let phase = selection.phase.as_deref().filter(|_| !search.walks_phases());
        let phase = phase.map(|phase| (self.orders.in_phase(phase), phase));
        let most = match of_namespace {
            _ if selection.search.is_some() => READ,
            Some(namespace) => self.orders.in_namespace(namespace),
            None => self.len() / 8,
        };
        let is_few = |few: usize| !is_ordered || few < most;
        match (fewest, phase) {
            (fewest, Some((few, phase))) if is_few(few) && fewest.is_none_or(|(keyed, _)| few < keyed) => {
                SelectPlan::Slots(self.orders.slots_in_phase(phase))
            }
            (Some((few, hash)), _) if is_few(few) => SelectPlan::Keyed(hash),
            _ if is_ordered => SelectPlan::Ordered,
            _ => SelectPlan::All,
        }
    }

    /// The objects of the selection's order after a position. An object that changes between two pages may be
    /// in neither.
    pub fn ordered_page(&self, search: &SelectSearch<'_>, beyond: Option<&OrderPosition>) -> RecordPage {
        let (order, selection) = (search.order, search.selection);
        let among = (selection.namespace.as_deref(), selection.phase.as_deref());
        let slots = self.orders.page_of_slots(&self.slots, order, among, beyond, PAGE);
        let last = slots.last().filter(|_| slots.len() == PAGE).and_then(|slot| self.content_at(*slot));
        let beyond = last.map(|held| held.kept.read().position_in(order, &held.status));
        RecordPage { found: self.candidates_in(search, &slots), kind: self.kind.clone(), next: None, beyond }
    }

    pub fn page_of_records(
        &self,
        search: &SelectSearch<'_>,
        plan: &SelectPlan,
        from: CacheSlot,
    ) -> RecordPage {
        let slots: Vec<CacheSlot> = match plan {
            SelectPlan::All => (from..self.slots.len() as CacheSlot).take(PAGE).collect(),
            SelectPlan::Name(slot) => (*slot >= from).then_some(*slot).into_iter().collect(),
            SelectPlan::Keyed(hash) => self.by_key.from(*hash, from).take(PAGE).collect(),
            SelectPlan::Slots(all) => {
                let first = all.partition_point(|slot| *slot < from);
                all[first..].iter().take(PAGE).copied().collect()
            }
            SelectPlan::Ordered | SelectPlan::Nothing => Vec::new(),
        };
        let next = (slots.len() == PAGE).then(|| slots[PAGE - 1] + 1);
        RecordPage { found: self.candidates_in(search, &slots), kind: self.kind.clone(), next, beyond: None }
    }

    /// The objects in these slots that their signatures do not rule out.
    fn candidates_in(&self, search: &SelectSearch<'_>, slots: &[CacheSlot]) -> Vec<SelectCandidate> {
        let held = |slot: &CacheSlot| {
            let may_be_documented = self.may_match(search, *slot)?;
            let SlotContent { kept, status } = self.content_at(*slot)?;
            Some(SelectCandidate {
                slot: *slot,
                kept: kept.clone(),
                status: Arc::clone(status),
                may_be_documented,
            })
        };
        slots.iter().filter_map(held).collect()
    }

    /// Whether the object's document may match the search; `None` if the object is ruled out.
    fn may_match(&self, search: &SelectSearch<'_>, slot: CacheSlot) -> Option<bool> {
        let Some(grams) = &search.grams else { return Some(true) };
        let signature = self.signatures.get(slot as usize)?;
        let may_be_documented = signature.may_be_documented(grams);
        (may_be_documented || signature.may_be_named(grams)).then_some(may_be_documented)
    }

    /// Adds the slots from this one on whose signatures match. Returns the start of the next call.
    pub fn add_passing(
        &self,
        search: &SelectSearch<'_>,
        from: CacheSlot,
        passing: &mut Vec<CacheSlot>,
    ) -> Option<CacheSlot> {
        let to = self.slots.len().min(from as usize + SIGNATURES) as CacheSlot;
        passing.extend((from..to).filter(|slot| self.may_match(search, *slot).is_some()));
        ((to as usize) < self.slots.len()).then_some(to)
    }

    /// Counts a selection, if that is possible without reading objects. Returns `false` for any other
    /// selection.
    pub fn tally_by_index(&self, selection: &ObjectSelection, counts: &mut ObjectCounts) -> bool {
        let ObjectSelection { namespace, name, phase, labels, index, search, created_since_ms, .. } =
            selection;
        let is_plain = name.is_none() && labels.is_empty() && index.is_none() && search.is_none();
        if is_plain && created_since_ms.is_none() {
            self.orders.tally_objects(namespace.as_deref(), phase.as_deref(), counts);
            return true;
        }
        false
    }

    pub fn index_set(&self) -> Arc<IndexSet> {
        Arc::clone(&self.keyer.indexes)
    }
}

/// A selection that the source's indexes support, and the objects found so far.
pub(crate) struct SelectSearch<'s> {
    selection: &'s ObjectSelection,
    order: ObjectOrder,
    key: Option<IndexKey<'s>>,
    grams: Option<SearchGrams>,
    indexes: &'s IndexSet,
    found: Vec<CurrentObject>,
    /// With an order: its first objects, the last of them on top.
    first: BinaryHeap<RankedObject>,
    next: Option<CacheSlot>,
    read: usize,
    /// The last object whose document was read.
    last_read: Option<OrderPosition>,
    looked: Option<OrderPosition>,
}

/// An object that comes after others in an order is greater than they are.
struct RankedObject {
    order: ObjectOrder,
    place: OrderPosition,
    slot: CacheSlot,
    kept: StoredObject,
    status: Arc<Status>,
    kind: Arc<SourceKind>,
}

impl PartialEq for RankedObject {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for RankedObject {}

impl PartialOrd for RankedObject {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RankedObject {
    fn cmp(&self, other: &Self) -> Ordering {
        let ascending = self.place.cmp(&other.place);
        if self.order.is_descending() { ascending.reverse() } else { ascending }
    }
}

impl<'s> SelectSearch<'s> {
    pub fn new(selection: &'s ObjectSelection, indexes: &'s IndexSet) -> Result<Self, IndexError> {
        let key = selection.index.as_ref().map(|(name, key)| indexes.key(name, key)).transpose()?;
        if let (Some(rules), Some((name, _)), Some(key)) = (&selection.rules, &selection.index, &key) {
            indexes.check_query_allowed(rules, name, key)?;
        }
        Ok(Self {
            selection,
            order: selection.order.unwrap_or_default(),
            key,
            grams: selection.search.as_ref().and_then(kubewitness_core::search::SearchText::signature_grams),
            indexes,
            found: Vec::new(),
            first: BinaryHeap::new(),
            next: None,
            read: 0,
            last_read: None,
            looked: None,
        })
    }

    /// Whether its order goes by phase, so that objects of one phase are adjacent.
    fn walks_phases(&self) -> bool {
        self.selection.order.is_some_and(|order| matches!(order.by, OrderKey::Changed | OrderKey::Phase))
    }

    /// Whether its order is kept separately for each namespace.
    fn walks_namespaces(&self) -> bool {
        self.walks_phases() && self.selection.search.is_none() && self.selection.limit <= ORDERED
    }

    /// Filters all objects by their signatures if no index gives few candidates. `look` is
    /// [`ObjectCache::add_passing`].
    pub fn narrow_plan(
        &self,
        plan: SelectPlan,
        mut look: impl FnMut(&Self, CacheSlot, &mut Vec<CacheSlot>) -> Option<CacheSlot>,
    ) -> SelectPlan {
        let mut passing = Vec::new();
        let mut from =
            Some(0).filter(|_| self.grams.is_some() && matches!(plan, SelectPlan::All | SelectPlan::Ordered));
        if from.is_none() {
            return plan;
        }
        while let Some(slot) = from {
            from = look(self, slot, &mut passing);
            if passing.len() > READ {
                return plan;
            }
        }
        SelectPlan::Slots(passing)
    }

    /// Takes the matches of a page. Returns `true` once the search needs no more.
    pub fn take(&mut self, page: RecordPage) -> bool {
        let Some(kind) = page.kind else { return true };
        for candidate in page.found {
            if self.selection.order.is_some() {
                self.rank_match(candidate, &kind);
            } else if self.matches_candidate(&candidate) {
                if self.found.len() >= self.selection.limit {
                    self.next = Some(candidate.slot);
                    return true;
                }
                self.found.push(candidate.kept.read().make_current(&kind, candidate.status));
            }
        }
        false
    }

    /// Keeps a match if it is among the first.
    fn rank_match(&mut self, candidate: SelectCandidate, kind: &Arc<SourceKind>) {
        let (order, limit) = (self.order, self.selection.limit);
        let place = candidate.kept.read().position_in(order, &candidate.status);
        if self.selection.beyond.as_ref().is_some_and(|beyond| !order.is_before(beyond, &place)) {
            return;
        }
        let is_full = self.first.len() >= limit;
        if is_full && self.first.peek().is_none_or(|last| !order.is_before(&place, &last.place)) {
            return;
        }
        let before = self.read;
        let is_match = self.matches_candidate(&candidate);
        if self.read > before {
            self.last_read = Some(place.clone());
        }
        if is_match {
            let SelectCandidate { slot, kept, status, .. } = candidate;
            self.first.push(RankedObject { order, place, slot, kept, status, kind: Arc::clone(kind) });
            if self.first.len() > limit {
                self.first.pop();
            }
        }
    }

    /// Takes the matches of a page that is in order. Returns `true` once the search needs no more.
    pub fn take_ordered(&mut self, page: RecordPage) -> bool {
        let goes_on = page.beyond.is_some();
        let is_over = self.take(page);
        if goes_on && !is_over && self.read >= READ {
            self.looked.clone_from(&self.last_read);
            return true;
        }
        is_over || self.first.len() >= self.selection.limit
    }

    /// Counts the matches of a page. Returns `true` once it has read as many documents as it may.
    pub fn tally_page(&mut self, page: RecordPage, counts: &mut ObjectCounts) -> bool {
        for candidate in page.found {
            if !self.matches_candidate(&candidate) {
                continue;
            }
            let SelectCandidate { kept, status, .. } = candidate;
            let read = kept.read();
            match counts.phases.get_mut(&status.phase) {
                Some(count) => *count += 1,
                None => drop(counts.phases.insert(status.phase.clone(), 1)),
            }
            if !counts.namespaces.contains(read.namespace) && counts.namespaces.len() < NAMESPACES {
                counts.namespaces.insert(read.namespace.to_owned());
            }
        }
        self.read >= READ
    }

    /// The matching objects, and where a further search begins.
    pub fn into_selected(self) -> SelectedObjects {
        let Self { found, next, looked, .. } = self;
        if self.selection.order.is_none() {
            return SelectedObjects { objects: found, next, ..SelectedObjects::default() };
        }
        let mut selected = SelectedObjects { looked, ..SelectedObjects::default() };
        let mut slots = HashSet::new();
        for RankedObject { place, slot, kept, status, kind, .. } in self.first.into_sorted_vec() {
            // An object that changes meanwhile may be found at both of its positions. Then the page is short
            // without being the last one.
            if !slots.insert(slot) {
                selected.looked.get_or_insert(place);
                continue;
            }
            selected.objects.push(kept.read().make_current(&kind, status));
            selected.places.push(place);
        }
        selected
    }

    /// Runs the cheap tests first. The document is unpacked only if they don't decide.
    fn matches_candidate(&mut self, candidate: &SelectCandidate) -> bool {
        let (read, status) = (candidate.kept.read(), &candidate.status);
        let ObjectSelection { namespace, name, phase, labels, search, created_since_ms, .. } = self.selection;
        if namespace.as_deref().is_some_and(|namespace| namespace != read.namespace)
            || name.as_deref().is_some_and(|name| name != read.name)
            || phase.as_deref().is_some_and(|phase| !phase.eq_ignore_ascii_case(&status.phase))
            || created_since_ms.is_some_and(|since_ms| !read.is_created_since(since_ms))
        {
            return false;
        }
        let wanted = match self.key {
            Some(IndexKey::Namespace(namespace)) if namespace != read.namespace => return false,
            Some(IndexKey::Owner(uid)) if read.owner_is(uid) => None,
            Some(IndexKey::Namespace(_)) => None,
            key => key,
        };
        let search = search.as_ref().filter(|search| !search.fits_name(read.name, &read.uid.text()));
        if wanted.is_none() && labels.is_empty() && search.is_none() {
            return true;
        }
        if search.is_some() && !candidate.may_be_documented {
            return false;
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
        let scanned = self.indexes.for_each_key(&document, |key| {
            has_key |= wanted == Some(key);
            if let (IndexKey::Label(key, value), false) = (key, labels.is_empty()) {
                own.push((key.to_owned().into(), value.to_owned().into()));
            }
        });
        let value = |key: &str| own.iter().find(|(label, _)| label == key).map(|(_, value)| &**value);
        scanned.is_ok() && has_key && labels.matches(value)
    }
}

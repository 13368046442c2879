//! Decides how old a record of an operator's act must be before retention removes it.
//!
//! A record belongs to a plugin, and a plugin has several sources, of which each has its own bounds. So a
//! record goes only once it is older than the bound by age of every source. A source without such a bound keeps
//! all records. Bounds by count and size were rejected here: in a busy source they reach states of the last
//! minutes, and the record of a drop must not go that soon.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// For each source, the time before which its bound by age keeps nothing; 0 if that is unknown, or if it has
/// no such bound. The retentions of all sources share it.
#[derive(Clone, Debug, Default)]
pub struct RecordAges(Arc<Mutex<BTreeMap<String, u64>>>);

impl RecordAges {
    pub fn of<'s>(sources: impl IntoIterator<Item = &'s str>) -> Self {
        let ages = Self::default();
        ages.keep_sources(sources);
        ages
    }

    /// Names the present sources. What is known of the others is forgotten.
    pub fn keep_sources<'s>(&self, sources: impl IntoIterator<Item = &'s str>) {
        let sources: BTreeSet<&str> = sources.into_iter().collect();
        let mut ages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ages.retain(|source, _| sources.contains(source.as_str()));
        for source in sources {
            ages.entry(source.to_owned()).or_default();
        }
    }

    /// Forgets the age of a source whose bounds have changed, until its next pass.
    pub fn forget_age(&self, source: &str) {
        if let Some(age) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(source) {
            *age = 0;
        }
    }

    /// Notes the time before which the age of a source keeps nothing; 0 if it has no bound by age. Returns the
    /// time before which no source keeps anything. One source is answered, so that not each pass looks at the
    /// records.
    pub(super) fn note_age(&self, source: &str, before_ms: u64) -> Option<u64> {
        let mut ages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A source that was removed meanwhile has no say.
        *ages.get_mut(source)? = before_ms;
        let is_first = ages.keys().next().is_some_and(|first| first == source);
        ages.values().min().copied().filter(|before_ms| is_first && *before_ms > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_goes_once_it_is_older_than_the_age_of_every_source() {
        let ages = RecordAges::of(["jobs", "nodes", "pods"]);
        assert_eq!((ages.note_age("jobs", 70), ages.note_age("pods", 90)), (None, None));
        assert_eq!(ages.note_age("nodes", 40), None, "one source asks for all");
        assert_eq!(ages.note_age("jobs", 75), Some(40));
        ages.keep_sources(["jobs", "pods"]);
        assert_eq!((ages.note_age("nodes", 50), ages.note_age("jobs", 80)), (None, Some(80)));
        // A source without any bound never notes an age, and one with a bound by count or size notes none.
        ages.keep_sources(["jobs", "pods", "secrets"]);
        assert_eq!(ages.note_age("jobs", 80), None);
        ages.keep_sources(["jobs", "pods"]);
        ages.forget_age("pods");
        assert_eq!(ages.note_age("jobs", 80), None);
        ages.note_age("pods", 90);
        assert_eq!(ages.note_age("jobs", 80), Some(80));
        ages.note_age("pods", 0);
        assert_eq!(ages.note_age("jobs", 80), None);
    }
}

//! Remembers components that were refused, so that the same bytes are not compiled again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kubewitness_core::config::ComponentsSpec;

/// Plugins that are wrong at the same time are few. One that is forgotten is compiled once more.
const KEPT: usize = 64;

#[derive(Default)]
pub struct Refusals {
    /// The newest last.
    kept: Mutex<VecDeque<Refusal>>,
}

struct Refusal {
    digest: String,
    limits: ComponentsSpec,
    why: String,
}

impl Refusals {
    fn kept(&self) -> MutexGuard<'_, VecDeque<Refusal>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why these bytes were refused, unless the limits have changed since.
    pub fn why(&self, digest: &str, limits: &ComponentsSpec) -> Option<String> {
        let kept = self.kept();
        let found = kept.iter().find(|refusal| refusal.digest == digest && refusal.limits == *limits)?;
        Some(found.why.clone())
    }

    pub fn add(&self, digest: &str, limits: &ComponentsSpec, why: &str) {
        let mut kept = self.kept();
        kept.retain(|refusal| refusal.digest != digest);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Refusal { digest: digest.into(), limits: limits.clone(), why: why.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_holds_for_the_same_bytes_and_limits_and_their_number_is_bounded() {
        let (refusals, limits) = (Refusals::default(), ComponentsSpec::default());
        refusals.add("first", &limits, "too large");
        assert_eq!(refusals.why("first", &limits).as_deref(), Some("too large"));
        assert_eq!(refusals.why("other", &limits), None);
        let raised = ComponentsSpec { locals: limits.locals + 1, ..limits.clone() };
        assert_eq!(refusals.why("first", &raised), None, "the setting was raised");
        for number in 0..KEPT {
            refusals.add(&number.to_string(), &limits, "too large");
        }
        assert_eq!(refusals.why("first", &limits), None);
        assert_eq!(refusals.kept().len(), KEPT);
    }
}

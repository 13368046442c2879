//! Remembers refused components, so that the same bytes are not compiled again, not even by the next process.
//! Other limits or another version of this program try again.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kubewitness_core::config::ComponentsSpec;
use kubewitness_core::shorten_text;
use serde::{Deserialize, Serialize};

use super::{EntryFile, make_room};

/// The size of a kept reason. The compiler's text may be long.
const REASON_BYTES: usize = 4 << 10;
const NAME: &str = "refusals.json";

pub struct CompileRefusals {
    file: EntryFile<CompileRefusal>,
    /// Few plugins are wrong at the same time. If a refusal is dropped, its component is compiled once more.
    kept: Mutex<VecDeque<CompileRefusal>>,
}

#[derive(Clone, Deserialize, Serialize)]
struct CompileRefusal {
    digest: String,
    limits: ComponentsSpec,
    why: String,
    /// Not saved, so that the next process tries again.
    #[serde(skip)]
    ends_with_process: bool,
}

impl CompileRefusals {
    /// Without a folder, refusals end with this process.
    pub fn open(folder: Option<&Path>, program: String) -> Self {
        let file = folder.map(|folder| folder.join(NAME));
        let (file, kept) = EntryFile::open(file, program, "refused components are compiled once more");
        Self { file, kept: Mutex::new(kept) }
    }

    /// The file that keeps refusals for the next process.
    pub fn refusals_file(&self) -> Option<&Path> {
        self.file.file.as_deref()
    }

    fn lock_kept(&self) -> MutexGuard<'_, VecDeque<CompileRefusal>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reason why these bytes were refused; `None` if the limits have changed since.
    pub fn refusal_of(&self, digest: &str, limits: &ComponentsSpec) -> Option<String> {
        let kept = self.lock_kept();
        let found = kept.iter().find(|refusal| refusal.digest == digest && refusal.limits == *limits)?;
        Some(found.why.clone())
    }

    /// Remembers a refusal that also holds for the next process.
    pub fn add(&self, digest: &str, limits: &ComponentsSpec, why: &str) {
        let all = self.remember_refusal(digest, limits, why, false);
        self.file.write(all.into_iter().filter(|refusal| !refusal.ends_with_process).collect());
    }

    /// Remembers a refusal until this process ends: the cause may be the process or its machine.
    pub fn add_until_restart(&self, digest: &str, limits: &ComponentsSpec, why: &str) {
        self.remember_refusal(digest, limits, why, true);
    }

    /// Adds a refusal, and returns all that are then kept.
    fn remember_refusal(
        &self,
        digest: &str,
        limits: &ComponentsSpec,
        why: &str,
        ends_with_process: bool,
    ) -> VecDeque<CompileRefusal> {
        let mut kept = self.lock_kept();
        kept.retain(|refusal| refusal.digest != digest);
        make_room(&mut kept);
        let why = shorten_text(why, REASON_BYTES).into_owned();
        kept.push_back(CompileRefusal {
            digest: digest.into(),
            limits: limits.clone(),
            why,
            ends_with_process,
        });
        kept.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FILE_BYTES, KEPT};
    use super::*;

    #[test]
    fn a_refusal_holds_for_the_same_bytes_and_limits_and_their_number_is_bounded() {
        let (refusals, limits) = (CompileRefusals::open(None, "1".into()), ComponentsSpec::default());
        refusals.add("first", &limits, "too large");
        assert_eq!(refusals.refusal_of("first", &limits).as_deref(), Some("too large"));
        assert_eq!(refusals.refusal_of("other", &limits), None);
        let raised = ComponentsSpec { locals: limits.locals + 1, ..limits.clone() };
        assert_eq!(refusals.refusal_of("first", &raised), None, "the setting was raised");
        for number in 0..KEPT {
            refusals.add(&number.to_string(), &limits, "too large");
        }
        assert_eq!(refusals.refusal_of("first", &limits), None);
        assert_eq!(refusals.lock_kept().len(), KEPT);
    }

    #[test]
    fn a_refusal_holds_after_a_restart_and_not_for_another_version_of_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let limits = ComponentsSpec { locals: 7, ..ComponentsSpec::default() };
        let open = |program: &str| CompileRefusals::open(Some(folder.path()), program.into());
        let first = open("1");
        first.add_until_restart("killed", &limits, "no memory");
        for number in 0..KEPT {
            first.add(&number.to_string(), &limits, &"long ".repeat(REASON_BYTES));
        }
        first.add_until_restart("killed", &limits, "no memory");
        first.add("bomb", &limits, "too dear");
        assert!(first.refusal_of("killed", &limits).is_some());
        let file = folder.path().join(NAME);
        assert!(file.metadata().unwrap().len() < FILE_BYTES, "what was written can be read");
        let again = open("1");
        assert_eq!(again.refusal_of("bomb", &limits).as_deref(), Some("too dear"));
        assert_eq!(again.refusal_of("bomb", &ComponentsSpec::default()), None);
        assert_eq!(again.refusal_of("killed", &limits), None, "the machine may have more memory now");
        assert_eq!(open("2").refusal_of("bomb", &limits), None);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(open("1").refusal_of("bomb", &limits), None, "a damaged file is not taken");
    }
}

//! Marks a component while its compilation takes much memory. If the compiling process exhausts the
//! container's memory, the controller dies with it and can report nothing. Its successor finds the mark, and
//! counts it. A controller that is killed while the process is small leaves no mark, because it was killed
//! for another reason.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kubewitness_core::config::ComponentsSpec;
use serde::{Deserialize, Serialize};

use super::{EntryFile, make_room};

/// How many processes may die while compiling the same component. One may have been killed for another
/// reason.
pub const DEATHS: u32 = 2;
const NAME: &str = "compiling.json";

pub struct UseMarks {
    file: EntryFile<UseMark>,
    /// One component is compiled at a time, so there are few. If one is dropped, its component is only tried
    /// more often.
    kept: Mutex<VecDeque<UseMark>>,
}

#[derive(Clone, Deserialize, Serialize)]
struct UseMark {
    digest: String,
    limits: ComponentsSpec,
    /// How often the compiling process became large and neither ended nor was stopped.
    tries: u32,
}

/// Marks a component while a large process compiles it, until this is dropped.
pub struct UnderMark<'m> {
    marks: &'m UseMarks,
    digest: String,
}

impl Drop for UnderMark<'_> {
    fn drop(&mut self) {
        self.marks.remove(&self.digest);
    }
}

impl UseMarks {
    /// Without a folder nothing is marked.
    pub fn open(folder: Option<&Path>, program: String) -> Self {
        let file = folder.map(|folder| folder.join(NAME));
        let (file, kept) = EntryFile::open(file, program, "kills over a component are not counted");
        Self { file, kept: Mutex::new(kept) }
    }

    fn lock_kept(&self) -> MutexGuard<'_, VecDeque<UseMark>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so many processes died while compiling the component that it should not be tried again.
    pub fn is_deadly(&self, digest: &str, limits: &ComponentsSpec) -> bool {
        self.count_tries(digest, limits) >= DEATHS
    }

    fn count_tries(&self, digest: &str, limits: &ComponentsSpec) -> u32 {
        let kept = self.lock_kept();
        let same = kept.iter().find(|mark| mark.digest == digest && mark.limits == *limits);
        same.map_or(0, |mark| mark.tries)
    }

    /// The mark is durable once this returns.
    pub fn begin_use(&self, digest: &str, limits: &ComponentsSpec) -> UnderMark<'_> {
        let tries = self.count_tries(digest, limits) + 1;
        self.change_marks(|kept| {
            kept.retain(|mark| mark.digest != digest);
            make_room(kept);
            kept.push_back(UseMark { digest: digest.into(), limits: limits.clone(), tries });
        });
        UnderMark { marks: self, digest: digest.into() }
    }

    pub fn remove(&self, digest: &str) {
        self.change_marks(|kept| kept.retain(|mark| mark.digest != digest));
    }

    fn change_marks(&self, change: impl FnOnce(&mut VecDeque<UseMark>)) {
        if self.file.file.is_none() {
            return;
        }
        let mut kept = self.lock_kept();
        change(&mut kept);
        self.file.write(kept.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FILE_BYTES, KEPT};
    use super::*;

    #[test]
    fn a_component_over_which_two_processes_died_is_deadly_until_its_limits_or_the_program_change() {
        let folder = tempfile::tempdir().unwrap();
        let open = |program: &str| UseMarks::open(Some(folder.path()), program.into());
        let limits = ComponentsSpec::default();
        let lower = ComponentsSpec { locals: 7, ..limits.clone() };
        for _ in 0..DEATHS {
            let killed = open("1");
            assert!(!killed.is_deadly("bomb", &limits));
            // As after a kill, when nothing is dropped.
            std::mem::forget(killed.begin_use("bomb", &limits));
        }
        assert!(open("1").is_deadly("bomb", &limits));
        assert!(!open("1").is_deadly("bomb", &lower) && !open("1").is_deadly("other", &limits));
        assert!(!open("2").is_deadly("bomb", &limits));
        open("1").remove("bomb");
        assert!(!open("1").is_deadly("bomb", &limits), "somebody else remembers it now");
    }

    #[test]
    fn what_ended_or_was_stopped_leaves_no_mark_and_their_number_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let limits = ComponentsSpec::default();
        let open = || UseMarks::open(Some(folder.path()), "1".into());
        let marks = open();
        std::mem::forget(marks.begin_use("killed", &limits));
        for _ in 0..5 {
            drop(marks.begin_use("stopped", &limits));
        }
        assert_eq!((open().count_tries("stopped", &limits), open().count_tries("killed", &limits)), (0, 1));
        for number in 0..KEPT {
            std::mem::forget(marks.begin_use(&format!("{number:064}"), &limits));
        }
        assert_eq!((open().lock_kept().len(), open().count_tries("killed", &limits)), (KEPT, 0));
        let file = folder.path().join(NAME);
        assert!(file.metadata().unwrap().len() < FILE_BYTES, "what was written can be read");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(open().lock_kept().len(), 0, "a damaged file is not taken");
        let nowhere = UseMarks::open(None, String::new());
        drop(nowhere.begin_use("any", &limits));
        assert!(!nowhere.is_deadly("any", &limits));
    }
}

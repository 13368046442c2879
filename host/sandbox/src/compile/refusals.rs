//! Remembers components that were refused, so that the same bytes are not compiled again: also not by the next process,
//! which finds them in a file beside the code. Other limits or another version of this program try again.
//!
//! The file needs no authentication: whoever can write it can keep a plugin from running, and no more.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kubewitness_core::config::ComponentsSpec;
use kubewitness_core::{files, shortened};
use serde::{Deserialize, Serialize};

/// Plugins that are wrong at the same time are few. One that is forgotten is compiled once more.
const KEPT: usize = 64;
/// Bytes of a reason that are kept. The compiler's words may go on.
const WHY: usize = 4 << 10;
/// All that is kept, with its limits. A larger file was not written here.
const FILE_BYTES: u64 = 1 << 20;
const NAME: &str = "refusals.json";

pub struct Refusals {
    file: Option<PathBuf>,
    /// What else decides whether a component compiles: this program and its engine.
    program: String,
    /// The newest last.
    kept: Mutex<VecDeque<Refusal>>,
}

#[derive(Clone, Deserialize, Serialize)]
struct Refusal {
    digest: String,
    limits: ComponentsSpec,
    why: String,
    /// Left out of the file where it ends with this process.
    #[serde(skip)]
    ends_with_process: bool,
}

#[derive(Deserialize, Serialize)]
struct File {
    program: String,
    refusals: VecDeque<Refusal>,
}

impl Refusals {
    /// Without a folder, they are forgotten with this process.
    pub fn open(folder: Option<&Path>, program: String) -> Self {
        let file = folder.map(|folder| folder.join(NAME));
        let read = file.as_deref().map(read).transpose();
        let found = read.unwrap_or_else(|error| {
            tracing::warn!(file = ?file, %error, "refused components are compiled once more");
            None
        });
        let same = found.flatten().filter(|found| found.program == program);
        let mut kept = same.map(|same| same.refusals).unwrap_or_default();
        kept.truncate(KEPT);
        Self { file, program, kept: Mutex::new(kept) }
    }

    /// Where they outlive the process.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Refusal>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why these bytes were refused, unless the limits have changed since.
    pub fn why(&self, digest: &str, limits: &ComponentsSpec) -> Option<String> {
        let kept = self.kept();
        let found = kept.iter().find(|refusal| refusal.digest == digest && refusal.limits == *limits)?;
        Some(found.why.clone())
    }

    /// The next process refuses them, too.
    pub fn add(&self, digest: &str, limits: &ComponentsSpec, why: &str) {
        let all = self.remember(digest, limits, why, false);
        let Some(path) = &self.file else { return };
        let refusals = all.into_iter().filter(|refusal| !refusal.ends_with_process).collect();
        let file = File { program: self.program.clone(), refusals };
        let written = serde_json::to_vec(&file)
            .map_err(io::Error::from)
            .and_then(|text| files::replace(path, &text, 0o600));
        if let Err(error) = written {
            tracing::warn!(file = %path.display(), %error, "a refused component is compiled once more after a restart");
        }
    }

    /// What was at fault may have been this process, or its machine.
    pub fn add_until_restart(&self, digest: &str, limits: &ComponentsSpec, why: &str) {
        self.remember(digest, limits, why, true);
    }

    /// All that are kept then.
    fn remember(
        &self,
        digest: &str,
        limits: &ComponentsSpec,
        why: &str,
        ends_with_process: bool,
    ) -> VecDeque<Refusal> {
        let mut kept = self.kept();
        kept.retain(|refusal| refusal.digest != digest);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let why = shortened(why, WHY).into_owned();
        kept.push_back(Refusal { digest: digest.into(), limits: limits.clone(), why, ends_with_process });
        kept.clone()
    }
}

/// `None` where nothing was refused yet.
fn read(path: &Path) -> io::Result<Option<File>> {
    match files::read(path, FILE_BYTES) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_holds_for_the_same_bytes_and_limits_and_their_number_is_bounded() {
        let (refusals, limits) = (Refusals::open(None, "1".into()), ComponentsSpec::default());
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

    #[test]
    fn a_refusal_holds_after_a_restart_and_not_for_another_version_of_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let limits = ComponentsSpec { locals: 7, ..ComponentsSpec::default() };
        let open = |program: &str| Refusals::open(Some(folder.path()), program.into());
        let first = open("1");
        first.add_until_restart("killed", &limits, "no memory");
        for number in 0..KEPT {
            first.add(&number.to_string(), &limits, &"long ".repeat(WHY));
        }
        first.add_until_restart("killed", &limits, "no memory");
        first.add("bomb", &limits, "too dear");
        assert!(first.why("killed", &limits).is_some());
        let file = folder.path().join(NAME);
        assert!(file.metadata().unwrap().len() < FILE_BYTES, "what was written can be read");
        let again = open("1");
        assert_eq!(again.why("bomb", &limits).as_deref(), Some("too dear"));
        assert_eq!(again.why("bomb", &ComponentsSpec::default()), None);
        assert_eq!(again.why("killed", &limits), None, "the machine may have more memory now");
        assert_eq!(open("2").why("bomb", &limits), None);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(open("1").why("bomb", &limits), None, "a damaged file is not taken");
    }
}

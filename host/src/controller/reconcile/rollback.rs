//! Rolls back a version that fails its first calls, and continues with the previous one. A plugin's first
//! version has no predecessor: it stays, and its states wait as those of any failing plugin.
//!
//! The previous version is kept on disk as long as the probation lasts, so a restart does not end the
//! probation.

use std::collections::BTreeMap;

use anyhow::Context;
use tracing::{error, warn};

use super::ReconcileLoop;
use crate::config::last_good::GoodPlugin;
use crate::controller::plugins::ExaminedQuestion;

/// By the plugin's name.
#[derive(Default)]
pub(super) struct RollbackTable {
    /// The previous versions of those that have not worked yet.
    before: BTreeMap<String, GoodPlugin>,
    /// The versions that were rolled back, and why. The same document is not applied again.
    refused: BTreeMap<String, (ExaminedQuestion, String)>,
}

impl RollbackTable {
    /// `before` has the versions that had not worked yet when the previous process ended.
    pub fn of(before: BTreeMap<String, GoodPlugin>) -> Self {
        Self { before, ..Self::default() }
    }

    /// The refusal of exactly this question, if there was one.
    pub fn refusal_of(&self, name: &str, question: &ExaminedQuestion) -> Option<String> {
        let (refused, why) = self.refused.get(name)?;
        (refused == question).then(|| why.clone())
    }

    pub fn forget_plugin(&mut self, name: &str) {
        self.before.remove(name);
        self.refused.remove(name);
    }
}

impl ReconcileLoop {
    /// A version has started, and is not the last good one yet. If another one ran before, that one is kept
    /// until the new one has worked.
    pub(super) async fn begin_probation(&mut self, name: &str, good: &GoodPlugin) -> anyhow::Result<()> {
        // A version that is replaced before it has worked has not proved itself.
        let known = self.rollbacks.before.get(name);
        let before = known.or_else(|| self.good_plugins.get(name)).filter(|before| before.is_another(good));
        let Some(before) = before.cloned() else {
            if self.rollbacks.before.remove(name).is_some() {
                self.forget_before(name).await;
            }
            return Ok(());
        };
        if known.is_none() {
            let (of, saved) = (name.to_owned(), before.clone());
            let kept = self.last_good.run_on_thread(move |kept| kept.save_before(&of, &saved)).await;
            kept.context("the plugin runs, but the version before can't be kept, to go back to it")?;
            self.rollbacks.before.insert(name.to_owned(), before);
        }
        Ok(())
    }

    /// Versions that have worked stay.
    pub(super) async fn end_probations(&mut self) {
        let names = self.rollbacks.before.keys().filter(|name| self.plugins.has_worked(name));
        for name in names.cloned().collect::<Vec<_>>() {
            self.rollbacks.before.remove(&name);
            self.forget_before(&name).await;
        }
    }

    async fn forget_before(&self, name: &str) {
        let of = name.to_owned();
        if let Err(error) = self.last_good.run_on_thread(move |kept| kept.forget_before(&of)).await {
            error!(
                plugin = name,
                "the version before can't be removed: after a restart the plugin is on probation again: {error}"
            );
        }
    }

    /// Ends versions that have failed. The previous ones start in the next round, as the last good versions.
    /// Returns whether any had failed.
    pub(super) async fn end_failed_versions(&mut self) -> bool {
        self.end_probations().await;
        let mut has_failed = false;
        let names: Vec<_> = self.rollbacks.before.keys().cloned().collect();
        for name in names {
            let Some((question, why)) = self.plugins.first_failure(&name) else { continue };
            let Some(before) = self.rollbacks.before.remove(&name) else { continue };
            has_failed = true;
            let message = format!(
                "this version was taken back, because its first calls failed: {why}. The version before goes on. \
                 Change the manifest to try again"
            );
            warn!(plugin = name, "{message}");
            self.rollbacks.refused.insert(name.clone(), (question, message));
            let (of, saved) = (name.clone(), before.clone());
            if let Err(error) =
                self.last_good.run_on_thread(move |kept| kept.restore_before(&of, &saved)).await
            {
                error!(plugin = name, "the version before can't be stored as the last good one: {error}");
            }
            self.good_plugins.insert(name.clone(), before);
            // One that drains slowly is replaced once it has drained.
            self.plugins.stop_plugin(&name).await;
        }
        has_failed
    }
}

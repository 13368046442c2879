//! Takes a version back that fails its first calls, and goes on with the one before. A plugin's first version has none
//! before it: it stays, and its states wait as those of any plugin that fails.

use std::collections::BTreeMap;

use tracing::{error, warn};

use super::Control;
use crate::config::last_good::GoodPlugin;
use crate::controller::plugins::{Plugins, Question};

/// By the plugin's name.
#[derive(Default)]
pub(super) struct Rollbacks {
    /// Of versions that have not worked yet: what ran before.
    before: BTreeMap<String, GoodPlugin>,
    /// What was taken back, and why. The same document is not taken again.
    refused: BTreeMap<String, (Question, String)>,
}

impl Rollbacks {
    /// Versions that have worked stay.
    pub fn settle(&mut self, plugins: &Plugins) {
        self.before.retain(|name, _| !plugins.has_worked(name));
    }

    /// A version has started in the place of another.
    pub fn replaced(&mut self, name: &str, before: Option<GoodPlugin>) {
        match before {
            // A version that is replaced before it has worked has not shown that it can.
            Some(before) => drop(self.before.entry(name.to_owned()).or_insert(before)),
            None => drop(self.before.remove(name)),
        }
    }

    /// Why this very question has its answer already.
    pub fn refusal(&self, name: &str, question: &Question) -> Option<String> {
        let (refused, why) = self.refused.get(name)?;
        (refused == question).then(|| why.clone())
    }

    pub fn forget(&mut self, name: &str) {
        self.before.remove(name);
        self.refused.remove(name);
    }
}

impl Control {
    /// Ends versions that have failed. What ran before is started as the last good version is, in the next look at the
    /// configuration.
    pub(super) async fn take_back(&mut self) {
        self.rollbacks.settle(&self.plugins);
        let names: Vec<_> = self.rollbacks.before.keys().cloned().collect();
        for name in names {
            let Some((question, why)) = self.plugins.failure(&name) else { continue };
            let Some(before) = self.rollbacks.before.remove(&name) else { continue };
            let told = format!(
                "this version was taken back, because its first calls failed: {why}. The version before goes on. \
                 Change the manifest to try again"
            );
            warn!(plugin = name, "{told}");
            self.rollbacks.refused.insert(name.clone(), (question, told));
            let (of, saved) = (name.clone(), before.clone());
            if let Err(error) = self.last_good.ask(move |kept| kept.save_plugin(&of, &saved)).await {
                error!(plugin = name, "the version before can't be stored as the last good one: {error}");
            }
            self.good_plugins.insert(name.clone(), before);
            // One that drains slowly is replaced once it has drained.
            self.plugins.stop(&name).await;
        }
    }
}

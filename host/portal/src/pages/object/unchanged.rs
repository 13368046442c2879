//! Finds versions without news, so that the table folds them: their status and document mean the same to
//! people as those of the previous version.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::document::compare_form;
use kubewitness_core::views::TimelineView;
use kubewitness_core::{Change, Seq, State as Witnessed};
use serde_json::Value;
use tokio::time::timeout;

use crate::app::PortalApp;

/// How many pairs of versions one page compares by their documents: those of the object before those of its
/// owned objects, the newest first. The others are not folded.
const COMPARED: usize = 500;
/// The time limit for that: each document is searched for secrets, which takes time in proportion to its
/// length.
const PATIENCE: Duration = Duration::from_secs(1);

/// The states that a page folds.
#[derive(Default)]
pub(super) struct QuietStates {
    /// The positions of the versions without news.
    pub seqs: HashSet<Seq>,
    /// Whether some were not compared.
    pub is_cut: bool,
}

/// With `all`, nothing is folded, so nothing is read.
pub(super) async fn find_quiet_states(app: &PortalApp, view: &TimelineView, all: bool) -> QuietStates {
    let mut quiet = QuietStates::default();
    if all {
        return quiet;
    }
    let mut pairs = candidate_pairs(&view.related);
    pairs.extend(candidate_pairs(&view.states));
    let compared = pairs.len().min(COMPARED);
    let read = compare_pairs(app, pairs.drain(pairs.len() - compared..).rev(), &mut quiet.seqs);
    let is_late = timeout(PATIENCE, read).await.is_err();
    quiet.is_cut = is_late || !pairs.is_empty();
    quiet
}

async fn compare_pairs<'a>(
    app: &PortalApp,
    pairs: impl Iterator<Item = (&'a Witnessed, &'a Witnessed)>,
    quiet: &mut HashSet<Seq>,
) {
    // For each object, the version that was read last: it is the later one of the previous pair.
    let mut read: HashMap<&str, (Seq, Option<Value>)> = HashMap::new();
    for (before, state) in pairs {
        let later = match read.remove(&*state.object.uid) {
            Some((seq, says)) if seq == state.seq => says,
            _ => substance_of_state(app, state).await,
        };
        let earlier = substance_of_state(app, before).await;
        if later.is_some() && later == earlier {
            quiet.insert(state.seq);
        }
        read.insert(&state.object.uid, (before.seq, earlier));
    }
}

/// Versions with an unchanged status, each after its predecessor.
fn candidate_pairs(states: &[Arc<Witnessed>]) -> Vec<(&Witnessed, &Witnessed)> {
    let mut newest: HashMap<&str, &Witnessed> = HashMap::new();
    let mut pairs = Vec::new();
    for state in states {
        let before = newest.insert(&state.object.uid, state);
        let is_plain = |state: &Witnessed| state.change == Change::Present && !state.late;
        let says_the_same =
            |before: &&Witnessed| is_plain(before) && is_plain(state) && before.status == state.status;
        pairs.extend(before.filter(says_the_same).map(|before| (before, &**state)));
    }
    pairs
}

/// `None` if the document is unavailable. Then the version is not folded.
async fn substance_of_state(app: &PortalApp, state: &Witnessed) -> Option<Value> {
    compare_form(&app.views.document_at(state.seq).await.ok()?)
}

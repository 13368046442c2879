//! Objects as of a past moment, from the journal.

use std::collections::HashSet;
use std::sync::Arc;

use kubewitness_capability::ThreadParty;
use kubewitness_core::clock::Clock;
use kubewitness_core::ports::{JournalError, ObjectSelection, PartyShares, SourceVisibility};
use kubewitness_core::views::{GapQuery, ObjectPage, ObjectQuery, ObjectView, ThenView, ViewError};
use kubewitness_core::{Status, calendar};
use kubewitness_journal::{AtCursor, AtQuery, MomentKnowledge, ObjectAt, SourceCounters, WALKED};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::gone::{DOCUMENTS, ROUNDS, is_named};
use super::objects::wrong_cursor;
use super::redacted::current_party;
use super::{HostViews, unavailable};

/// How many gaps of whole sources one answer examines.
const GAPS: usize = 1_000;

/// Concurrent walks. Each holds one of the journal's few readers for long, and the others are for short
/// queries and for plugins.
const WALKS: usize = 2;

/// Turns for walking through the journal. A party has one at a time, so its requests wait for each other and
/// not for those of all others.
pub(super) struct WalkTurns {
    each: PartyShares<ThreadParty>,
    all: Arc<Semaphore>,
}

/// Releases the turn when it is dropped.
struct WalkTurn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for WalkTurns {
    fn default() -> Self {
        Self { each: PartyShares::new(1), all: Arc::new(Semaphore::new(WALKS)) }
    }
}

impl WalkTurns {
    async fn await_turn(&self, party: &ThreadParty) -> Result<WalkTurn, ViewError> {
        let own = self.each.take(party).await.map_err(unavailable)?;
        let all = self.all.clone().acquire_owned().await.map_err(unavailable)?;
        Ok(WalkTurn { _own: own, _all: all })
    }
}

impl HostViews {
    pub(super) async fn objects_at(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        at_ms: u64,
    ) -> Result<ObjectPage, ViewError> {
        if at_ms > self.clock.now_ms() {
            return Err(ViewError::Invalid("`at` is in the future: name a time that has passed".into()));
        }
        if query.sort.as_deref().is_some_and(|sort| sort != "changed") {
            let message = "the objects of a moment have an order of their own: leave `sort` out with `at`";
            return Err(ViewError::Invalid(message.into()));
        }
        if selection.index.is_some() {
            let message = "`index` looks up what is there now: with `at`, give `labelSelector` or `search`";
            return Err(ViewError::Invalid(message.into()));
        }
        let moment = self.journal.position_of_time(at_ms).await.map_err(unavailable)?;
        let sources = self.sources_asked(query);
        let mut page = ObjectPage {
            notices: self
                .incomplete_notices(
                    &sources,
                    &wholly_visible_sources(&sources, query),
                    at_ms,
                    moment.oldest_ms,
                )
                .await?,
            ..ObjectPage::default()
        };
        let fits = |source: &str, namespace: &str, name: &str| is_named(query, source, namespace, name);
        let mut after = query.cursor.as_deref().map(cursor).transpose()?;
        let (mut documents, mut shown_uids) = (DOCUMENTS, HashSet::new());
        for _ in 0..ROUNDS {
            let limit = selection.limit - page.objects.len();
            let asked = AtQuery {
                sources: &sources,
                seq: moment.seq,
                at_ms,
                after,
                limit,
                walked: WALKED,
                fits: &fits,
            };
            let turn = self.walks.await_turn(&current_party()).await?;
            let found = self.journal.objects_at(&asked).await.map_err(|error| match error {
                JournalError::Invalid(message) => ViewError::Invalid(message),
                other => unavailable(other),
            })?;
            drop(turn);
            for then in found.rows {
                let uid = &then.state.object.uid;
                if !shown_uids.contains(uid)
                    && self.is_meant(&then.state, query, selection, &mut documents).await?
                {
                    shown_uids.insert(uid.clone());
                    let state = self.without_secrets(&then.state).await?;
                    page.objects.push(view(ObjectAt { state, ..then }));
                }
            }
            after = found.next;
            page.next = after.map(text);
            if after.is_none() || page.objects.len() >= selection.limit || documents == 0 {
                break;
            }
        }
        Ok(page)
    }

    /// The notices that the whole answer is incomplete.
    async fn incomplete_notices(
        &self,
        asked: &[String],
        whole: &[String],
        at_ms: u64,
        oldest_ms: Option<u64>,
    ) -> Result<Vec<String>, ViewError> {
        let Some(oldest_ms) = oldest_ms else { return Ok(vec!["The journal has no state yet.".into()]) };
        let mut notices = Vec::new();
        if at_ms < oldest_ms {
            notices.push(format!(
                "The journal begins at {}. It does not tell what was there before.",
                calendar::format_rfc3339(oldest_ms)
            ));
        }
        let counters = self.journal.source_counters().await.map_err(unavailable)?;
        let is_taken = |it: &&SourceCounters| it.taken > 0 && asked.contains(&it.source);
        let taken: Vec<&str> = counters.iter().filter(is_taken).map(|it| it.source.as_str()).collect();
        if !taken.is_empty() {
            notices.push(format!(
                "Retention has removed old states of {}: what is gone since, and was there at this time, may not be \
                 listed.",
                taken.join(", ")
            ));
        }
        for source in whole {
            let query = GapQuery { source: Some(source.clone()), limit: Some(GAPS), ..GapQuery::default() };
            for (_, gap) in self.journal.gaps_of(&query).await.map_err(unavailable)? {
                if gap.object.is_some() || gap.recorded_ms < at_ms {
                    continue;
                }
                let seen = self.journal.seen_at(source, gap.epoch, &gap.after).await.map_err(unavailable)?;
                if seen.is_none_or(|seen_ms| seen_ms <= at_ms) {
                    let from = seen.map_or("its beginning".into(), calendar::format_rfc3339);
                    notices.push(format!(
                        "Versions of source {source} are missing between {from} and {}: objects that came and went in \
                         this time may not be listed.",
                        calendar::format_rfc3339(gap.recorded_ms)
                    ));
                }
            }
        }
        Ok(notices)
    }
}

/// The sources of which the person may see everything: a gap of a whole source does not say whose states are
/// missing.
fn wholly_visible_sources(sources: &[String], query: &ObjectQuery) -> Vec<String> {
    let is_whole = |source: &&String| {
        let within = query.within.as_ref();
        within.is_none_or(|within| within.sources.get(*source) == Some(&SourceVisibility::Everything))
    };
    sources.iter().filter(is_whole).cloned().collect()
}

fn text(cursor: AtCursor) -> String {
    match cursor {
        AtCursor::Ended(seq) => format!("ended-{seq}"),
        AtCursor::Living(number) => format!("living-{number}"),
    }
}

fn cursor(text: &str) -> Result<AtCursor, ViewError> {
    let number = |text: &str| text.parse().ok();
    let found = match text.split_once('-') {
        Some(("ended", seq)) => number(seq).map(AtCursor::Ended),
        Some(("living", number_of)) => number(number_of).map(AtCursor::Living),
        _ => None,
    };
    found.ok_or_else(wrong_cursor)
}

fn view(ObjectAt { state, next, known }: ObjectAt) -> ObjectView {
    let until = next.as_ref().map(|next| calendar::format_rfc3339(next.observed_ms));
    let from = calendar::format_rfc3339(state.observed_ms);
    let end = until.as_deref().unwrap_or("now");
    let (word, message) = match known {
        MomentKnowledge::Exact => ("exact", None),
        MomentKnowledge::Missing => (
            "missing",
            Some(format!("Between {from} and {end} versions are missing. It may have had one of them.")),
        ),
        MomentKnowledge::ReadBack => (
            "read-back",
            Some(format!(
                "Versions between {from} and {end} were read back later. It may have had one of them."
            )),
        ),
        MomentKnowledge::Taken => {
            ("taken", Some(format!("It was there. Retention took its states from before {from}.")))
        }
    };
    let mut view = ObjectView::from(&*state);
    if known == MomentKnowledge::Taken {
        view.status = Status::default();
    }
    view.then = Some(ThenView { known: word.into(), until, message });
    view
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test]
    async fn a_party_that_asks_for_many_moments_waits_for_itself_and_leaves_readers_to_others() {
        let walks = WalkTurns::default();
        let person = |name: &str| ThreadParty::Person(name.into());
        let first = walks.await_turn(&person("zoe")).await.unwrap();
        let zoe = person("zoe");
        let mut again = pin!(walks.await_turn(&zoe));
        let mut poll = || again.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        let _second = walks.await_turn(&person("bob")).await.unwrap();
        let ann = person("ann");
        let mut third = pin!(walks.await_turn(&ann));
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(first);
        assert!(poll().is_pending(), "ann has waited longer for a reader");
        let Poll::Ready(_) = third.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it is ann's turn")
        };
    }
}

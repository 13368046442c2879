//! Parts of the lists whose rows are in the journal: gaps, poison messages and dead letters. A part has those
//! of the read rows that the viewer may see, and the start of the next part.

use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::views::{DeadLetterView, GapQuery, LetterQuery, PoisonQuery, PoisonView, ViewError};
use kubewitness_core::{Gap, Seq};

use super::part::{PartPicker, VisiblePart};
use super::{AccessVerb, ViewerVisibility};
use crate::answer::Problem;
use crate::serve::ReadingTurn;

/// How many rows are read for one part, for a person who may not see all of them.
pub(crate) const MOST_READ: usize = 10_000;

impl ViewerVisibility {
    /// The turn to read this many rows, for an answer of the API or for a page.
    pub(super) async fn enter_reading(&self, rows: usize) -> Option<ReadingTurn> {
        self.readings.await_turn(self.viewer.party_of_shares(), rows).await
    }

    /// The number of rows to read in order to show so many. One more shows whether more exist.
    fn rows_to_read(&self, limit: usize) -> usize {
        if self.is_whole() { limit.saturating_add(1) } else { MOST_READ }
    }

    /// The newest gaps after the query's cursor.
    pub(crate) async fn visible_gaps(
        &self,
        query: GapQuery,
        limit: usize,
    ) -> Result<VisiblePart<Gap, u64>, Problem> {
        let asked = self.rows_to_read(limit);
        let turn = self.enter_reading(asked).await;
        let found = self.views.find_gaps(&GapQuery { limit: Some(asked), ..query }).await?;
        let (is_last, mut picking) = (found.len() < asked, PartPicker::new(limit));
        for (number, gap) in found {
            let is_seen = self.sees_gap(&gap).await?;
            picking.pick_row(number, gap, is_seen);
            if picking.has_next_part() {
                break;
            }
        }
        Ok(picking.into_part(is_last, turn))
    }

    /// Dead letters after the query's cursor. Only operators learn that a plugin does not exist: its name is
    /// theirs.
    pub(crate) async fn visible_letters(
        &self,
        query: LetterQuery,
        limit: usize,
    ) -> Result<VisiblePart<DeadLetterView, LetterCursor>, Problem> {
        let (mut turn, mut unbounded) = (self.enter_reading(self.rows_to_read(limit)).await, usize::MAX);
        let part = self.letters_within(query, limit, &mut unbounded).await?;
        if let Some(turn) = &mut turn {
            turn.give_back_unneeded(part.rows.len());
        }
        Ok(VisiblePart { turn, ..part })
    }

    /// The turn of a page that reads two lists of this many rows.
    pub(crate) async fn enter_for_two(&self, limit: usize) -> Option<ReadingTurn> {
        self.enter_reading(self.rows_to_read(limit).saturating_mul(2)).await
    }

    /// The visible letters of one of several lists that share a turn, which the caller holds.
    pub(crate) async fn letters_within(
        &self,
        query: LetterQuery,
        limit: usize,
        budget: &mut usize,
    ) -> Result<VisiblePart<DeadLetterView, LetterCursor>, Problem> {
        let tells = self.is_whole() || self.is_operators().await?;
        let asked = self.rows_to_read(limit).min(*budget);
        if asked == 0 {
            return Ok(VisiblePart::default());
        }
        let found = match self.views.dead_letters(&LetterQuery { limit: Some(asked), ..query }).await {
            Err(ViewError::NotFound { .. }) if !tells => Vec::new(),
            found => found?,
        };
        *budget -= found.len();
        let (is_last, mut picking) = (found.len() < asked, PartPicker::new(limit));
        for view in found {
            let is_seen = self.may_see(AccessVerb::List, &view.object, Some(view.letter.seq)).await?;
            picking.pick_row(LetterCursor::from(&view.letter), view, is_seen);
            if picking.has_next_part() {
                break;
            }
        }
        Ok(picking.into_part(is_last, None))
    }

    /// The names of plugins with dead letters, whoever may see these; one query for each plugin.
    pub(crate) async fn plugins_with_letters(&self, most: usize) -> Result<Vec<String>, Problem> {
        let (mut names, mut cursor) = (Vec::new(), None);
        while names.len() < most {
            let query = LetterQuery { cursor, limit: Some(1), ..LetterQuery::default() };
            let Some(first) = self.views.dead_letters(&query).await?.pop() else { break };
            let plugin = first.letter.plugin;
            cursor = Some(LetterCursor { plugin: plugin.clone(), seq: Seq::MAX });
            names.push(plugin);
        }
        Ok(names)
    }

    /// The newest poison messages after the query's cursor. Bytes that are no object have no trustworthy
    /// namespace.
    pub(crate) async fn visible_poison(
        &self,
        query: PoisonQuery,
        limit: usize,
    ) -> Result<VisiblePart<PoisonView, u64>, Problem> {
        let asked = self.rows_to_read(limit);
        let turn = self.enter_reading(asked).await;
        let found = self.views.find_poison(&PoisonQuery { limit: Some(asked), ..query }).await?;
        let (is_last, mut picking) = (found.len() < asked, PartPicker::new(limit));
        for view in found {
            let is_seen = self.sees_source(AccessVerb::List, &view.source).await?;
            picking.pick_row(view.number, view, is_seen);
            if picking.has_next_part() {
                break;
            }
        }
        Ok(picking.into_part(is_last, turn))
    }
}

//! Reads the positions of a story: along the chains of its objects, backwards.

use kubewitness_core::ports::JournalError;

use crate::store::rows::StoreResult;
use crate::store::server::connect::session::ServerSession;

/// Stands for a chain that is longer than may be walked.
const TOO_FAR: i64 = i64::MAX;

impl ServerSession {
    /// A part of one object's story begins at the state where the part before it ended: it is looked up, and nothing
    /// newer is read. Of other objects what is newer is walked over. MySQL refuses a recursion of too many steps, and
    /// MariaDB cuts it without a word.
    pub(super) async fn read_story(
        &mut self,
        objects: &[i64],
        before: i64,
        limit: i64,
        walked: i64,
    ) -> StoreResult<Vec<i64>> {
        // Each chain is walked as far as the whole answer may go; no engine cuts a recursion where its answer ends. Only
        // states of the answer are steps.
        let text = "WITH RECURSIVE chain (seq, back, step, depth) AS ( \
               SELECT s.seq, s.back, CASE WHEN s.seq < ? THEN 1 ELSE 0 END, 1 FROM @numbers \
                 @JOIN kw_objects o ON o.id = q.v LEFT JOIN kw_current c ON c.object = o.id \
                 LEFT JOIN kw_states a ON a.seq = ? AND a.object = o.id \
                 LEFT JOIN kw_states b ON b.seq = ? AND b.object = o.id \
                 @JOIN kw_states s ON s.seq = coalesce(a.seq, b.seq, c.tail, o.tail) \
               UNION ALL \
               SELECT s.seq, s.back, c.step + CASE WHEN s.seq < ? THEN 1 ELSE 0 END, c.depth + 1 FROM chain c \
                 @JOIN kw_states s ON s.seq = c.seq - c.back WHERE c.back > 0 AND c.step < ? AND c.depth < ?) \
             SELECT DISTINCT CASE WHEN depth = ? AND back > 0 AND step < ? THEN 9223372036854775807 ELSE seq END AS place \
             FROM chain WHERE seq < ? OR depth = ? ORDER BY place DESC LIMIT ?";
        let (at, most, far) = (|| before.into(), || limit.into(), || walked.into());
        let params = vec![
            at(),
            objects.into(),
            at(),
            (before - 1).into(),
            at(),
            most(),
            far(),
            far(),
            most(),
            at(),
            far(),
            most(),
        ];
        let found = self.numbers(text, params).await?;
        if found.first() == Some(&TOO_FAR) {
            return Err(JournalError::Invalid(format!(
                "an object of this story has more than {walked} newer states, and the journal's server reads no part \
                 behind them: ask for the story of that object alone, by its uid"
            )));
        }
        Ok(found)
    }
}

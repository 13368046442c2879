//! Reads the positions of a story, backwards along the chains of its objects.

use kubewitness_core::ports::JournalError;

use crate::store::rows::StoreResult;
use crate::store::server::connect::session::ServerSession;

/// Marks a chain that exceeds the limit of a walk.
const TOO_FAR: i64 = i64::MAX;

impl ServerSession {
    /// A part of one object's story begins at the state where the previous part ended: it is looked up, and
    /// nothing newer is read. For several objects, the newer states are walked over. MySQL refuses a
    /// recursion with too many steps, and MariaDB truncates it silently.
    pub(super) async fn read_story(
        &mut self,
        objects: &[i64],
        before: i64,
        limit: i64,
        walked: i64,
    ) -> StoreResult<Vec<i64>> {
        // Each chain is walked to the end of the whole answer, because no engine stops a recursion when its
        // answer is complete. Only states of the answer are steps.
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
        let found = self.fetch_numbers(text, params).await?;
        if found.first() == Some(&TOO_FAR) {
            return Err(JournalError::Invalid(format!(
                "an object of this story has more than {walked} newer states, and the journal's server reads no part \
                 behind them: ask for the story of that object alone, by its uid"
            )));
        }
        Ok(found)
    }
}

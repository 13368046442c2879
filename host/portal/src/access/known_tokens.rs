//! Remembers which tokens were valid a while ago. Their reviews have separate places, so that a flood of
//! invalid tokens does not delay people who are signed in. It stores only digests, and admits nobody.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::PersonDigest;

/// Longer than a person's pause between two visits to the portal.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// As many as answers are cached.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct KnownTokens(Mutex<HashMap<PersonDigest, Instant>>);

impl KnownTokens {
    pub(super) fn is_known(&self, token: &PersonDigest) -> bool {
        self.lock_tokens().get(token).is_some_and(|at| at.elapsed() < REMEMBERED)
    }

    /// Called with each answer about the token.
    pub(super) fn note_answer(&self, token: PersonDigest, is_somebodys: bool) {
        let mut known = self.lock_tokens();
        if !is_somebodys {
            known.remove(&token);
            return;
        }
        if known.len() >= MOST && !known.contains_key(&token) {
            let oldest = known.iter().min_by_key(|(_, at)| **at).map(|(token, _)| *token);
            oldest.map(|token| known.remove(&token));
        }
        known.insert(token, Instant::now());
    }

    fn lock_tokens(&self) -> MutexGuard<'_, HashMap<PersonDigest, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_newest_tokens_are_remembered_for_a_while_and_no_more_than_there_is_room_for() {
        let known = KnownTokens::default();
        let token = |number: usize| {
            let mut digest = PersonDigest::default();
            digest[..8].copy_from_slice(&number.to_be_bytes());
            digest
        };
        for number in 0..MOST + 10 {
            known.note_answer(token(number), true);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(known.lock_tokens().len(), MOST);
        assert!(!known.is_known(&token(9)) && known.is_known(&token(10)) && known.is_known(&token(MOST + 9)));
        known.note_answer(token(10), false);
        assert!(!known.is_known(&token(10)));
        tokio::time::advance(REMEMBERED).await;
        assert!(!known.is_known(&token(MOST + 9)));
    }
}

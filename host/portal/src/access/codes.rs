//! One-time logins. A command that has a token requests a code, and the browser that it opens sends the code
//! instead of the token, so that no token appears in an address. A code is valid once, for [`GOOD_FOR`], in
//! the process that issued it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;

use super::{PersonDigest, party_of, sha256};

/// A browser starts within seconds, but a person may have to copy the address.
pub(crate) const GOOD_FOR: Duration = Duration::from_secs(60);
/// The most valid codes. A token has one at most; a new one replaces it.
const MOST_CODES: usize = 1024;
/// The most codes of one party. A further one replaces the party's oldest, so that no party keeps others from
/// signing in.
const CODES_OF_ONE_PARTY: usize = 64;
const CODE_BYTES: usize = 32;

struct LoginCode {
    digest: PersonDigest,
    token: String,
    party: String,
    until: Instant,
}

pub(crate) struct LoginCodes {
    random: SystemRandom,
    /// By the token's digest.
    given: Mutex<HashMap<PersonDigest, LoginCode>>,
}

impl LoginCodes {
    pub(super) fn new() -> Self {
        Self { random: SystemRandom::new(), given: Mutex::default() }
    }

    /// A new code for a token. `None` if too many people ask at once, or if the machine has no random
    /// numbers.
    pub(crate) fn issue_code(&self, token: &str, user: &str) -> Option<String> {
        let mut code = [0; CODE_BYTES];
        self.random.fill(&mut code).ok()?;
        let code = URL_SAFE_NO_PAD.encode(code);
        let mut given = self.lock_fresh();
        let (owner, party) = (sha256(token.as_bytes()), party_of(user));
        make_room(&mut given, &owner, party);
        if given.len() >= MOST_CODES && !given.contains_key(&owner) {
            return None;
        }
        let until = Instant::now() + GOOD_FOR;
        let digest = sha256(code.as_bytes());
        given.insert(owner, LoginCode { digest, token: token.to_owned(), party: party.to_owned(), until });
        Some(code)
    }

    /// Returns the token of a code, and makes the code invalid.
    pub(crate) fn redeem_code(&self, code: &str) -> Option<String> {
        let mut given = self.lock_fresh();
        let owner = owner_of(&given, code)?;
        given.remove(&owner).map(|known| known.token)
    }

    /// Returns the token of a code, which stays valid.
    pub(crate) fn token_of(&self, code: &str) -> Option<String> {
        let given = self.lock_fresh();
        let owner = owner_of(&given, code)?;
        given.get(&owner).map(|known| known.token.clone())
    }

    fn lock_fresh(&self) -> MutexGuard<'_, HashMap<PersonDigest, LoginCode>> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        given.retain(|_, code| now < code.until);
        given
    }
}

/// Makes room for a code of this owner, if the party has its maximum.
fn make_room(given: &mut HashMap<PersonDigest, LoginCode>, owner: &PersonDigest, party: &str) {
    let theirs = given.iter().filter(|(known, code)| *known != owner && code.party == party);
    if theirs.clone().count() >= CODES_OF_ONE_PARTY
        && let Some(oldest) = theirs.min_by_key(|(_, code)| code.until).map(|(known, _)| *known)
    {
        given.remove(&oldest);
    }
}

/// Digests are compared, so the time reveals nothing about how much of a guess is right.
fn owner_of(given: &HashMap<PersonDigest, LoginCode>, code: &str) -> Option<PersonDigest> {
    let digest = sha256(code.as_bytes());
    given.iter().find(|(_, known)| known.digest == digest).map(|(owner, _)| *owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_code_is_good_once_and_for_a_minute_and_the_newest_of_a_token_counts() {
        let codes = LoginCodes::new();
        let code = codes.issue_code("red", "red").unwrap();
        // The random part may contain the three letters.
        assert!(!code.starts_with("red") && !code.ends_with("red") && code.len() > 40);
        assert_eq!((codes.redeem_code("guess"), codes.token_of("guess")), (None, None));
        assert_eq!(codes.token_of(&code).as_deref(), Some("red"), "to look does not use it");
        assert_eq!(codes.redeem_code(&code).as_deref(), Some("red"));
        assert_eq!((codes.redeem_code(&code), codes.token_of(&code)), (None, None));
        let (first, second) =
            (codes.issue_code("red", "red").unwrap(), codes.issue_code("red", "red").unwrap());
        assert_eq!(codes.redeem_code(&first), None);
        tokio::time::advance(GOOD_FOR).await;
        assert_eq!(codes.redeem_code(&second), None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_codes_are_kept_than_there_is_room_for() {
        let codes = LoginCodes::new();
        for number in 0..MOST_CODES {
            assert!(codes.issue_code(&number.to_string(), &number.to_string()).is_some());
        }
        assert!(codes.issue_code("one more", "eve").is_none());
        assert!(codes.issue_code("0", "0").is_some(), "it has a place");
        tokio::time::advance(GOOD_FOR).await;
        assert!(codes.issue_code("one more", "eve").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_service_accounts_of_a_namespace_leave_room_to_others() {
        let codes = LoginCodes::new();
        for number in 0..MOST_CODES * 2 {
            let user = format!("system:serviceaccount:team-vision:robot-{number}");
            assert!(codes.issue_code(&number.to_string(), &user).is_some());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(codes.lock_fresh().len(), CODES_OF_ONE_PARTY);
        assert!(codes.issue_code("one more", "system:serviceaccount:team-speech:robot").is_some());
    }
}

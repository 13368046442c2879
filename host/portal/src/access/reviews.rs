//! Asks the API server for reviews, limits how many run at once, and caches each answer for seconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ports::{
    AccessAttempt, AccessReviewer, LiveNamespace, PartyShares, Person, ReviewError,
};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::warn;

use super::answers::AnswerCache;
use super::codes::LoginCodes;
use super::known_tokens::KnownTokens;
use super::session::{self, PortalSession, PortalTransport, SessionTable};
use super::{AccessOptions, PersonDigest, TOKEN_BYTES, party_of, sha256};

/// How long an answer of the API server is valid. A right that is withdrawn in Kubernetes ends here after
/// this time at the latest; somebody waits for one that is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTimes {
    /// How long the person of a valid token is known.
    pub known: Duration,
    /// That a token is invalid.
    pub unknown: Duration,
    pub allowed: Duration,
    pub denied: Duration,
    /// How long the namespace with a name is known.
    pub namespace: Duration,
}

impl Default for AnswerTimes {
    fn default() -> Self {
        let long = Duration::from_secs(10);
        Self {
            known: long,
            unknown: Duration::from_secs(2),
            allowed: long,
            denied: Duration::from_secs(5),
            namespace: long,
        }
    }
}

/// The tokens of people who use a portal within ten seconds, and garbage that others send.
const TOKENS: usize = 4096;
/// Each person has one entry for each resource and namespace that they look at.
const RIGHTS: usize = 32_768;
const NAMESPACES: usize = 8192;

/// Concurrent reviews. Tokens have separate places, and so have recently valid ones: people who send garbage
/// do not delay those who are signed in.
const TOKEN_REVIEWS: usize = 16;
const KNOWN_TOKEN_REVIEWS: usize = 16;
const RIGHT_REVIEWS: usize = 32;
/// How many of these one party may have at once: a list over many namespaces needs one for each.
const RIGHT_REVIEWS_OF_ONE: usize = 8;
/// Concurrent requests of one party. Requests that wait for a review count, and each holds a connection that
/// others would need: a browser opens six.
const REQUESTS_OF_ONE: usize = 16;
/// New tokens that are reviewed or wait for a review. The API server answers in milliseconds, so more of them
/// are a flood.
const UNKNOWN_TOKENS: usize = TOKEN_REVIEWS + 64;
/// The limit for a review, including the wait for its place. A healthy API server takes milliseconds.
const REVIEW_TIME: Duration = Duration::from_secs(5);

/// How often missing answers are logged while they last.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// No answer, so nothing may be shown.
#[derive(Clone, Debug)]
pub(crate) struct ReviewUnanswered {
    /// The API server does not allow the portal to ask, so a retry does not help.
    pub(crate) refused: bool,
    pub(crate) why: Arc<str>,
}

impl ReviewUnanswered {
    pub(super) fn new(refused: bool, why: &str) -> Self {
        Self { refused, why: why.into() }
    }
}

impl From<ReviewError> for ReviewUnanswered {
    fn from(error: ReviewError) -> Self {
        Self::new(matches!(error, ReviewError::Forbidden(_)), &error.to_string())
    }
}

impl From<AcquireError> for ReviewUnanswered {
    /// The semaphore is never closed.
    fn from(error: AcquireError) -> Self {
        Self::new(false, &error.to_string())
    }
}

/// A person, with the digest of everything that the API server says about them. Their rights are cached under
/// this digest.
#[derive(Debug)]
pub(crate) struct KnownPerson {
    pub(crate) person: Person,
    /// The party whose shares they use.
    pub(super) party: Arc<str>,
    digest: PersonDigest,
}

impl KnownPerson {
    pub(super) fn new(person: Person) -> Self {
        let text = serde_json::to_vec(&person).unwrap_or_else(|_| format!("{person:?}").into_bytes());
        Self { digest: sha256(&text), party: party_of(&person.user).into(), person }
    }
}

/// An answer, and the time before its question was asked.
#[derive(Clone, Debug)]
struct AskedReview<T> {
    answer: T,
    at: Instant,
}

impl<T> AskedReview<T> {
    async fn now(
        asking: impl Future<Output = Result<T, ReviewUnanswered>>,
    ) -> Result<Self, ReviewUnanswered> {
        let at = Instant::now();
        Ok(Self { answer: asking.await?, at })
    }
}

/// Asks the API server who somebody is and what they may see.
pub struct AccessControl {
    reviewer: Arc<dyn AccessReviewer>,
    pub(super) options: AccessOptions,
    pub(super) sessions: SessionTable,
    /// One-time logins.
    pub(crate) codes: LoginCodes,
    clock: SystemClock,
    /// By the token's digest: the token itself is not stored.
    tokens: AnswerCache<PersonDigest, Option<Arc<KnownPerson>>>,
    rights: AnswerCache<(PersonDigest, AccessAttempt), AskedReview<bool>>,
    namespaces: AnswerCache<String, AskedReview<Option<LiveNamespace>>>,
    known_tokens: KnownTokens,
    token_reviews: Semaphore,
    known_token_reviews: Semaphore,
    right_reviews: Semaphore,
    unknown_tokens: Semaphore,
    right_shares: PartyShares<Arc<str>>,
    request_shares: PartyShares<Arc<str>>,
    /// When a missing answer was last logged.
    last_logged: Mutex<Option<Instant>>,
}

impl AccessControl {
    pub fn new(reviewer: Arc<dyn AccessReviewer>, options: AccessOptions) -> Self {
        Self {
            reviewer,
            sessions: SessionTable::new(&options.session_key, options.ended.clone()),
            options,
            codes: LoginCodes::new(),
            clock: SystemClock::default(),
            tokens: AnswerCache::new(TOKENS),
            rights: AnswerCache::new(RIGHTS),
            namespaces: AnswerCache::new(NAMESPACES),
            known_tokens: KnownTokens::default(),
            token_reviews: Semaphore::new(TOKEN_REVIEWS),
            known_token_reviews: Semaphore::new(KNOWN_TOKEN_REVIEWS),
            right_reviews: Semaphore::new(RIGHT_REVIEWS),
            right_shares: PartyShares::new(RIGHT_REVIEWS_OF_ONE),
            unknown_tokens: Semaphore::new(UNKNOWN_TOKENS),
            request_shares: PartyShares::new(REQUESTS_OF_ONE),
            last_logged: Mutex::default(),
        }
    }

    /// The person of a token; `None` if it can't be valid.
    pub(crate) async fn person_of_token(
        &self,
        token: &str,
    ) -> Result<Option<Arc<KnownPerson>>, ReviewUnanswered> {
        self.reviewed_token(token, self.known_tokens.is_known(&sha256(token.as_bytes()))).await
    }

    /// The person of a session. Its token was valid when it began.
    pub(crate) async fn person_of(
        &self,
        session: &PortalSession,
    ) -> Result<Option<Arc<KnownPerson>>, ReviewUnanswered> {
        self.reviewed_token(&session.token, true).await
    }

    async fn reviewed_token(
        &self,
        token: &str,
        was_known: bool,
    ) -> Result<Option<Arc<KnownPerson>>, ReviewUnanswered> {
        let is_token = |byte: u8| byte.is_ascii_graphic();
        if token.is_empty() || token.len() > TOKEN_BYTES || !token.bytes().all(is_token) {
            return Ok(None);
        }
        let AnswerTimes { known, unknown, .. } = self.options.times;
        let keep = |answer: &Option<Arc<KnownPerson>>| if answer.is_some() { known } else { unknown };
        let places = if was_known { &self.known_token_reviews } else { &self.token_reviews };
        let ask = async {
            let waits = self.unknown_tokens.try_acquire();
            if waits.is_err() && !was_known {
                return Err(ReviewUnanswered::new(false, "too many unknown tokens are asked about"));
            }
            let person = self.run_review(places, self.reviewer.authenticate_token(token)).await?;
            // An empty name is an error of the server that answered, and everybody would share it.
            Ok(person
                .filter(|person| !person.user.is_empty())
                .map(|person| Arc::new(KnownPerson::new(person))))
        };
        let digest = sha256(token.as_bytes());
        let answer = self.tokens.get(&digest, keep, ask).await?;
        self.known_tokens.note_answer(digest, answer.is_some());
        Ok(answer)
    }

    pub(crate) async fn allows_attempt(
        &self,
        known: &KnownPerson,
        attempt: &AccessAttempt,
    ) -> Result<bool, ReviewUnanswered> {
        Ok(self.review_right(known, attempt).await?.answer)
    }

    async fn review_right(
        &self,
        known: &KnownPerson,
        attempt: &AccessAttempt,
    ) -> Result<AskedReview<bool>, ReviewUnanswered> {
        let AnswerTimes { allowed, denied, .. } = self.options.times;
        let keep = |right: &AskedReview<bool>| if right.answer { allowed } else { denied };
        let key = (known.digest, attempt.clone());
        if let Some(kept) = self.rights.cached_answer(&key, |_| true) {
            return kept;
        }
        let _share = self.take_share(known).await?;
        let ask = AskedReview::now(
            self.run_review(&self.right_reviews, self.reviewer.allows_attempt(&known.person, attempt)),
        );
        self.rights.get(&key, keep, ask).await
    }

    /// The namespace in which the person may do this; `None` if they may not, or it does not exist.
    ///
    /// A right in a recreated namespace does not apply to the former one. So the namespace is always read
    /// after the right.
    pub(crate) async fn namespace_of(
        &self,
        known: &KnownPerson,
        attempt: &AccessAttempt,
    ) -> Result<Option<LiveNamespace>, ReviewUnanswered> {
        let right = self.review_right(known, attempt).await?;
        if !right.answer {
            return Ok(None);
        }
        self.review_namespace(known, &attempt.namespace, |kept| kept.at >= right.at).await
    }

    /// The namespace that has this name now, whatever the person may do there.
    pub(crate) async fn live_namespace(
        &self,
        known: &KnownPerson,
        name: &String,
    ) -> Result<Option<LiveNamespace>, ReviewUnanswered> {
        self.review_namespace(known, name, |_| true).await
    }

    async fn review_namespace(
        &self,
        known: &KnownPerson,
        name: &String,
        is_good: impl Fn(&AskedReview<Option<LiveNamespace>>) -> bool,
    ) -> Result<Option<LiveNamespace>, ReviewUnanswered> {
        if let Some(kept) = self.namespaces.cached_answer(name, &is_good) {
            return Ok(kept?.answer);
        }
        let _share = self.take_share(known).await?;
        let ask = AskedReview::now(self.run_review(&self.right_reviews, self.reviewer.find_namespace(name)));
        Ok(self.namespaces.get_where(name, is_good, |_| self.options.times.namespace, ask).await?.answer)
    }

    /// A place among the reviews of their party. It is taken before the cache slot, so that others with the
    /// same question wait for the API server, and not for this person's turn.
    async fn take_share(&self, known: &KnownPerson) -> Result<OwnedSemaphorePermit, ReviewUnanswered> {
        in_time(async { Ok(self.right_shares.take(&known.party).await?) }).await
    }

    /// A place among the requests of their party, until the answer is sent; `None` if all are taken.
    pub(super) fn begin_request(&self, known: &KnownPerson) -> Option<OwnedSemaphorePermit> {
        self.request_shares.take_at_once(&known.party)
    }

    async fn run_review<T>(
        &self,
        places: &Semaphore,
        review: impl Future<Output = Result<T, ReviewError>>,
    ) -> Result<T, ReviewUnanswered> {
        let answer = in_time(async {
            let _place = places.acquire().await?;
            Ok(review.await?)
        });
        let answer = answer.await;
        if let Err(unanswered) = &answer {
            self.log_unanswered(unanswered);
        }
        answer
    }

    fn log_unanswered(&self, ReviewUnanswered { why, .. }: &ReviewUnanswered) {
        let mut last_logged = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
        if last_logged.is_none_or(|last_logged| last_logged.elapsed() >= LOG_EVERY) {
            *last_logged = Some(Instant::now());
            warn!(
                "the API server does not say who somebody is or what they may see, so nothing is shown: {why}"
            );
        }
    }

    pub(crate) fn logs_reads(&self) -> bool {
        self.options.log_reads
    }

    /// The cookies of a new session with this token.
    pub(crate) fn begin_session(
        &self,
        token: &str,
        known: &KnownPerson,
        transport: PortalTransport,
    ) -> Option<Vec<String>> {
        let text = self.sessions.seal_session(token, &known.person.user, self.clock.now_ms()).ok()?;
        Some(session::set_cookie_headers(&text, transport))
    }

    pub(super) fn open(&self, text: &str) -> Option<PortalSession> {
        self.sessions.open(text, self.clock.now_ms())
    }

    pub(super) fn is_session_valid(&self, session: &PortalSession) -> bool {
        self.sessions.is_session_valid(session, self.clock.now_ms())
    }

    /// Returns once somebody has ended the session early.
    pub(super) async fn await_end(&self, session: &PortalSession) {
        self.sessions.ended.await_end_of(session).await;
    }

    pub(super) async fn end_session(&self, session: &PortalSession) {
        if let Err(error) = self.sessions.ended.add(session, self.clock.now_ms()).await {
            warn!(
                "a log-out is lost at the next start, since it can't be written to the data folder: {error}"
            );
        }
    }
}

async fn in_time<T>(asked: impl Future<Output = Result<T, ReviewUnanswered>>) -> Result<T, ReviewUnanswered> {
    let late = || ReviewUnanswered::new(false, &format!("no answer within {} s", REVIEW_TIME.as_secs()));
    tokio::time::timeout(REVIEW_TIME, asked).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use futures::FutureExt;

    use super::super::EndedSessions;
    use super::*;

    /// A namespace whose age is the number of times that it was created.
    #[derive(Default)]
    struct RemadeNamespace(AtomicU64);

    #[async_trait]
    impl AccessReviewer for RemadeNamespace {
        async fn authenticate_token(&self, token: &str) -> Result<Option<Person>, ReviewError> {
            Ok(Some(Person { user: token.into(), ..Person::default() }))
        }

        async fn allows_attempt(&self, person: &Person, _: &AccessAttempt) -> Result<bool, ReviewError> {
            Ok(person.user != "nobody")
        }

        async fn find_namespace(&self, _: &str) -> Result<Option<LiveNamespace>, ReviewError> {
            let created_ms = self.0.load(Ordering::SeqCst);
            Ok(Some(LiveNamespace { uid: "u".into(), created_ms }))
        }
    }

    fn control(reviewer: Arc<RemadeNamespace>) -> AccessControl {
        let options = AccessOptions {
            times: AnswerTimes::default(),
            session_key: [7; 32],
            ended: EndedSessions::default(),
            log_reads: false,
            trusted_proxy: None,
        };
        AccessControl::new(reviewer, options)
    }

    #[tokio::test]
    async fn an_answer_that_two_parties_want_waits_for_the_share_of_neither() {
        let control = control(Arc::default());
        let known = async |name: &str| control.person_of_token(name).await.unwrap().unwrap();
        let (ann, bob, name) = (known("ann").await, known("bob").await, "ml".to_owned());
        let mut busy = Vec::new();
        for _ in 0..RIGHT_REVIEWS_OF_ONE {
            busy.push(control.take_share(&ann).await.unwrap());
        }
        let mut hers = Box::pin(control.live_namespace(&ann, &name));
        assert!(futures::poll!(hers.as_mut()).is_pending(), "she waits for herself");
        let his = control.live_namespace(&bob, &name).now_or_never().expect("he does not wait for her");
        assert!(his.unwrap().is_some());
        assert!(control.live_namespace(&ann, &name).now_or_never().is_some(), "what is kept needs no share");
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_is_in_the_namespace_that_was_there_when_it_was_asked_for_or_in_a_later_one() {
        let reviewer = Arc::new(RemadeNamespace::default());
        let control = control(reviewer.clone());
        let attempt = AccessAttempt {
            verb: "list".into(),
            group: String::new(),
            resource: "pods".into(),
            namespace: "ml".into(),
            name: String::new(),
        };
        let since = async |name: &str| {
            let known = control.person_of_token(name).await.unwrap().unwrap();
            control.namespace_of(&known, &attempt).await.unwrap().map(|namespace| namespace.created_ms)
        };
        assert_eq!((since("ann").await, since("nobody").await), (Some(0), None));
        reviewer.0.store(1, Ordering::SeqCst);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(since("ann").await, Some(0), "her right was in the one before, a moment ago");
        assert_eq!(since("eve").await, Some(1), "hers was never");
        assert_eq!(since("ann").await, Some(1));
    }
}

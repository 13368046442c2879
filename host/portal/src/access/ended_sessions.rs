//! Sessions that people have ended early, each remembered until it would have expired.
//!
//! A session is a cookie that the portal does not store, so only a list of ended ones can revoke it. The list
//! is in a file of the data folder, so that a restart does not reopen sessions. The file has a line for each:
//! the id in hex digits, a space, and the expiry in milliseconds since 1970. An id begins with a digest of
//! its person. The id 0 stands for every session that expires by its time, and a person's digest followed by
//! zeros for every one of that person. So no ended session is forgotten if there is no room for all of them,
//! or if the file can't be read.
//!
//! Replicas [exchange](EndedSessions::merge_with_others) the same text, so that a sign-out applies on each of them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubewitness_core::files;
use tokio::sync::Notify;

use super::session::{LIFETIME, PERSON_BYTES, PortalSession, SessionId};

/// How many ended sessions are remembered individually. If there are more, all sessions that expire no later
/// than the first of them count as ended.
const MOST_ENDED: usize = 10_000;
/// How many of them one person has. If there are more, only that person's sessions are affected: nobody signs
/// others out by signing in and out.
const ENDED_OF_ONE_PERSON: usize = 100;
/// The size limit of the file: room for the most lines, and some more.
const FILE_BYTES: u64 = 1 << 20;

type SessionIds = BTreeMap<SessionId, u64>;

/// The id that stands for every session. No session has it, because ids are random.
const EVERY_SESSION: SessionId = [0; 16];

/// The id that stands for every session of this id's person.
fn every_of(id: &SessionId) -> SessionId {
    let mut every = EVERY_SESSION;
    every[..PERSON_BYTES].copy_from_slice(&id[..PERSON_BYTES]);
    every
}

/// The sessions that people have ended.
#[derive(Clone, Default)]
pub struct EndedSessions(Arc<EndedInner>);

#[derive(Default)]
struct EndedInner {
    /// Without a file, a restart reopens ended sessions.
    file: Option<PathBuf>,
    ids: Mutex<SessionIds>,
    /// Its holder writes the file.
    writing: tokio::sync::Mutex<()>,
    /// Wakes streams whose session may have just ended.
    news: Notify,
}

impl EndedSessions {
    /// The sessions in this file; none if the file is missing.
    pub async fn open(file: &Path) -> io::Result<Self> {
        let path = file.to_owned();
        let read = files::run_within_limit(file, files::ANSWER, move || {
            let exists = files::look(&path)?.is_some();
            if exists { parse(&files::text(&path, FILE_BYTES)?) } else { Ok(SessionIds::new()) }
        });
        let ids = Mutex::new(read.await?);
        Ok(Self(Arc::new(EndedInner { file: Some(file.to_owned()), ids, ..EndedInner::default() })))
    }

    /// For a file that can't be read: every session counts as ended, so everybody has to sign in again.
    pub async fn all_ended(file: &Path, now_ms: u64) -> (Self, io::Result<()>) {
        let until_ms = now_ms.saturating_add(LIFETIME.as_millis() as u64);
        let ids = Mutex::new(SessionIds::from([(EVERY_SESSION, until_ms)]));
        let every = Self(Arc::new(EndedInner { file: Some(file.to_owned()), ids, ..EndedInner::default() }));
        let written = every.write().await;
        (every, written)
    }

    pub(super) fn is_ended(&self, session: &PortalSession) -> bool {
        let ids = self.lock_ids();
        let is_among =
            |every: SessionId| ids.get(&every).is_some_and(|until_ms| session.ends_ms <= *until_ms);
        ids.contains_key(&session.id) || is_among(every_of(&session.id)) || is_among(EVERY_SESSION)
    }

    /// Returns once this session has ended.
    pub(super) async fn await_end_of(&self, session: &PortalSession) {
        loop {
            let news = self.0.news.notified();
            tokio::pin!(news);
            // Before the check, so that no end falls in between.
            news.as_mut().enable();
            if self.is_ended(session) {
                return;
            }
            news.await;
        }
    }

    /// Ends a session at once, and for later processes as soon as this returns.
    pub(super) async fn add(&self, session: &PortalSession, now_ms: u64) -> io::Result<()> {
        {
            let mut ids = self.lock_ids();
            ids.retain(|_, ends_ms| now_ms < *ends_ms);
            ids.insert(session.id, session.ends_ms);
            make_room(&mut ids, MOST_ENDED);
        }
        self.0.news.notify_waiters();
        self.write().await
    }

    /// Merges the sessions that other replicas have ended. Returns the merged list if it has more than
    /// `theirs`.
    pub async fn merge_with_others(&self, theirs: &str, now_ms: u64) -> io::Result<Option<String>> {
        let theirs = parse(theirs)?;
        let (is_news, more) = {
            let (mut ids, mut is_news) = (self.lock_ids(), false);
            ids.retain(|_, ends_ms| now_ms < *ends_ms);
            for (id, ends_ms) in theirs.iter().filter(|(_, ends_ms)| now_ms < **ends_ms) {
                let known = ids.entry(*id).or_default();
                is_news |= *known < *ends_ms;
                *known = (*known).max(*ends_ms);
            }
            make_room(&mut ids, MOST_ENDED);
            let is_more = ids.iter().any(|(id, ends_ms)| theirs.get(id).is_none_or(|known| known < ends_ms));
            (is_news, is_more.then(|| text(&ids)))
        };
        if is_news {
            self.0.news.notify_waiters();
            self.write().await?;
        }
        Ok(more)
    }

    async fn write(&self) -> io::Result<()> {
        let Some(file) = self.0.file.clone() else { return Ok(()) };
        let _turn = self.0.writing.lock().await;
        let (path, text) = (file.clone(), text(&self.lock_ids()));
        files::run_within_limit(&file, files::ANSWER, move || {
            files::replace_file_atomically(&path, text.as_bytes(), 0o600)
        })
        .await
    }

    fn lock_ids(&self) -> MutexGuard<'_, SessionIds> {
        self.0.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_room(ids: &mut SessionIds, most: usize) {
    let mut of_each: BTreeMap<SessionId, usize> = BTreeMap::new();
    for id in ids.keys().filter(|id| **id != every_of(id)) {
        *of_each.entry(every_of(id)).or_default() += 1;
    }
    for (every, count) in of_each {
        (ENDED_OF_ONE_PERSON..count)
            .for_each(|_| fold_first_expiring(ids, every, |id| every_of(id) == every));
    }
    while ids.len() > most {
        fold_first_expiring(ids, EVERY_SESSION, |_| true);
    }
}

/// Merges the session that expires first into the entry `every`.
fn fold_first_expiring(ids: &mut SessionIds, every: SessionId, is_of: impl Fn(&SessionId) -> bool) {
    let each = ids.iter().filter(|(id, _)| **id != every && is_of(id));
    let Some((soonest, ends_ms)) = each.min_by_key(|(_, ends_ms)| **ends_ms) else { return };
    let (soonest, ends_ms) = (*soonest, *ends_ms);
    ids.remove(&soonest);
    let until_ms = ids.entry(every).or_default();
    *until_ms = ends_ms.max(*until_ms);
}

fn text(ids: &SessionIds) -> String {
    let line = |(id, ends_ms): (&SessionId, &u64)| format!("{:032x} {ends_ms}\n", u128::from_be_bytes(*id));
    ids.iter().map(line).collect()
}

fn parse(text: &str) -> io::Result<SessionIds> {
    let wrong = |line: &str| io::Error::other(format!("`{line:.60}` is no line of ended sessions"));
    let line = |line: &str| {
        let (id, ends_ms) = line.split_once(' ')?;
        let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u128::from_str_radix(id, 16).ok().filter(|_| is_id)?;
        Some((id.to_be_bytes(), ends_ms.parse().ok()?))
    };
    text.lines().map(|text| line(text).ok_or_else(|| wrong(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_182_311_000;

    /// The first session of the person with this number.
    fn session(number: u64, ends_ms: u64) -> PortalSession {
        session_of(number, 1, ends_ms)
    }

    fn session_of(person: u64, number: u64, ends_ms: u64) -> PortalSession {
        let id = u128::from(person) << 64 | u128::from(number);
        PortalSession { id: id.to_be_bytes(), ends_ms, token: String::new() }
    }

    #[tokio::test]
    async fn who_signs_in_and_out_again_and_again_ends_no_session_of_another_person() {
        let (ended, twin) = (EndedSessions::default(), EndedSessions::default());
        let others = session(2, NOW + 10);
        for number in 1..=MOST_ENDED as u64 + 100 {
            ended.add(&session_of(1, number, NOW + 1_000 + number), NOW).await.unwrap();
        }
        assert!(ended.lock_ids().len() <= ENDED_OF_ONE_PERSON + 1);
        let listed = text(&ended.lock_ids());
        twin.merge_with_others(&listed, NOW).await.unwrap();
        for ended in [&ended, &twin] {
            assert!(!ended.is_ended(&others), "the other goes on");
            assert!(ended.is_ended(&session_of(1, 1, NOW + 1_001)), "what has made room is not forgotten");
            assert!(ended.is_ended(&session_of(1, MOST_ENDED as u64, NOW + 1_000 + MOST_ENDED as u64)));
            assert!(!ended.is_ended(&session_of(1, u64::MAX, NOW + 1_000_000)), "a new one goes on");
        }
    }

    #[tokio::test]
    async fn what_was_ended_stays_so_in_the_next_process_until_it_would_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ended-sessions");
        let ended = EndedSessions::open(&file).await.unwrap();
        let (one, other) = (session(1, NOW + 10), session(2, NOW + 1000));
        ended.add(&one, NOW).await.unwrap();
        assert!(ended.is_ended(&one) && !ended.is_ended(&other));
        let next = EndedSessions::open(&file).await.unwrap();
        assert!(next.is_ended(&one) && !next.is_ended(&other));
        next.add(&other, NOW + 10).await.unwrap();
        let last = EndedSessions::open(&file).await.unwrap();
        assert!(!last.is_ended(&one) && last.is_ended(&other), "one is over by itself");
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
    }

    #[tokio::test]
    async fn no_more_are_remembered_than_there_is_room_for_and_their_file_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ended-sessions");
        let full: SessionIds =
            (1..=MOST_ENDED as u64).map(|number| (session(number, 0).id, NOW + 10 + number)).collect();
        std::fs::write(&file, text(&full)).unwrap();
        assert!(std::fs::metadata(&file).unwrap().len() < FILE_BYTES);
        let ended = EndedSessions::open(&file).await.unwrap();
        ended.add(&session(u64::MAX, NOW + 1_000_000), NOW).await.unwrap();
        assert!(ended.lock_ids().len() <= MOST_ENDED);
        let read = EndedSessions::open(&file).await.unwrap();
        for ended in [&ended, &read] {
            assert!(ended.is_ended(&session(1, NOW + 11)), "what has made room is not forgotten");
            assert!(
                ended.is_ended(&session(u64::MAX, NOW + 1_000_000)) && ended.is_ended(&session(9, NOW + 19))
            );
            assert!(ended.is_ended(&session(123_456, NOW + 11)), "as old as what has made room");
            assert!(!ended.is_ended(&session(123_456, NOW + 1_000)));
        }
    }

    #[tokio::test]
    async fn replicas_learn_of_each_others_log_outs_and_keep_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ended-sessions");
        let (one, other) = (EndedSessions::default(), EndedSessions::open(&file).await.unwrap());
        assert_eq!(other.merge_with_others("", NOW).await.unwrap(), None, "there is nothing to tell");
        one.add(&session(1, NOW + 10), NOW).await.unwrap();
        other.add(&session(2, NOW + 20), NOW).await.unwrap();
        let merged = one.merge_with_others("", NOW).await.unwrap().unwrap();
        let both = other.merge_with_others(&merged, NOW).await.unwrap().unwrap();
        assert!(other.is_ended(&session(1, NOW + 10)));
        assert!(
            EndedSessions::open(&file).await.unwrap().is_ended(&session(1, NOW + 10)),
            "also after a restart"
        );
        assert_eq!(one.merge_with_others(&both, NOW).await.unwrap(), None);
        assert!(one.is_ended(&session(2, NOW + 20)));
        assert_eq!(
            one.merge_with_others(&both, NOW + 15).await.unwrap(),
            None,
            "what is over is not told again"
        );
        assert_eq!(one.lock_ids().len(), 1);
        assert!(one.merge_with_others("garbage", NOW).await.is_err());
        let others = 3..MOST_ENDED as u64 + 3;
        let full: SessionIds = others.map(|number| (session(number, 0).id, NOW + 1000 + number)).collect();
        let more = one.merge_with_others(&text(&full), NOW + 15).await.unwrap().unwrap();
        assert!(
            more.lines().count() <= MOST_ENDED && one.is_ended(&session(2, NOW + 20)),
            "nobody's log-out is undone"
        );
        assert_eq!(one.merge_with_others(&more, NOW + 15).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_damaged_file_is_told_and_where_it_is_passed_over_every_session_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ended-sessions");
        for damaged in
            ["x", "00 1", &format!("{:032x}", 7), &format!("{:032x} soon", 7), &format!("+{:031x} 1", 7)]
        {
            std::fs::write(&file, damaged).unwrap();
            assert!(EndedSessions::open(&file).await.is_err(), "{damaged}");
        }
        std::fs::write(&file, vec![b'0'; FILE_BYTES as usize + 1]).unwrap();
        assert!(EndedSessions::open(&file).await.is_err());
        let lifetime = LIFETIME.as_millis() as u64;
        let (every, written) = EndedSessions::all_ended(&file, NOW).await;
        assert!(written.is_ok());
        let read = EndedSessions::open(&file).await.unwrap();
        for ended in [every, read] {
            assert!(ended.is_ended(&session(7, NOW)) && ended.is_ended(&session(8, NOW + lifetime)));
            assert!(!ended.is_ended(&session(9, NOW + lifetime + 1)), "it began later");
        }
    }

    #[tokio::test]
    async fn a_session_whose_end_can_not_be_written_has_ended_here_and_that_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let ended = EndedSessions::open(&folder.path().join("gone").join("ended-sessions")).await.unwrap();
        let one = session(1, NOW + 10);
        assert!(ended.add(&one, NOW).await.is_err() && ended.is_ended(&one));
    }
}

//! How many sessions each person has opened of late. Each of them may be ended before its time and has to be remembered
//! then. Where nobody opens more than their share, nobody fills the list of ended sessions for all the others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::session::LIFETIME;

/// Sessions that one person opens within the life of a session.
const EACH: usize = 100;
/// People who are remembered. Where there are more, the one who has opened none for the longest time is forgotten.
const PEOPLE: usize = 10_000;

/// By the person's name, when each session was opened, the oldest first.
#[derive(Default)]
pub(super) struct OpenedSessions(Mutex<HashMap<String, VecDeque<u64>>>);

impl OpenedSessions {
    /// Counts one more of this person, if they have not had their share. Where they have, the answer is in how many
    /// seconds they may open the next.
    pub(super) fn add(&self, who: &str, now_ms: u64) -> Result<(), u64> {
        let lifetime = LIFETIME.as_millis() as u64;
        let is_over = |at: u64| at.saturating_add(lifetime) <= now_ms;
        let mut people = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !people.contains_key(who) && people.len() >= PEOPLE {
            people.retain(|_, opened| opened.back().is_some_and(|at| !is_over(*at)));
            let latest = |(_, opened): &(&String, &VecDeque<u64>)| opened.back().copied();
            if people.len() >= PEOPLE
                && let Some(quiet) = people.iter().min_by_key(latest).map(|(name, _)| name.clone())
            {
                people.remove(&quiet);
            }
        }
        let opened = people.entry(who.to_owned()).or_default();
        while opened.front().is_some_and(|at| is_over(*at)) {
            opened.pop_front();
        }
        match opened.front().filter(|_| opened.len() >= EACH) {
            Some(oldest) => Err(oldest.saturating_add(lifetime).saturating_sub(now_ms).div_ceil(1000)),
            None => {
                opened.push_back(now_ms);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_182_311_000;

    #[test]
    fn a_person_opens_so_many_sessions_within_the_life_of_one_and_others_open_theirs() {
        let (opened, lifetime) = (OpenedSessions::default(), LIFETIME.as_millis() as u64);
        for number in 0..EACH as u64 {
            opened.add("ada", NOW + number).unwrap();
        }
        assert_eq!(opened.add("ada", NOW + 1000), Err(LIFETIME.as_secs() - 1));
        opened.add("grace", NOW + 1000).unwrap();
        assert!(opened.add("ada", NOW + lifetime - 1).is_err());
        opened.add("ada", NOW + lifetime).unwrap();
        assert!(opened.add("ada", NOW + lifetime).is_err(), "one place became free");
    }

    #[test]
    fn no_more_people_are_remembered_than_the_bound() {
        let opened = OpenedSessions::default();
        for number in 0..=PEOPLE as u64 {
            opened.add(&format!("person-{number}"), NOW + number).unwrap();
        }
        let people = opened.0.lock().unwrap();
        assert_eq!(people.len(), PEOPLE);
        assert!(!people.contains_key("person-0") && people.contains_key("person-1"));
    }
}

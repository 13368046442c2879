//! Cursors of lists, for people who do not see everything.
//!
//! A page ends where the controller stopped looking. That may be at an object of somebody else, so the cursor tells its
//! name. People get the cursor encrypted, for themselves alone: it tells nothing, and nobody can make one that begins
//! where they like.

use kubewitness_core::views::ObjectPage;

use super::Viewer;
use super::session::Sessions;
use crate::answer::Problem;

const PURPOSE: &str = "kubewitness cursor 1";
/// What is encrypted has one of these lengths: else it would tell how long the name in it is. The longest cursor has a
/// number, a uid, a namespace and a name.
const LENGTHS: [usize; 2] = [48, 512];

impl Viewer {
    /// What a cursor of theirs says.
    pub(crate) fn open_cursor(&self, text: Option<&str>) -> Result<Option<String>, Problem> {
        let (Some(text), Self::Person(person)) = (text, self) else { return Ok(text.map(str::to_owned)) };
        match open(&person.control.sessions, &person.known.person.user, text) {
            Some(plain) => Ok(Some(plain)),
            None => Err(Problem::no_cursor(text)),
        }
    }

    /// The page with a cursor that only they can use.
    pub(crate) fn seal_cursor(&self, page: ObjectPage) -> ObjectPage {
        let (Some(plain), Self::Person(person)) = (&page.next, self) else { return page };
        let next = seal(&person.control.sessions, &person.known.person.user, plain);
        if next.is_none() {
            tracing::error!("the cursor of a list can't be encrypted, so the list ends early");
        }
        ObjectPage { next, ..page }
    }
}

fn purpose(user: &str) -> Vec<u8> {
    [PURPOSE.as_bytes(), user.as_bytes()].concat()
}

fn seal(sessions: &Sessions, user: &str, plain: &str) -> Option<String> {
    let length = LENGTHS.into_iter().find(|length| plain.len() <= *length)?;
    let mut bytes = plain.as_bytes().to_vec();
    bytes.resize(length, 0);
    sessions.encrypt_steadily(&purpose(user), bytes).ok()
}

fn open(sessions: &Sessions, user: &str, text: &str) -> Option<String> {
    let plain = String::from_utf8(sessions.decrypt(&purpose(user), text)?).ok()?;
    Some(plain.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{EndedSessions, SESSION_KEY_BYTES};
    use super::*;

    fn sessions(key: u8) -> Sessions {
        Sessions::new(&[key; SESSION_KEY_BYTES], EndedSessions::default())
    }

    #[test]
    fn a_cursor_opens_for_its_person_alone_and_its_length_tells_no_name() {
        let longest = format!("{}/{}/{}", u64::MAX, "u".repeat(36), "n".repeat(63 + 1 + 253));
        let short = seal(&sessions(1), "ann", "0/u-1/a").unwrap();
        let sealed = seal(&sessions(1), "ann", &longest).unwrap();
        assert_eq!(open(&sessions(1), "ann", &short).as_deref(), Some("0/u-1/a"));
        assert_eq!(open(&sessions(1), "ann", &sealed).as_deref(), Some(&*longest));
        assert_eq!(
            seal(&sessions(1), "ann", "0/u-1/a").unwrap(),
            short,
            "a page that holds it stays what it was"
        );
        assert_eq!(open(&sessions(1), "bob", &short), None);
        assert_eq!(open(&sessions(2), "ann", &short), None);
        for made in ["0//a", "17", "", "ended-7", &short[1..]] {
            assert_eq!(open(&sessions(1), "ann", made), None, "{made}");
        }
        let long = format!("0/{}/team-z train-1", "u".repeat(36));
        assert_eq!(seal(&sessions(1), "ann", &long).unwrap().len(), sealed.len());
        assert_eq!(seal(&sessions(1), "ann", "7").unwrap().len(), short.len());
    }
}

//! Encrypts the cursors of lists, for people who do not see everything.
//!
//! A page ends where the controller stopped looking, which may be at somebody else's object, and the plain
//! cursor contains its name. So people get a cursor that is encrypted for them alone: it reveals nothing, and
//! nobody can make one that begins at a position of their choice.

use kubewitness_core::views::{ObjectPage, ObjectQuery};

use super::PortalViewer;
use super::session::SessionTable;
use crate::answer::Problem;

const PURPOSE: &str = "kubewitness cursor 1";
/// Padded lengths of the plain text: otherwise the length would reveal that of the name. The longest cursor
/// has a number, a uid, a namespace and a name.
const LENGTHS: [usize; 2] = [48, 512];

/// A list that has cursors.
pub(crate) struct CursorList {
    /// The parameters that all pages of a list share: a cursor is valid only for them. With a cursor of
    /// another list, somebody could choose where this one begins.
    same: String,
    /// The other parameters of the page. The same position gives another text on another page. Otherwise,
    /// somebody who begins at two positions would learn whether something hidden is between them.
    page: String,
}

impl CursorList {
    pub(crate) fn of(query: &ObjectQuery) -> Self {
        let ObjectQuery { source, kind, namespace, name, was, cause, gone, at, sort, .. } = query;
        let ObjectQuery { phase, label_selector, index, search, since, until, .. } = query;
        let ObjectQuery { limit, details, cursor, .. } = query;
        Self {
            same: format!("{:?}", (source, kind, namespace, name, was, cause, gone, at, sort)),
            page: format!(
                "{:?}",
                (phase, label_selector, index, search, since, until, limit, details, cursor)
            ),
        }
    }
}

impl PortalViewer {
    /// Decrypts a cursor of theirs.
    pub(crate) fn open_cursor(
        &self,
        list: &CursorList,
        text: Option<&str>,
    ) -> Result<Option<String>, Problem> {
        let (Some(text), Self::Person(person)) = (text, self) else { return Ok(text.map(str::to_owned)) };
        match open(&person.control.sessions, &cursor_purpose(&person.known.person.user, list), text) {
            Some(plain) => Ok(Some(plain)),
            None => Err(Problem::no_cursor(text)),
        }
    }

    /// The page with a cursor that only this person can use, for this list alone.
    pub(crate) fn seal_cursor(&self, list: &CursorList, page: ObjectPage) -> ObjectPage {
        let (Some(plain), Self::Person(person)) = (&page.next, self) else { return page };
        let purpose = cursor_purpose(&person.known.person.user, list);
        let next = seal_cursor(&person.control.sessions, &purpose, &list.page, plain);
        if next.is_none() {
            tracing::error!("the cursor of a list can't be encrypted, so the list ends early");
        }
        ObjectPage { next, ..page }
    }
}

fn cursor_purpose(user: &str, list: &CursorList) -> Vec<u8> {
    format!("{PURPOSE} {user:?} {}", list.same).into_bytes()
}

fn seal_cursor(sessions: &SessionTable, purpose: &[u8], page: &str, plain: &str) -> Option<String> {
    let length = LENGTHS.into_iter().find(|length| plain.len() <= *length)?;
    let mut bytes = plain.as_bytes().to_vec();
    bytes.resize(length, 0);
    sessions.encrypt_steadily(purpose, page, bytes).ok()
}

fn open(sessions: &SessionTable, purpose: &[u8], text: &str) -> Option<String> {
    let plain = String::from_utf8(sessions.decrypt_text(purpose, text)?).ok()?;
    Some(plain.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::{CauseKind, GoneFilter};

    use super::super::{EndedSessions, SESSION_KEY_BYTES};
    use super::*;

    fn sessions(key: u8) -> SessionTable {
        SessionTable::new(&[key; SESSION_KEY_BYTES], EndedSessions::default())
    }

    fn sealed(user: &str, query: &ObjectQuery, plain: &str) -> String {
        let list = CursorList::of(query);
        seal_cursor(&sessions(1), &cursor_purpose(user, &list), &list.page, plain).unwrap()
    }

    fn opened(key: u8, user: &str, query: &ObjectQuery, text: &str) -> Option<String> {
        open(&sessions(key), &cursor_purpose(user, &CursorList::of(query)), text)
    }

    #[test]
    fn a_cursor_opens_for_its_person_alone_and_its_length_tells_no_name() {
        let query = ObjectQuery::default();
        let longest = format!("{}/{}/{}", u64::MAX, "u".repeat(36), "n".repeat(63 + 1 + 253));
        let (short, long) = (sealed("ann", &query, "0/u-1/a"), sealed("ann", &query, &longest));
        assert_eq!(opened(1, "ann", &query, &short).as_deref(), Some("0/u-1/a"));
        assert_eq!(opened(1, "ann", &query, &long).as_deref(), Some(&*longest));
        assert_eq!(sealed("ann", &query, "0/u-1/a"), short, "a page that holds it stays what it was");
        assert_eq!(opened(1, "bob", &query, &short), None);
        assert_eq!(opened(2, "ann", &query, &short), None);
        for made in ["0//a", "17", "", "ended-7", &short[1..]] {
            assert_eq!(opened(1, "ann", &query, made), None, "{made}");
        }
        let one = format!("0/{}/team-z train-1", "u".repeat(36));
        assert_eq!(sealed("ann", &query, &one).len(), long.len());
        assert_eq!(sealed("ann", &query, "7").len(), short.len());
    }

    #[test]
    fn a_cursor_opens_for_its_list_alone_and_the_same_place_has_another_text_on_another_page() {
        let living = ObjectQuery { sort: Some("name".into()), limit: Some(1), ..ObjectQuery::default() };
        let cursor = sealed("ann", &living, "0/u-1/a");
        let others = [
            ObjectQuery { gone: GoneFilter::Only, ..living.clone() },
            ObjectQuery { was: Some("Failed".into()), ..living.clone() },
            ObjectQuery { cause: Some(CauseKind::OutOfMemory), ..living.clone() },
            ObjectQuery { at: Some("2026-11-24T03:00:00Z".into()), ..living.clone() },
            ObjectQuery { namespace: Some("team-z".into()), ..living.clone() },
        ];
        for other in &others {
            assert_eq!(opened(1, "ann", other, &cursor), None, "{other:?}");
        }
        let behind = |start: &str| {
            let page = ObjectQuery { cursor: Some(start.into()), ..living.clone() };
            let text = sealed("ann", &page, "0/u-9/z");
            assert_eq!(opened(1, "ann", &living, &text).as_deref(), Some("0/u-9/z"));
            text
        };
        assert_ne!(behind("a"), behind("b"));
    }
}

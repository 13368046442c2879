//! Bounds a list over all its pages. Each page is bounded, but a faulty server, gateway or aggregated API can
//! go on forever: its tokens form a circle, or it always has more objects. Pure.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use thiserror::Error;

use super::ListPage;

/// Ten times the objects that large clusters have of one kind.
pub const LIST_ITEMS: u64 = 10_000_000;
/// Eight times the most that etcd stores (8 GiB), because JSON is longer than etcd's protobuf.
pub const LIST_BYTES: u64 = 64 << 30;
/// Pages hold hundreds of objects. A server that filters after reading sends some empty ones.
pub const LIST_PAGES: u64 = 100_000;
/// The slack over the server's estimate: the first page estimates the number of further objects. For
/// collections that grow while they are listed, twice the estimate and this many more objects are accepted.
pub const UNCOUNTED_ITEMS: u64 = 10_000;

/// Why a list is aborted. The caller that shows it adds the source's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EndlessList {
    #[error("the list has no end: the server gave the same `continue` token twice; {to_do}", to_do = TO_DO)]
    RepeatedToken,
    #[error("the list has no end: it has more than {0} pages; {to_do}", to_do = TO_DO)]
    Pages(u64),
    #[error("the list has no end: it has more than {0} objects; {to_do}", to_do = TO_DO)]
    Items(u64),
    #[error("the list has no end: it has more than {0} bytes; {to_do}", to_do = TO_DO)]
    Bytes(u64),
}

const TO_DO: &str = "look at the server, the aggregated API or the proxy that sends it, or remove the source";

/// Follows one list from its first page to its last.
#[derive(Debug, Default)]
pub struct ListGuard {
    tokens: HashSet<u64>,
    pages: u64,
    items: u64,
    bytes: u64,
    /// The objects that the first page promised.
    promised: Option<u64>,
}

impl ListGuard {
    /// Counts one page, and notes the token with which it continues.
    pub fn count_page(&mut self, page: &ListPage<'_>, bytes: usize) -> Result<(), EndlessList> {
        self.pages += 1;
        if self.pages > LIST_PAGES {
            return Err(EndlessList::Pages(LIST_PAGES));
        }
        let items = page.items.len() as u64;
        if self.pages == 1 {
            self.promised = page.remaining.map(|remaining| items.saturating_add(remaining));
        }
        self.count_objects(items, bytes)?;
        if page.continue_token.is_empty() { Ok(()) } else { self.note_token(&page.continue_token) }
    }

    /// Counts objects, also of a streamed list.
    pub fn count_objects(&mut self, items: u64, bytes: usize) -> Result<(), EndlessList> {
        self.items = self.items.saturating_add(items);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        let believed =
            self.promised.map(|promised| promised.saturating_mul(2).saturating_add(UNCOUNTED_ITEMS));
        let most = believed.unwrap_or(LIST_ITEMS).min(LIST_ITEMS);
        match () {
            () if self.items > most => Err(EndlessList::Items(most)),
            () if self.bytes > LIST_BYTES => Err(EndlessList::Bytes(LIST_BYTES)),
            () => Ok(()),
        }
    }

    /// Notes a token before it is followed. A page has one token, so no list needs the same token twice.
    pub fn note_token(&mut self, token: &str) -> Result<(), EndlessList> {
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        if self.tokens.insert(hasher.finish()) { Ok(()) } else { Err(EndlessList::RepeatedToken) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &[u8] = b"{}";

    fn page(token: &str, items: usize, remaining: Option<u64>) -> ListPage<'_> {
        ListPage { continue_token: token.into(), remaining, items: vec![ITEM; items], ..ListPage::default() }
    }

    #[test]
    fn tokens_that_lead_in_a_circle_are_refused_however_long_it_is() {
        let mut guard = ListGuard::default();
        for token in ["a", "b", "c"] {
            guard.count_page(&page(token, 1, None), 10).unwrap();
        }
        assert_eq!(guard.count_page(&page("a", 1, None), 10), Err(EndlessList::RepeatedToken));
        // A token that follows an expired page counts as well.
        let mut guard = ListGuard::default();
        guard.note_token("b").unwrap();
        assert_eq!(guard.count_page(&page("b", 1, None), 10), Err(EndlessList::RepeatedToken));
    }

    #[test]
    fn ever_new_objects_are_refused_by_what_the_server_promised_and_by_number() {
        let mut guard = ListGuard::default();
        guard.count_page(&page("0", 2, Some(1)), 10).unwrap();
        guard.count_objects(2 * 3 + UNCOUNTED_ITEMS - 2, 10).unwrap();
        assert_eq!(guard.count_objects(1, 10), Err(EndlessList::Items(2 * 3 + UNCOUNTED_ITEMS)));
        let mut guard = ListGuard::default();
        guard.count_objects(LIST_ITEMS, 10).unwrap();
        assert_eq!(guard.count_objects(1, 10), Err(EndlessList::Items(LIST_ITEMS)));
        let mut guard = ListGuard::default();
        guard.count_page(&page("0", 1, Some(u64::MAX)), 10).unwrap();
        assert_eq!(guard.count_objects(LIST_ITEMS, 10), Err(EndlessList::Items(LIST_ITEMS)));
    }

    #[test]
    fn ever_new_pages_without_objects_and_endless_bytes_are_refused() {
        let mut guard = ListGuard::default();
        for at in 0..LIST_PAGES {
            guard.count_page(&page(&at.to_string(), 0, None), 0).unwrap();
        }
        assert_eq!(guard.count_page(&page("more", 0, None), 0), Err(EndlessList::Pages(LIST_PAGES)));
        let mut guard = ListGuard::default();
        let bytes = usize::try_from(LIST_BYTES).unwrap();
        guard.count_objects(1, bytes).unwrap();
        let error = guard.count_objects(1, 1).unwrap_err();
        assert_eq!(error, EndlessList::Bytes(LIST_BYTES));
        assert!(error.to_string().contains("remove the source"), "{error}");
    }

    #[test]
    fn a_list_that_ends_passes_although_the_collection_grows_meanwhile() {
        let mut guard = ListGuard::default();
        guard.count_page(&page("a", 500, Some(500)), 1_000_000).unwrap();
        guard.count_page(&page("b", 500, None), 1_000_000).unwrap();
        guard.count_page(&page("", 300, None), 1_000_000).unwrap();
    }
}

//! Finds the passwords of addresses within a text, as in `postgres://user:password@host`.
//!
//! People leave passwords unescaped that contain slashes, blanks, quotes or `@`. If the end of such a
//! password is ambiguous, the search takes the longer reading: up to the last `@` that can belong to the
//! address.

use std::ops::Range;

use super::digest::{MARK, digest_at};
use super::values::prefix_until;

/// A number with more digits is not a port.
const PORT_DIGITS: usize = 5;

/// The ranges of passwords. With `http` and `https` the user is included, because tokens are put there.
///
/// Each character is read a few times at most, because the text may be untrusted.
pub(in crate::redact) fn in_addresses(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let starts = authority_starts(text);
    if starts.is_empty() {
        return found;
    }
    let mut text = AddressText::of(text, starts);
    let mut from = 0;
    for (sign, start) in std::mem::take(&mut text.starts) {
        if start < from {
            continue;
        }
        let Some(password) = text.find_password(sign, start) else { continue };
        from = password.end;
        if !password.is_empty() {
            found.push(password);
        }
    }
    found
}

/// Where the text between scheme and host begins and ends. JSON within a text may escape its slashes, with
/// more characters at each level.
fn authority_starts(text: &str) -> Vec<(usize, usize)> {
    let slash = |rest: &'_ str| rest.trim_start_matches('\\').strip_prefix('/').map(str::len);
    let end = |place: usize| {
        let first = slash(&text[place + 1..])?;
        let second = slash(&text[text.len() - first..])?;
        Some((place, text.len() - second))
    };
    memchr::memchr_iter(b':', text.as_bytes()).filter_map(end).collect()
}

/// A text with cached answers for each address, so that nothing is searched twice.
struct AddressText<'t> {
    text: &'t str,
    /// The start and end of each separator between scheme and host.
    starts: Vec<(usize, usize)>,
    /// The starts of addresses that are separated from the text before them.
    apart: Vec<usize>,
    ats: Vec<usize>,
    /// The ends of values that were redacted before. The text after one belongs to it.
    digests: Vec<usize>,
    first_blank: usize,
    word_end: usize,
    line_end: usize,
    /// The end of the angle brackets around an address.
    angle_end: usize,
}

impl<'t> AddressText<'t> {
    fn of(text: &'t str, starts: Vec<(usize, usize)>) -> Self {
        let is_apart = |place: &usize| {
            let before = text[..*place].chars().next_back();
            before.is_none_or(|c| c.is_whitespace() || ",;|=&\"'`<>()[]{}".contains(c))
        };
        Self {
            text,
            apart: starts.iter().map(|(sign, _)| scheme_start(text, *sign)).filter(is_apart).collect(),
            starts,
            ats: text.match_indices('@').map(|(place, _)| place).collect(),
            digests: text
                .match_indices(MARK)
                .map(|(place, _)| place)
                .filter(|place| digest_at(text, *place).is_some())
                .collect(),
            first_blank: prefix_until(text, char::is_whitespace).len(),
            word_end: 0,
            line_end: 0,
            angle_end: 0,
        }
    }

    fn find_password(&mut self, sign: usize, start: usize) -> Option<Range<usize>> {
        let text = self.text;
        if self.word_end < start {
            self.word_end = start + prefix_until(&text[start..], char::is_whitespace).len();
        }
        let word = &text[start..self.word_end];
        let host = prefix_until(word, |c| "/?#".contains(c));
        let is_web = is_web(&text[..sign]);
        let is_of_digest = |colon: &usize| {
            let mark = (start + colon + 1).checked_sub(MARK.len());
            mark.is_some_and(|mark| self.digests.binary_search(&mark).is_ok())
        };
        let colon = host.match_indices(':').map(|(place, _)| place).find(|place| !is_of_digest(place));
        let at = host.find('@');
        if host.starts_with('[') && at.is_none() {
            return None;
        }
        let is_port = colon.map(|colon| &host[colon + 1..]).is_some_and(|after| {
            // A password may begin with a blank, or with a number and a slash.
            let may_be =
                is_web || (!after.is_empty() && (at.is_some() || !self.has_host(sign, start + host.len())));
            is_port(after, host.len() == word.len()) && may_be
        });
        // A user alone is a token on the web, and no secret elsewhere.
        if colon.is_none() || is_port {
            let at = host.rfind('@').filter(|_| is_web)?;
            return Some(start..start + at);
        }
        let begin = if is_web { start } else { start + colon? + 1 };
        if let Some(end) = digest_at(text, begin).filter(|end| text[*end..].starts_with('@')) {
            return Some(begin..end);
        }
        self.last_at(sign, start).filter(|end| *end >= begin).map(|end| begin..end)
    }

    /// Whether a host follows this position in the word, or in the line if the text is only this address. An
    /// image has its digest there, as in `docker://h:5000/i@sha256:…`.
    fn has_host(&mut self, sign: usize, place: usize) -> bool {
        let Some(at) = self.ats.get(self.ats.partition_point(|at| *at < place)).copied() else {
            return false;
        };
        if ["sha256:", "sha512:"].iter().any(|sign| self.text[at + 1..].starts_with(sign)) {
            return false;
        }
        // A sentence continues after an address, and another address may follow.
        let is_told = self.text[..self.word_end].ends_with([',', ';', '.', ':', ')', '"', '\'', '`', '>']);
        let next = self.apart.get(self.apart.partition_point(|apart| *apart < place)).copied();
        let is_of_line = scheme_start(self.text, sign) == 0
            && !is_told
            && at < self.line_end_after(place)
            && next.is_none_or(|next| at < next);
        at < self.word_end || is_of_line
    }

    fn line_end_after(&mut self, place: usize) -> usize {
        if self.line_end < place {
            self.line_end = place + prefix_until(&self.text[place..], |c| c == '\n' || c == '\r').len();
        }
        self.line_end
    }

    /// The last `@` that can belong to the address. A blank or a quote is part of the password only if no
    /// other reading fits.
    fn last_at(&mut self, sign: usize, start: usize) -> Option<usize> {
        let text = self.text;
        let line_end = self.line_end_after(start);
        let scheme = scheme_start(text, sign);
        let end = match text[..scheme].chars().next_back().filter(|c| "\"'`<".contains(*c)) {
            // Many brackets may open without closing.
            Some('<') => {
                if self.angle_end < start {
                    self.angle_end = start + prefix_until(&text[start..], |c| c == '>').len();
                }
                self.angle_end
            }
            Some(quote) => start + prefix_until(&text[start..], |c| c == quote).len(),
            // The whole text is this address.
            None if scheme <= self.first_blank => line_end,
            None => self.word_end,
        };
        let next = |places: &[usize]| {
            let next = places.partition_point(|place| *place < start);
            places.get(next).copied().unwrap_or(text.len())
        };
        let (apart, digest) = (next(&self.apart), next(&self.digests));
        let (end, line_end) = (end.min(digest), line_end.min(digest));
        let ends = [end.min(apart), end, line_end.min(apart), line_end];
        ends.into_iter().find_map(|end| {
            let before = self.ats.partition_point(|at| *at < end).checked_sub(1)?;
            Some(self.ats[before]).filter(|at| *at >= start)
        })
    }
}

fn scheme_start(text: &str, sign: usize) -> usize {
    text[..sign].trim_end_matches(|c: char| c.is_ascii_alphanumeric() || "+-.".contains(c)).len()
}

fn is_web(before: &str) -> bool {
    ["http", "https"].iter().any(|web| {
        let scheme = before.len().checked_sub(web.len()).map(|start| &before.as_bytes()[start..]);
        scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(web.as_bytes()))
    })
}

/// Whether the text after a colon is a port. A sentence may continue after a port, but only at the end of its
/// word.
fn is_port(after: &str, is_end: bool) -> bool {
    let port =
        if is_end { after.trim_end_matches([',', ';', '.', ':', ')', '"', '\'', '`', '>']) } else { after };
    port.len() <= PORT_DIGITS
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && (is_end || !port.is_empty())
}

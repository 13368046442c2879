//! Sessions: a person's token, encrypted in a cookie. Storing sessions was rejected: a restart would end
//! them, and replicas would have to share them. The portal stores none.
//!
//! ```text
//! pieces of base64 (nonce of 12 bytes, AES-256-GCM of:
//!     id of 16 bytes, end in milliseconds since 1970 as 8 bytes, the token)
//! ```
//!
//! Every process with the key can open them, so they survive a restart and work on other replicas. The token
//! is reviewed with each request: a session ends with its token, and after [`LIFETIME`]. A session that its
//! person ended is remembered in the data folder until it would expire. Replicas
//! [exchange](EndedSessions::merge_with_others) these.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};

use super::ended_sessions::EndedSessions;
use super::{SESSION_KEY_BYTES, TOKEN_BYTES, party_of, sha256};

/// A working day. After it, people sign in again.
pub(crate) const LIFETIME: Duration = Duration::from_secs(8 * 60 * 60);
/// Browsers store cookies of 4,096 bytes, including name and attributes. Longer sessions take several.
const PIECE: usize = 3800;
const HEAD: usize = 16 + 8;
/// How many cookies of one name are tried.
const COOKIES: usize = 4;
/// How many pieces the longest token takes.
const PIECES: usize = (TOKEN_BYTES + HEAD + NONCE_LEN + 16).div_ceil(3) * 4 / PIECE + 1;
const AAD: &[u8] = b"kubewitness session 1";

/// It begins with a digest of its person. The rest is random.
pub(super) type SessionId = [u8; 16];
pub(super) const PERSON_BYTES: usize = 8;

pub(crate) struct PortalSession {
    pub(crate) id: SessionId,
    pub(crate) ends_ms: u64,
    pub(crate) token: String,
}

pub(super) struct SessionTable {
    key: [u8; SESSION_KEY_BYTES],
    random: SystemRandom,
    pub(super) ended: EndedSessions,
}

impl SessionTable {
    pub(super) fn new(key: &[u8; SESSION_KEY_BYTES], ended: EndedSessions) -> Self {
        Self { key: *key, random: SystemRandom::new(), ended }
    }

    fn key(&self) -> Result<LessSafeKey, Unspecified> {
        UnboundKey::new(&AES_256_GCM, &self.key).map(LessSafeKey::new)
    }

    /// The text of a new session.
    pub(super) fn seal_session(&self, token: &str, user: &str, now_ms: u64) -> Result<String, Unspecified> {
        let mut id = SessionId::default();
        self.random.fill(&mut id)?;
        let person = sha256(&[&self.key[..], party_of(user).as_bytes()].concat());
        id[..PERSON_BYTES].copy_from_slice(&person[..PERSON_BYTES]);
        let ends_ms = now_ms.saturating_add(LIFETIME.as_millis() as u64);
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce)?;
        self.encrypt_text(AAD, nonce, [&id[..], &ends_ms.to_be_bytes(), token.as_bytes()].concat())
    }

    /// Gives the same text for the same bytes, purpose and page, so that a page with this text stays the
    /// same.
    pub(super) fn encrypt_steadily(
        &self,
        purpose: &[u8],
        page: &str,
        bytes: Vec<u8>,
    ) -> Result<String, Unspecified> {
        let mut nonce = [0; NONCE_LEN];
        let about = [&self.key[..], &sha256(purpose), &sha256(page.as_bytes()), &bytes].concat();
        nonce.copy_from_slice(&sha256(&about)[..NONCE_LEN]);
        self.encrypt_text(purpose, nonce, bytes)
    }

    /// Encrypts and authenticates a text. It can be decrypted for the same purpose only.
    fn encrypt_text(
        &self,
        purpose: &[u8],
        nonce: [u8; NONCE_LEN],
        mut bytes: Vec<u8>,
    ) -> Result<String, Unspecified> {
        let number = Nonce::assume_unique_for_key(nonce);
        self.key()?.seal_in_place_append_tag(number, Aad::from(purpose), &mut bytes)?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &bytes].concat()))
    }

    pub(super) fn decrypt_text(&self, purpose: &[u8], text: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let (mut sealed, nonce) = (sealed.to_vec(), Nonce::assume_unique_for_key(*nonce));
        let plain = self.key().ok()?.open_in_place(nonce, Aad::from(purpose), &mut sealed).ok()?;
        Some(plain.to_vec())
    }

    /// The session, if the text is one of ours and has not expired.
    pub(super) fn open(&self, text: &str, now_ms: u64) -> Option<PortalSession> {
        let plain = self.decrypt_text(AAD, text)?;
        let (id, rest) = plain.split_first_chunk::<16>()?;
        let (ends_ms, token) = rest.split_first_chunk::<8>()?;
        let token = String::from_utf8(token.to_vec()).ok()?;
        let session = PortalSession { id: *id, ends_ms: u64::from_be_bytes(*ends_ms), token };
        self.is_session_valid(&session, now_ms).then_some(session)
    }

    pub(super) fn is_session_valid(&self, session: &PortalSession, now_ms: u64) -> bool {
        now_ms < session.ends_ms && !self.ended.is_ended(session)
    }
}

/// With this prefix in its name, a browser accepts a cookie only from this host over HTTPS: no other host can
/// set it.
const HOST: &str = "__Host-";
const NAME: &str = "kubewitness";

/// How the browser connects to the portal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortalTransport {
    Plain,
    /// The browser reports that its page came over HTTPS. The portal has no TLS, so a proxy before it has.
    TlsAtProxy,
    Tls,
}

impl PortalTransport {
    /// A browser sets the origin itself, and no page can forge it. A client that lies about it only gets a
    /// cookie with a narrower scope.
    pub(crate) fn of(has_tls: bool, headers: &HeaderMap) -> Self {
        let is_https =
            || headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
        match has_tls {
            true => Self::Tls,
            false if is_https() => Self::TlsAtProxy,
            false => Self::Plain,
        }
    }
}

/// The headers that set the cookie. The first piece begins with the number of pieces.
pub(super) fn set_cookie_headers(text: &str, transport: PortalTransport) -> Vec<String> {
    let pieces: Vec<&str> =
        (0..text.len()).step_by(PIECE).map(|at| &text[at..(at + PIECE).min(text.len())]).collect();
    let count = pieces.len();
    let age = LIFETIME.as_secs();
    let piece = |(index, piece)| match index {
        0 => cookie_header(0, &format!("{count}.{piece}"), age, transport),
        index => cookie_header(index, piece, age, transport),
    };
    pieces.into_iter().enumerate().map(piece).collect()
}

/// The headers that remove the cookie.
pub(super) fn unset_cookie_headers(has_tls: bool) -> Vec<String> {
    let piece = |transport| (0..PIECES).map(move |index| cookie_header(index, "", 0, transport));
    possible_transports(has_tls).iter().copied().flat_map(piece).collect()
}

/// The possible transports of a browser's cookie, the most certain first.
fn possible_transports(has_tls: bool) -> &'static [PortalTransport] {
    if has_tls { &[PortalTransport::Tls] } else { &[PortalTransport::TlsAtProxy, PortalTransport::Plain] }
}

fn cookie_header(index: usize, value: &str, age: u64, transport: PortalTransport) -> String {
    let name = piece_name(index, transport);
    let secure = if transport == PortalTransport::Plain { "" } else { "; Secure" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
}

fn piece_name(index: usize, transport: PortalTransport) -> String {
    let prefix = if transport == PortalTransport::Plain { "" } else { HOST };
    if index == 0 { format!("{prefix}{NAME}") } else { format!("{prefix}{NAME}-{index}") }
}

/// The session's text, assembled from the browser's cookies.
pub(super) fn read(headers: &HeaderMap, has_tls: bool) -> Option<String> {
    read_each(headers, has_tls).next()
}

/// The same for each cookie with one of its names: another program of the same host may have set one without
/// the prefix.
pub(super) fn read_each(headers: &HeaderMap, has_tls: bool) -> impl Iterator<Item = String> {
    let places = |transport: &'static PortalTransport| (0..COOKIES).map(move |place| (*transport, place));
    possible_transports(has_tls).iter().flat_map(places).filter_map(move |(transport, place)| {
        let (count, first) = find(headers, &piece_name(0, transport), place)?.split_once('.')?;
        let count: usize = count.parse().ok().filter(|count| (1..=PIECES).contains(count))?;
        let mut text = first.to_owned();
        for index in 1..count {
            text.push_str(find(headers, &piece_name(index, transport), place)?);
        }
        Some(text)
    })
}

/// The cookie at this place among those with the name, or the last one.
fn find<'h>(headers: &'h HeaderMap, name: &str, place: usize) -> Option<&'h str> {
    let cookies = headers.get_all(header::COOKIE).into_iter();
    let pairs =
        cookies.filter_map(|value: &HeaderValue| value.to_str().ok()).flat_map(|text| text.split(';'));
    let values = pairs.filter_map(|pair| pair.trim().split_once('=')).filter(|(known, _)| *known == name);
    values.take(place + 1).last().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_182_311_000;

    fn sessions() -> SessionTable {
        SessionTable::new(&[7; SESSION_KEY_BYTES], EndedSessions::default())
    }

    fn browser(set: &[String]) -> HeaderMap {
        let pairs: Vec<_> = set.iter().map(|text| text.split(';').next().unwrap()).collect();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("theme=dark; {}", pairs.join("; ")).parse().unwrap());
        headers
    }

    #[test]
    fn a_session_is_opened_by_whoever_has_the_key_until_its_end() {
        let text = sessions().seal_session("a-token", "ann", NOW).unwrap();
        assert_eq!(sessions().open(&text, NOW).unwrap().token, "a-token");
        let end = NOW + LIFETIME.as_millis() as u64;
        assert!(sessions().open(&text, end - 1).is_some() && sessions().open(&text, end).is_none());
        assert!(
            SessionTable::new(&[8; SESSION_KEY_BYTES], EndedSessions::default()).open(&text, NOW).is_none()
        );
        assert_ne!(text, sessions().seal_session("a-token", "ann", NOW).unwrap());
        assert!(!text.contains("a-token"));
    }

    #[test]
    fn what_was_altered_is_no_session() {
        let text = sessions().seal_session("a-token", "ann", NOW).unwrap();
        for at in 0..text.len() {
            let other = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
            let altered = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            // The last character has unused bits; the decoder refuses it if they are set.
            assert!(sessions().open(&altered, NOW).is_none(), "at {at}");
            assert!(sessions().open(&text[..at], NOW).is_none());
        }
        for garbage in ["", "%", "AAAA", "1.2.3"] {
            assert!(sessions().open(garbage, NOW).is_none());
        }
    }

    #[test]
    fn a_foreign_cookie_of_the_same_name_hides_no_session() {
        let text = sessions().seal_session("a-token", "ann", NOW).unwrap();
        let opened = |foreign: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, format!("{foreign}kubewitness=1.{text}").parse().unwrap());
            read_each(&headers, false).find_map(|text| sessions().open(&text, NOW)).is_some()
        };
        assert!(
            opened("") && opened("kubewitness=x; ") && opened(&"kubewitness=1.AAAA; ".repeat(COOKIES - 1))
        );
        assert!(!opened(&"kubewitness=x; ".repeat(COOKIES)), "no more are tried");
    }

    #[test]
    fn over_https_no_other_host_sets_the_cookie_also_where_a_proxy_has_the_certificate() {
        let text = sessions().seal_session("a-token", "ann", NOW).unwrap();
        for transport in [PortalTransport::Tls, PortalTransport::TlsAtProxy] {
            let set = set_cookie_headers(&text, transport);
            assert!(set[0].starts_with("__Host-kubewitness=1.") && set[0].ends_with("; Secure"), "{set:?}");
            let mut headers = browser(&set);
            headers.append(header::COOKIE, "kubewitness=1.of-another-host".parse().unwrap());
            assert_eq!(read(&headers, transport == PortalTransport::Tls).as_ref(), Some(&text));
        }
        let plain = browser(&set_cookie_headers(&text, PortalTransport::Plain));
        assert_eq!((read(&plain, true), read(&plain, false).as_ref()), (None, Some(&text)));
    }

    #[tokio::test]
    async fn an_ended_session_stays_ended_and_others_go_on() {
        let sessions = sessions();
        let open = |text: &str| sessions.open(text, NOW);
        let (one, other) = (
            sessions.seal_session("t", "ann", NOW).unwrap(),
            sessions.seal_session("t", "ann", NOW).unwrap(),
        );
        sessions.ended.add(&open(&one).unwrap(), NOW).await.unwrap();
        assert!(open(&one).is_none() && open(&other).is_some());
    }

    #[tokio::test]
    async fn who_ends_many_sessions_ends_those_of_the_service_accounts_of_the_same_namespace_alone() {
        let sessions = sessions();
        let account = |name: &str, at: u64| {
            let text = sessions.seal_session("t", &format!("system:serviceaccount:{name}"), at).unwrap();
            sessions.open(&text, at).unwrap()
        };
        let (b, other) = (account("team:b", NOW), account("other:a", NOW));
        let person = |session: &PortalSession| session.id[..PERSON_BYTES].to_vec();
        assert_eq!(person(&account("team:a", NOW)), person(&b));
        assert_ne!(person(&other), person(&b));
        for number in 1..=101 {
            sessions.ended.add(&account("team:a", NOW + number), NOW + number).await.unwrap();
        }
        let now_ms = NOW + 101;
        assert!(!sessions.is_session_valid(&b, now_ms), "its party pays");
        assert!(
            sessions.is_session_valid(&other, now_ms)
                && sessions.is_session_valid(&account("team:b", now_ms), now_ms)
        );
    }

    #[test]
    fn the_longest_token_fits_into_the_pieces_of_a_cookie_and_each_into_what_browsers_keep() {
        let token = "t".repeat(TOKEN_BYTES);
        for transport in [PortalTransport::Plain, PortalTransport::TlsAtProxy, PortalTransport::Tls] {
            let has_tls = transport == PortalTransport::Tls;
            let set = set_cookie_headers(&sessions().seal_session(&token, "ann", NOW).unwrap(), transport);
            assert_eq!(set.len(), PIECES);
            assert!(set.iter().all(|text| text.len() <= 4096), "{}", set[0].len());
            let text = read(&browser(&set), has_tls).unwrap();
            assert_eq!(sessions().open(&text, NOW).unwrap().token, token);
            assert!(read(&browser(&set[1..]), has_tls).is_none());
            assert!(read(&browser(&set[..PIECES - 1]), has_tls).is_none());
            let name = |text: &String| text.split_once('=').unwrap().0.to_owned();
            let taken: Vec<_> = unset_cookie_headers(has_tls).iter().map(name).collect();
            assert!(set.iter().all(|text| taken.contains(&name(text))), "{taken:?}");
        }
        for count in ["0.x", "99.x", "-1.x", "x", "2.x"] {
            assert!(read(&browser(&[format!("kubewitness={count}")]), false).is_none(), "{count}");
        }
    }
}

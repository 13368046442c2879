//! Makes the digest that replaces a secret.

/// The prefix of each digest.
pub(in crate::redact) const MARK: &str = "redacted:";
/// The length of a digest as text. A value of this form is considered a digest and stays.
pub const DIGEST_CHARS: usize = 16;

/// The end of the digest at this position. The value that was redacted before ends there.
pub(in crate::redact) fn digest_at(text: &str, start: usize) -> Option<usize> {
    let end = start + MARK.len() + DIGEST_CHARS;
    let is_whole = !text.as_bytes().get(end).is_some_and(u8::is_ascii_alphanumeric);
    let is_digest = is_digest(text.as_bytes().get(start..end)?);
    (is_digest && is_whole).then_some(end)
}

/// Whether a text is already a digest. Redacting it again changes nothing.
pub(in crate::redact) fn is_digest(text: &[u8]) -> bool {
    let digest = text.strip_prefix(MARK.as_bytes());
    digest.is_some_and(|digest| {
        digest.len() == DIGEST_CHARS && digest.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

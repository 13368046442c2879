//! Joins a plugin's path and query to the address of a destination. This module judges text alone: it resolves no name,
//! and reads no secret.

use kubewitness_core::ports::GrantError;
use percent_encoding::percent_decode_str;
use reqwest::Url;

const PATH_BYTES: usize = 8 * 1024;

/// Appends the plugin's path and query to the address. Anything that this parser or another one could read as
/// a way out is refused and not repaired.
pub fn join_path(base: &Url, path: &str) -> Result<Url, GrantError> {
    let refused = |why: &str| Err(GrantError::Invalid(format!("the path {why}")));
    if path.len() > PATH_BYTES {
        return refused("is too long");
    }
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let path = path.strip_prefix('/').unwrap_or(path);
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\' || c == '#';
    if path.contains(odd) || query.is_some_and(|query| query.contains(odd)) {
        return refused("has spaces, control characters, a backslash or a fragment");
    }
    let lower = path.to_ascii_lowercase();
    if lower.contains("%2f") || lower.contains("%5c") || lower.contains("%00") {
        return refused("hides a slash, a backslash or a NUL");
    }
    // Some servers decode a dot that is encoded in more bytes than necessary; others don't.
    if percent_decode_str(path).decode_utf8().is_err() {
        return refused("is no text when it is decoded");
    }
    // Some servers read the text after `;` as parameters of the segment, and ignore it when they look up the
    // segment.
    let dots = |segment: &str| {
        let plain = segment.replace("%2e", ".").replace("%3b", ";");
        matches!(plain.split(';').next(), Some("." | ".."))
    };
    if path.starts_with('/') || path.contains("//") || lower.split('/').any(dots) {
        return refused("leaves the destination");
    }
    let mut url = base.clone();
    if !path.is_empty() {
        url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    }
    match (base.query(), query) {
        (Some(own), Some(query)) => {
            refuse_own_keys(own, query)?;
            url.set_query(Some(&format!("{own}&{query}")));
        }
        (None, Some(query)) => url.set_query(Some(query)),
        (_, None) => {}
    }
    let same = (url.scheme(), url.host_str(), url.port()) == (base.scheme(), base.host_str(), base.port());
    if !same || !url.path().starts_with(base.path().trim_end_matches('/')) {
        return refused("leaves the destination");
    }
    Ok(url)
}

/// Refuses keys that the operator's query has. That query may be a secret that identifies the recipient, such
/// as `?key=SECRET`, and some servers use the last of two values of a key. Servers also differ in how they
/// read keys: without case, up to a `[`, with `.` as `_`, with `;` as `&`. So the plugin's keys must be
/// plain, and are compared by letters and digits alone.
fn refuse_own_keys(own: &str, query: &str) -> Result<(), GrantError> {
    let keys = |query: &str| -> Vec<String> {
        let parts = query.split(['&', ';']).filter(|part| !part.is_empty());
        let keys = parts.filter_map(|part| part.split('=').next());
        keys.map(|key| percent_decode_str(&key.replace('+', " ")).decode_utf8_lossy().into_owned()).collect()
    };
    let letters = |key: &str| -> String {
        key.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
    };
    let own: Vec<String> = keys(own).iter().map(|key| letters(key)).collect();
    for key in keys(query) {
        let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !is_plain || own.contains(&letters(&key)) {
            return Err(GrantError::Denied(
                "the destination's address has a query of its own: a plugin's query can't repeat a key of it, and its \
                 keys have letters, digits, `-`, `_` and `.` alone"
                    .into(),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_leave_the_address() {
        let base = Url::parse("https://hooks.example/a/b?key=1").unwrap();
        let fine = |path: &str| join_path(&base, path).unwrap().to_string();
        assert_eq!(fine(""), "https://hooks.example/a/b?key=1");
        assert_eq!(fine("c"), "https://hooks.example/a/b/c?key=1");
        assert_eq!(fine("/c/d?x=y"), "https://hooks.example/a/b/c/d?key=1&x=y");
        assert_eq!(fine("@evil"), "https://hooks.example/a/b/@evil?key=1");
        assert_eq!(fine(":8080/x"), "https://hooks.example/a/b/:8080/x?key=1");
        assert_eq!(fine("https:evil"), "https://hooks.example/a/b/https:evil?key=1");
        for bad in [
            "..",
            "c/../../x",
            "%2e%2e/x",
            ".%2E/x",
            "c/..;/x",
            "c/..;a=b/x",
            "c/%2e%2e;a/x",
            "c/..%3b/x",
            "c/.%3Bx",
            "%c0%ae%c0%ae/x",
            "c/%ff",
            "./x",
            "//evil/x",
            "///evil",
            "c//d",
            "http://evil",
            "c\\..\\x",
            "a b",
            "a\tb",
            "a#b",
            "c%2f..%2fx",
            "c%5cx",
            "a\r\nb",
            "c?x=\ny",
        ] {
            assert!(join_path(&base, bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_query_cannot_repeat_a_key_of_the_operators() {
        let base = Url::parse("https://hooks.example/send?key=SECRET&group_id=7").unwrap();
        for bad in [
            "key=OTHER",
            "a=b&key=OTHER",
            "a=b;key=OTHER",
            "%6bey=OTHER",
            "KEY=OTHER",
            "key[]=OTHER",
            "key%00=OTHER",
            "%256bey=OTHER",
            "+key=OTHER",
            "group.id=8",
            "group-id",
            "k\u{ff45}y=OTHER",
        ] {
            let joined = join_path(&base, &format!("?{bad}"));
            assert!(matches!(joined, Err(GrantError::Denied(_))), "{bad}: {joined:?}");
        }
        let fine = join_path(&base, "?keys=a&b=key;c=%26key=x").unwrap();
        assert_eq!(fine.query(), Some("key=SECRET&group_id=7&keys=a&b=key;c=%26key=x"));
        let without = Url::parse("https://hooks.example/send").unwrap();
        assert!(join_path(&without, "?a[]=1&a[]=2").is_ok(), "without a query of its own any key passes");
    }
}

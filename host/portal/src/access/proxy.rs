//! A proxy that signs people in and sends their names. It is believed only if it knows the secret; otherwise
//! its headers are ignored.

use axum::http::{HeaderMap, HeaderValue};
use kubewitness_core::ports::Person;
use ring::hmac;

use super::{ProxySecret, TrustedProxy};

const SECRET: &str = "x-kubewitness-proxy-secret";
const USER: &str = "x-remote-user";
const GROUP: &str = "x-remote-group";
/// The header of a request is limited, and a name is one line of it.
const NAME_BYTES: usize = 1024;
const GROUPS: usize = 512;
/// The API server adds this group to every authenticated user, and RBAC rules use it.
const AUTHENTICATED: &str = "system:authenticated";
/// Users and groups of the cluster itself, such as `system:masters`, which no proxy may sign in.
const RESERVED: &str = "system:";

/// A proxy sends its secret, but does not clearly identify the person.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnclearProxy;

/// The person whom the proxy names. `None` if no proxy is involved, or it names nobody.
pub(super) fn person_from_proxy(
    proxy: &TrustedProxy,
    headers: &HeaderMap,
) -> Result<Option<Person>, UnclearProxy> {
    let speaks = headers.get(SECRET).is_some_and(|given| is_proof(&proxy.secret, given.as_bytes()));
    match speaks && headers.contains_key(USER) {
        true => named_person(proxy, headers).map(Some).ok_or(UnclearProxy),
        false => Ok(None),
    }
}

fn named_person(proxy: &TrustedProxy, headers: &HeaderMap) -> Option<Person> {
    let mut users = headers.get_all(USER).iter();
    let user = text_of(users.next()?)?;
    let groups = headers.get_all(GROUP).iter().filter(|_| proxy.names_groups);
    let mut groups: Vec<String> =
        groups.map(|value| text_of(value).map(str::to_owned)).collect::<Option<_>>()?;
    let fits = |name: &str| !name.is_empty() && name.len() <= NAME_BYTES;
    if users.next().is_some() || !fits(user) || groups.len() > GROUPS || !groups.iter().all(|name| fits(name))
    {
        return None;
    }
    groups.retain(|name| name != AUTHENTICATED);
    if user.starts_with(RESERVED) || groups.iter().any(|name| name.starts_with(RESERVED)) {
        return None;
    }
    groups.push(AUTHENTICATED.into());
    Some(Person { user: user.into(), groups, ..Person::default() })
}

/// A name in UTF-8, as the API server decodes the headers of an authenticating proxy.
fn text_of(value: &HeaderValue) -> Option<&str> {
    let text = std::str::from_utf8(value.as_bytes()).ok()?.trim();
    (!text.chars().any(char::is_control)).then_some(text)
}

/// Takes the same time however many bytes match, because it compares codes derived from the secret.
fn is_proof(secret: &ProxySecret, given: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret.0);
    let code = hmac::sign(&key, given);
    hmac::verify(&key, &secret.0, code.as_ref()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "0123456789abcdef0123456789abcdef";

    fn asked(pairs: &[(&'static str, &str)]) -> Result<Option<Person>, UnclearProxy> {
        asked_with(true, pairs)
    }

    fn asked_with(
        names_groups: bool,
        pairs: &[(&'static str, &str)],
    ) -> Result<Option<Person>, UnclearProxy> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        person_from_proxy(&TrustedProxy { secret: ProxySecret::new(GOOD).unwrap(), names_groups }, &headers)
    }

    #[test]
    fn groups_count_where_the_operator_says_that_the_proxy_names_them() {
        let pairs = [(SECRET, GOOD), (USER, "ann"), (GROUP, "admins"), (GROUP, "system:masters")];
        assert_eq!(asked_with(false, &pairs).unwrap().unwrap().groups, [AUTHENTICATED]);
        assert_eq!(asked_with(true, &pairs), Err(UnclearProxy));
        assert_eq!(asked_with(true, &pairs[..3]).unwrap().unwrap().groups, ["admins", AUTHENTICATED]);
    }

    #[test]
    fn a_proxy_that_knows_the_secret_says_who_it_is() {
        let person = asked(&[(SECRET, GOOD), (USER, "ann"), (GROUP, "a"), (GROUP, "b")]).unwrap().unwrap();
        assert_eq!((person.user.as_str(), person.uid.as_str()), ("ann", ""));
        assert_eq!(person.groups, ["a", "b", AUTHENTICATED]);
    }

    #[test]
    fn names_are_read_as_utf_8() {
        let person = asked(&[(SECRET, GOOD), (USER, "zoë"), (GROUP, "forschung-größe")]).unwrap().unwrap();
        assert_eq!((person.user.as_str(), person.groups[0].as_str()), ("zoë", "forschung-größe"));
        assert_eq!(asked(&[(SECRET, GOOD), (USER, "a\u{9b}b")]), Err(UnclearProxy));
        let mut headers = HeaderMap::new();
        headers.append(SECRET, GOOD.parse().unwrap());
        headers.append(USER, HeaderValue::from_bytes(b"zo\xeb").unwrap());
        let proxy = TrustedProxy { secret: ProxySecret::new(GOOD).unwrap(), names_groups: true };
        assert_eq!(super::person_from_proxy(&proxy, &headers), Err(UnclearProxy), "another encoding");
    }

    #[test]
    fn without_the_secret_or_without_a_name_no_proxy_speaks_and_unclear_names_are_no_proof() {
        let other = GOOD.replace('0', "1");
        for pairs in [
            &[(USER, "ann")][..],
            &[(SECRET, ""), (USER, "ann")],
            &[(SECRET, &other), (USER, "ann")],
            &[(SECRET, &GOOD[1..]), (USER, "ann")],
            &[(SECRET, GOOD)],
        ] {
            assert_eq!(asked(pairs), Ok(None), "{pairs:?}");
        }
        for pairs in [
            &[(SECRET, GOOD), (USER, " ")][..],
            &[(SECRET, GOOD), (USER, "ann"), (USER, "bob")],
            &[(SECRET, GOOD), (USER, "ann"), (GROUP, "")],
            &[(SECRET, GOOD), (USER, &"a".repeat(NAME_BYTES + 1))],
            &[(SECRET, GOOD), (USER, "system:anonymous")],
            &[(SECRET, GOOD), (USER, "system:serviceaccount:kube-system:a")],
            &[(SECRET, GOOD), (USER, "ann"), (GROUP, "system:unauthenticated")],
            &[(SECRET, GOOD), (USER, "ann"), (GROUP, "a"), (GROUP, "system:masters")],
        ] {
            assert_eq!(asked(pairs), Err(UnclearProxy), "{pairs:?}");
        }
    }

    #[test]
    fn a_secret_that_could_be_guessed_is_refused() {
        assert!(ProxySecret::new("hush").is_err());
        assert!(ProxySecret::new(&format!(" {} \n", &GOOD[1..])).is_err());
        assert!(ProxySecret::new(&format!("{GOOD}\n")).is_ok());
    }
}

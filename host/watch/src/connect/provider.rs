//! Checks the `auth-provider` of a kubeconfig, the older login method, before its token is used.
//!
//! The token is never renewed here: an identity provider may invalidate a refresh token at its first use, and
//! kubectl, which stores it, would be locked out. So an expired token is refused with instructions for
//! getting a new one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube::config::{AuthInfo, AuthProviderConfig};
use serde::Deserialize;

const LOG_IN: &str = "Let kubectl renew it, for instance by `kubectl auth whoami`, or log in again; a command in `exec` \
    instead of `auth-provider` renews it by itself";

/// A token that expires sooner counts as expired, because it has to be valid until the answer. kubectl uses
/// the same value.
const LEAST_SECONDS: u64 = 10;

/// Whether the kubeconfig itself contains or names a token or a password. These take precedence, as in
/// kubectl.
pub fn holds_token_or_password(user: &AuthInfo) -> bool {
    let has_password = user.username.is_some() && user.password.is_some();
    has_password || user.token.is_some() || user.token_file.is_some()
}

/// Removes a provider if another login method takes precedence. The client library would ask the provider
/// first.
pub fn set_aside_beside_another(user: &mut AuthInfo) {
    if holds_token_or_password(user) {
        user.auth_provider = None;
    }
}

/// Why this provider has no valid token now; `None` if it has one.
pub fn refusal_of_provider(provider: &AuthProviderConfig, now_ms: u64) -> Option<String> {
    if provider.config.contains_key("cmd-path") {
        return Some(
            "the kubeconfig names a command in `auth-provider`, which Kubernetes has removed: name one in `exec`"
                .into(),
        );
    }
    if provider.name != "oidc" {
        return None;
    }
    let Some(token) = provider.config.get("id-token").filter(|token| !token.is_empty()) else {
        return Some(format!("the kubeconfig's `auth-provider` has no `id-token`. {LOG_IN}"));
    };
    let needed_ms = now_ms.saturating_add(LEAST_SECONDS * 1000);
    let is_over = token_expiry(token).is_some_and(|seconds| seconds.saturating_mul(1000) <= needed_ms);
    is_over.then(|| format!("the `id-token` of the kubeconfig's `auth-provider` has expired. {LOG_IN}"))
}

/// The expiry time in a token, in seconds. `None` if the token has no readable one; then the API server
/// decides.
fn token_expiry(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct TokenClaims {
        exp: f64,
    }
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    // Some providers write a fraction.
    serde_json::from_slice::<TokenClaims>(&claims).ok().map(|claims| claims.exp as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    fn judged(config: &serde_json::Value) -> Option<String> {
        let provider = serde_json::json!({"name": "oidc", "config": config});
        refusal_of_provider(&serde_json::from_value(provider).unwrap(), 1_800_000_000_000)
    }

    #[test]
    fn a_token_that_has_expired_or_is_missing_is_refused_with_the_way_to_a_new_one() {
        for (config, why) in [
            (serde_json::json!({"refresh-token": "r"}), "no `id-token`"),
            (serde_json::json!({"id-token": ""}), "no `id-token`"),
            (serde_json::json!({"id-token": token(r#"{"exp": 1800000000}"#)}), "has expired"),
            (serde_json::json!({"id-token": token(r#"{"exp": 1800000010}"#)}), "has expired"),
            (serde_json::json!({"id-token": token(r#"{"exp": 1799999999.5}"#)}), "has expired"),
            (serde_json::json!({"id-token": token(r#"{"exp": -1}"#)}), "has expired"),
        ] {
            let refusal = judged(&config).unwrap_or_default();
            assert!(
                refusal.contains(why) && refusal.contains("`kubectl auth whoami`"),
                "{config}: {refusal}"
            );
        }
    }

    #[test]
    fn a_token_that_lasts_or_says_nothing_of_its_end_is_used() {
        for token in [
            token(r#"{"exp": 1800000011}"#),
            token(r#"{"exp": 1e300}"#),
            token(r#"{"exp": "soon"}"#),
            token("{}"),
            token("no JSON"),
            "opaque".into(),
            "a.%.c".into(),
        ] {
            assert_eq!(judged(&serde_json::json!({"id-token": token})), None);
        }
    }
}

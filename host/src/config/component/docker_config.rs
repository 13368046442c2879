//! Names and passwords of registries, as `docker login` writes them. Pure.
//!
//! A crate was rejected: helpers are programs, which must not be run, and no error may quote the text.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use thiserror::Error;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// It has no `Debug`, because it is a secret.
#[derive(Clone)]
pub struct RegistryLogin {
    pub user: String,
    pub password: String,
}

/// Why a configuration has no login. No text quotes the configuration, which is a secret.
#[derive(Debug, PartialEq, Error)]
pub enum LoginError {
    #[error("is no config.json of Docker (line {line}, column {column})")]
    NoConfig { line: usize, column: usize },
    #[error("has no name and password for {0}: `docker login` writes them as `auth`")]
    NoPassword(String),
}

/// The login for this repository. The most specific entry counts, as in Kubernetes.
pub fn registry_login(
    config: &str,
    registry: &str,
    repository: &str,
) -> Result<Option<RegistryLogin>, LoginError> {
    let config: DockerConfig = serde_json::from_str(config)
        .map_err(|error| LoginError::NoConfig { line: error.line(), column: error.column() })?;
    let wanted = format!("{registry}/{repository}");
    let of = |entry: &str| {
        entry.split_once("://").map_or(entry, |(_, rest)| rest).trim_end_matches('/').to_owned()
    };
    let fits = |entry: &String| {
        let entry = of(entry);
        let entry = entry.strip_suffix("/v1").or(entry.strip_suffix("/v2")).unwrap_or(&entry);
        wanted == entry || wanted.strip_prefix(entry).is_some_and(|rest| rest.starts_with('/'))
    };
    let found = config.auths.iter().filter(|(entry, _)| fits(entry)).max_by_key(|(entry, _)| of(entry).len());
    let Some((entry, auth)) = found else { return Ok(None) };
    let wrong = || LoginError::NoPassword(entry.clone());
    if let Some(text) = auth.auth.as_deref().filter(|text| !text.is_empty()) {
        let decoded = STANDARD.decode(text.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) = pair.ok_or_else(wrong)?;
        return Ok(Some(RegistryLogin { user: user.into(), password: password.into() }));
    }
    match (&auth.username, &auth.password) {
        (Some(user), Some(password)) => {
            Ok(Some(RegistryLogin { user: user.clone(), password: password.clone() }))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"auths": {
        "https://registry.example.com/v1/": {"auth": "YW5uOmh1c2g6aHVzaA=="},
        "registry.example.com/team": {"username": "team", "password": "quiet"},
        "other.example.com": {}, "broken.example.com": {"auth": "%"}}, "credsStore": "desktop"}"#;

    fn of(registry: &str, repository: &str) -> Result<Option<(String, String)>, LoginError> {
        registry_login(CONFIG, registry, repository)
            .map(|found| found.map(|login| (login.user, login.password)))
    }

    #[test]
    fn the_entry_that_names_most_of_a_repository_counts() {
        let pair = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        assert_eq!(of("registry.example.com", "a/b"), pair("ann", "hush:hush"));
        assert_eq!(of("registry.example.com", "team/a"), pair("team", "quiet"));
        assert_eq!(of("registry.example.com", "teams/a"), pair("ann", "hush:hush"));
        assert_eq!(of("registry.example.com.evil.example", "a"), Ok(None));
        assert_eq!(of("elsewhere.example.com", "a"), Ok(None));
    }

    #[test]
    fn what_is_no_login_is_told_without_what_stands_there() {
        for registry in ["other.example.com", "broken.example.com"] {
            assert!(of(registry, "a").unwrap_err().to_string().contains(registry));
        }
        let error = registry_login(r#"{"auths": "hush"}"#, "a.example", "b").err().unwrap().to_string();
        assert!(error.contains("config.json") && !error.contains("hush"), "{error}");
    }
}

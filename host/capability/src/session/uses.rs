//! The grants of a plugin, and how often the plugin has called each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kubewitness_core::config::GrantsSpec;

/// The calls of one plugin to the host since it was started, by grant. A call that is refused counts, too.
/// What was not granted is not counted: a plugin chooses those names.
#[derive(Debug, Default)]
pub struct Uses(BTreeMap<&'static str, BTreeMap<String, AtomicU64>>);

impl Uses {
    pub fn of(grants: &GrantsSpec) -> Self {
        let mut uses = Self::default();
        let GrantsSpec { sql, http, mail, ledger, keys, kv, lister, documents: _ } = grants;
        let names: [(&str, Vec<&str>); 7] = [
            ("sql", sql.iter().map(|grant| grant.name.as_str()).collect()),
            ("http", http.iter().map(|grant| grant.name.as_str()).collect()),
            ("mail", mail.iter().map(|grant| grant.name.as_str()).collect()),
            ("ledger", ledger.iter().map(|grant| grant.name.as_str()).collect()),
            ("key", keys.iter().map(|grant| grant.name.as_str()).collect()),
            ("kv", kv.then_some("").into_iter().collect()),
            ("lister", lister.iter().map(String::as_str).collect()),
        ];
        for (capability, names) in names {
            let unused = names.into_iter().map(|name| (name.to_owned(), AtomicU64::new(0)));
            uses.0.insert(capability, unused.collect());
        }
        uses
    }

    /// Counts one call. `kv` has no name.
    pub fn count(&self, capability: &str, name: &str) {
        if let Some(calls) = self.0.get(capability).and_then(|names| names.get(name)) {
            calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each grant as a component names what it needs, such as `sql:main`, with its calls.
    pub fn all(&self) -> impl Iterator<Item = (String, u64)> {
        let of = |(capability, names): (&&'static str, &BTreeMap<String, AtomicU64>)| {
            let called = |(name, calls): (&String, &AtomicU64)| {
                let name =
                    if name.is_empty() { (*capability).to_owned() } else { format!("{capability}:{name}") };
                (name, calls.load(Ordering::Relaxed))
            };
            names.iter().map(called).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_grant_has_its_calls_and_what_was_not_granted_has_none() {
        let grants = serde_json::json!({
            "sql": [{"name": "main", "database": "a"}],
            "keys": [{"name": "k", "key": "a"}],
            "kv": true,
            "lister": ["jobs"],
        });
        let uses = Uses::of(&serde_json::from_value(grants).unwrap());
        for (capability, name) in
            [("sql", "main"), ("sql", "main"), ("sql", "other"), ("kv", ""), ("http", "x")]
        {
            uses.count(capability, name);
        }
        let all: Vec<_> = uses.all().collect();
        let expected = [("key:k", 0), ("kv", 1), ("lister:jobs", 0), ("sql:main", 2)];
        assert_eq!(all, expected.map(|(name, calls)| (name.to_owned(), calls)));
    }
}

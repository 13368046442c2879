//! The grants of a plugin, and how often the plugin has used each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use kubewitness_core::config::{DocumentsGrant, GrantsSpec, SqlAccess};

/// The calls of one plugin to the controller since it was started, by grant. Refused calls count, too. Calls
/// without a grant are not counted, because a plugin chooses those names.
#[derive(Debug, Default)]
pub struct GrantUses {
    calls: BTreeMap<&'static str, BTreeMap<String, AtomicU64>>,
    /// For databases: the granted access, and the most that a statement has needed, counted from 1.
    access: BTreeMap<String, (SqlAccess, AtomicU8)>,
}

const ACCESSES: [SqlAccess; 3] = [SqlAccess::Read, SqlAccess::Write, SqlAccess::Schema];

impl GrantUses {
    pub fn of(grants: &GrantsSpec) -> Self {
        let mut uses = Self::default();
        let GrantsSpec { sql, http, mail, ledger, keys, kv, lister, outcomes, documents } = grants;
        let names: [(&str, Vec<&str>); 9] = [
            ("sql", sql.iter().map(|grant| grant.name.as_str()).collect()),
            ("http", http.iter().map(|grant| grant.name.as_str()).collect()),
            ("mail", mail.iter().map(|grant| grant.name.as_str()).collect()),
            ("ledger", ledger.iter().map(|grant| grant.name.as_str()).collect()),
            ("key", keys.iter().map(|grant| grant.name.as_str()).collect()),
            ("kv", kv.then_some("").into_iter().collect()),
            ("lister", lister.iter().map(String::as_str).collect()),
            ("outcomes", outcomes.iter().map(String::as_str).collect()),
            // Redacted documents need no grant.
            ("documents", (*documents != DocumentsGrant::Redacted).then_some("").into_iter().collect()),
        ];
        for (capability, names) in names {
            let unused = names.into_iter().map(|name| (name.to_owned(), AtomicU64::new(0)));
            uses.calls.insert(capability, unused.collect());
        }
        let access = sql.iter().map(|grant| (grant.name.clone(), (grant.access, AtomicU8::new(0))));
        uses.access = access.collect();
        uses
    }

    /// Counts one call. `kv` and `documents` have no name.
    pub fn count(&self, capability: &str, name: &str) {
        if let Some(calls) = self.calls.get(capability).and_then(|names| names.get(name)) {
            calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each grant in the form in which a component names its needs, such as `sql:main`, with its calls.
    pub fn counts_by_grant(&self) -> impl Iterator<Item = (String, u64)> {
        let of = |(capability, names): (&&'static str, &BTreeMap<String, AtomicU64>)| {
            let called = |(name, calls): (&String, &AtomicU64)| {
                let name =
                    if name.is_empty() { (*capability).to_owned() } else { format!("{capability}:{name}") };
                (name, calls.load(Ordering::Relaxed))
            };
            names.iter().map(called).collect::<Vec<_>>()
        };
        self.calls.iter().flat_map(of)
    }

    /// Records that a statement needs this access to a database, even if it is refused.
    pub fn note_needed_access(&self, database: &str, access: SqlAccess) {
        if let Some((_, most)) = self.access.get(database) {
            most.fetch_max(1 + access as u8, Ordering::Relaxed);
        }
    }

    /// For a database grant as [`counts_by_grant`](Self::counts_by_grant) names it: the granted access, and the least access that
    /// would have sufficed so far.
    pub fn granted_and_needed(&self, name: &str) -> Option<(SqlAccess, Option<SqlAccess>)> {
        let (granted, most) = self.access.get(name.strip_prefix("sql:")?)?;
        let enough = usize::from(most.load(Ordering::Relaxed)).checked_sub(1);
        Some((*granted, enough.and_then(|at| ACCESSES.get(at).copied())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_that_would_have_been_enough_is_the_most_that_was_needed() {
        let grants = serde_json::json!({"sql": [{"name": "main", "database": "d", "access": "write"}]});
        let uses = GrantUses::of(&serde_json::from_value(grants).unwrap());
        assert_eq!(uses.granted_and_needed("sql:main"), Some((SqlAccess::Write, None)));
        uses.note_needed_access("main", SqlAccess::Schema);
        uses.note_needed_access("main", SqlAccess::Read);
        assert_eq!(uses.granted_and_needed("sql:main"), Some((SqlAccess::Write, Some(SqlAccess::Schema))));
        assert_eq!((uses.granted_and_needed("kv"), uses.granted_and_needed("sql:other")), (None, None));
    }

    #[test]
    fn each_grant_has_its_calls_and_what_was_not_granted_has_none() {
        let grants = serde_json::json!({
            "sql": [{"name": "main", "database": "a"}],
            "keys": [{"name": "k", "key": "a"}],
            "kv": true,
            "lister": ["jobs"],
            "documents": "raw",
        });
        let uses = GrantUses::of(&serde_json::from_value(grants).unwrap());
        for (capability, name) in
            [("sql", "main"), ("sql", "main"), ("sql", "other"), ("kv", ""), ("http", "x"), ("documents", "")]
        {
            uses.count(capability, name);
        }
        let counts: Vec<_> = uses.counts_by_grant().collect();
        let expected = [("documents", 1), ("key:k", 0), ("kv", 1), ("lister:jobs", 0), ("sql:main", 2)];
        assert_eq!(counts, expected.map(|(name, calls)| (name.to_owned(), calls)));
        let redacted = GrantUses::of(&GrantsSpec::default());
        redacted.count("documents", "");
        assert_eq!(redacted.counts_by_grant().count(), 0, "every plugin has them");
    }
}

//! The manifest of a running plugin, as people see it.

use kubewitness_core::config::{DocumentsGrant, GrantsSpec, PluginSpec, config_fields};
use kubewitness_core::views::{GrantView, ManifestView};

/// Interfaces that need a grant. Every plugin has the others, such as `log`.
const CAPABILITIES: [&str; 8] = ["sql", "http", "mail", "ledger", "kv", "lister", "outcomes", "documents"];

/// `schema` is the configuration schema of the component.
pub fn view(imports: &[String], needs: Vec<String>, schema: &str, spec: &PluginSpec) -> ManifestView {
    let mut declared = needs;
    for import in imports.iter().filter(|import| CAPABILITIES.contains(&import.as_str())) {
        // The interface of ledgers is also that of keys.
        let is_of = |need: &String| match need.split(':').next().unwrap_or_default() {
            "key" => import == "ledger",
            capability => import == capability,
        };
        if !declared.iter().any(is_of) {
            declared.push(import.clone());
        }
    }
    ManifestView {
        declared,
        granted: grant_views(&spec.grants),
        sources: spec.subscribe.iter().map(|subscribe| subscribe.source.clone()).collect(),
        config: Some(spec.config.clone()),
        fields: config_fields(schema),
        memory_limit: spec.limits.memory.0,
        call_limit_ms: u64::try_from(spec.limits.call.0.as_millis()).unwrap_or(u64::MAX),
    }
}

fn grant_views(grants: &GrantsSpec) -> Vec<GrantView> {
    let grant =
        |capability: &str, name: &str, of: String| GrantView { name: format!("{capability}:{name}"), of };
    let alone = |name: &str, of: &str| GrantView { name: name.into(), of: of.into() };
    let mut views = Vec::new();
    views.extend(grants.sql.iter().map(|spec| {
        grant("sql", &spec.name, format!("database {}, access {}", spec.database, spec.access.as_str()))
    }));
    views.extend(
        grants.http.iter().map(|spec| grant("http", &spec.name, format!("destination {}", spec.destination))),
    );
    views.extend(
        grants.mail.iter().map(|spec| grant("mail", &spec.name, format!("mail server {}", spec.server))),
    );
    views.extend(
        grants.ledger.iter().map(|spec| grant("ledger", &spec.name, format!("ledger {}", spec.ledger))),
    );
    views.extend(grants.keys.iter().map(|spec| grant("key", &spec.name, format!("key {}", spec.key))));
    views.extend(grants.kv.then(|| alone("kv", "")));
    views.extend(grants.lister.iter().map(|source| grant("lister", source, format!("source {source}"))));
    views.extend(grants.outcomes.iter().map(|source| grant("outcomes", source, format!("source {source}"))));
    views.push(match grants.documents {
        DocumentsGrant::Redacted => alone("documents", "without secrets"),
        DocumentsGrant::Digest => alone("documents", "without secrets, with the digest of the whole"),
        DocumentsGrant::Raw => alone("documents", "whole, secrets included"),
    });
    views
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_declared_stands_beside_what_is_granted_under_the_same_names() {
        let spec: PluginSpec = serde_json::from_value(json!({
            "module": {"file": "p.wasm"},
            "subscribe": [{"source": "jobs"}],
            "grants": {"sql": [{"name": "main", "database": "platform"}], "keys": [{"name": "sign", "key": "k"}]},
            "config": {"table": "jobs"},
        }))
        .unwrap();
        let imports = ["sql", "ledger", "kv", "documents", "log"].map(String::from);
        let schema = r#"{"properties":{"table":{"type":"string"}}}"#;
        let view = view(&imports, vec!["sql:main".into(), "key:sign".into()], schema, &spec);
        assert_eq!((view.fields[0].field.as_str(), view.fields[0].kind.as_str()), ("table", "text"));
        assert_eq!(view.declared, ["sql:main", "key:sign", "kv", "documents"]);
        let granted: Vec<_> = view.granted.iter().map(|it| (it.name.as_str(), it.of.as_str())).collect();
        assert_eq!(
            granted,
            [
                ("sql:main", "database platform, access schema"),
                ("key:sign", "key k"),
                ("documents", "without secrets")
            ]
        );
        assert_eq!(
            (view.sources, view.config.unwrap()["table"].as_str()),
            (vec!["jobs".to_owned()], Some("jobs"))
        );
    }
}

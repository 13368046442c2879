//! The served kinds: their names, the places of their objects, and their verbs.
//!
//! Built-in kinds come from the table in `builtins.rs`, custom ones from the definitions in the store. Both
//! become the same type, so the rest of the server needs no case for either. It knows nothing of objects.

mod builtins;
pub(crate) mod defaults;
pub(crate) mod definitions;
pub(crate) mod discovery;
pub(crate) mod fields;
pub(crate) mod tables;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// The verbs of an ordinary resource.
pub const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

type Text = Cow<'static, str>;

/// A part of an object with an endpoint of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Subresource {
    pub name: Text,
    /// The group, version and kind of its bodies, if they differ from the object's.
    pub speaks: Option<(Text, Text, Text)>,
    pub verbs: &'static [&'static str],
}

/// The fields that a definition adds to a custom kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CustomKind {
    /// The name of the definition.
    pub definition: String,
    pub columns: Vec<CustomColumn>,
    /// Field paths that a selector may use, beyond the name and namespace.
    pub selectable: Vec<String>,
    /// The paths of the desired and the observed number of replicas.
    pub scale: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CustomColumn {
    pub name: String,
    pub kind: String,
    pub path: String,
    pub priority: i64,
}

/// One version of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedKind {
    pub group: Text,
    pub version: Text,
    pub kind: Text,
    pub plural: Text,
    pub singular: Text,
    pub short: Vec<Text>,
    pub categories: Vec<Text>,
    pub namespaced: bool,
    pub verbs: &'static [&'static str],
    pub subresources: Vec<Subresource>,
    pub custom: Option<CustomKind>,
    /// Whether `metadata.generation` counts changes outside of metadata and status.
    pub generation: bool,
}

impl ServedKind {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `leases.coordination.k8s.io`, or `pods` for the core group.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `Lease.coordination.k8s.io`, or `Pod` for the core group.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.kind.to_string() } else { format!("{}.{}", self.kind, self.group) }
    }

    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"watch")
    }
}

/// Every kind that is served now. It is replaced as a whole when a definition is added or removed.
pub struct KindRegistry {
    kinds: Vec<Arc<ServedKind>>,
    by_path: HashMap<(String, String, String), usize>,
}

impl KindRegistry {
    pub fn new(custom: Vec<ServedKind>) -> Self {
        let kinds: Vec<Arc<ServedKind>> = builtins::kinds().into_iter().chain(custom).map(Arc::new).collect();
        let by_path = kinds
            .iter()
            .enumerate()
            .map(|(at, k)| ((k.group.to_string(), k.version.to_string(), k.plural.to_string()), at))
            .collect();
        KindRegistry { kinds, by_path }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<ServedKind>> {
        let key = (group.to_owned(), version.to_owned(), plural.to_owned());
        self.by_path.get(&key).map(|at| &self.kinds[*at])
    }

    /// Any version of the resource.
    pub fn resource(&self, group: &str, plural: &str) -> Option<&Arc<ServedKind>> {
        self.kinds.iter().find(|k| k.group == group && k.plural == plural)
    }

    pub fn all(&self) -> &[Arc<ServedKind>] {
        &self.kinds
    }

    /// The named groups with their versions, preferred first, in the order of the table.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for kind in &self.kinds {
            let version = kind.version.to_string();
            match groups.iter_mut().find(|(group, _)| *group == kind.group) {
                None => groups.push((kind.group.to_string(), vec![version])),
                Some((_, versions)) if !versions.contains(&version) => versions.push(version),
                Some(_) => {}
            }
        }
        groups
    }

    /// The resources of one group and version, by name.
    pub fn resources(&self, group: &str, version: &str) -> Vec<&Arc<ServedKind>> {
        let mut found: Vec<&Arc<ServedKind>> =
            self.kinds.iter().filter(|k| k.group == group && k.version == version).collect();
        found.sort_by(|a, b| a.plural.cmp(&b.plural));
        found
    }
}

//! Finds ended objects by their names.

use std::sync::Arc;

use kubewitness_core::Seq;
use rusqlite::Connection;
use rusqlite::types::Value;

/// A query for ended objects by name. Events are excluded.
#[derive(Clone, Debug, Default)]
pub struct NamedEndQuery {
    /// Sources, each with one of its namespaces or with all of them.
    pub within: Vec<(String, Option<String>)>,
    /// Whether to order by namespace and then by name, or by name alone.
    pub by_namespace: bool,
    /// Whether the last name comes first.
    pub descends: bool,
    /// Only those after this position. Its namespace is empty unless the order is by namespace.
    pub beyond: Option<NamePlace>,
    pub limit: usize,
}

/// The position of an object in the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePlace {
    /// Empty unless the order is by namespace.
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// An ended object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEnd {
    pub source: Arc<str>,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The position of its end state.
    pub ended: Seq,
}

impl NamedEndQuery {
    /// The position of an object in the requested order.
    pub fn place_of(&self, end: &NamedEnd) -> NamePlace {
        let namespace = if self.by_namespace { end.namespace.clone() } else { String::new() };
        NamePlace { namespace, name: end.name.clone(), uid: end.uid.clone() }
    }

    fn text(&self, has_namespace: bool) -> String {
        let (columns, marks) = match self.by_namespace {
            true => ("namespace, name, uid", "?, ?, ?"),
            false => ("name, uid", "?, ?"),
        };
        let of = if has_namespace { "AND namespace = ?" } else { "" };
        let (sign, way) = if self.descends { ("<", "DESC") } else { (">", "ASC") };
        let behind = match self.beyond {
            Some(_) => format!("AND ({columns}) {sign} ({marks})"),
            None => String::new(),
        };
        let order = columns.replace(',', &format!(" {way},"));
        format!(
            "SELECT namespace, name, uid, ended FROM objects WHERE source = ? {of} AND ended IS NOT NULL {behind}
             ORDER BY {order} {way} LIMIT ?"
        )
    }
}

/// Reads `limit` rows from each part, which is enough for the first `limit` of all parts together.
pub(super) fn find(connection: &Connection, query: &NamedEndQuery) -> rusqlite::Result<Vec<NamedEnd>> {
    let mut found = Vec::new();
    for (source, of) in &query.within {
        let mut statement = connection.prepare_cached(&query.text(of.is_some()))?;
        let name: Arc<str> = source.as_str().into();
        let mut values = vec![Value::from(source.clone())];
        values.extend(of.clone().map(Value::from));
        if let Some(NamePlace { namespace, name, uid }) = query.beyond.clone() {
            values.extend(query.by_namespace.then(|| Value::from(namespace)));
            values.extend([Value::from(name), Value::from(uid)]);
        }
        values.push(Value::from(query.limit as i64));
        let ends = statement.query_map(rusqlite::params_from_iter(values), |row| {
            let (namespace, uid) = (row.get(0)?, row.get(2)?);
            let ended = row.get::<_, i64>(3)? as Seq;
            Ok(NamedEnd { source: name.clone(), namespace, name: row.get(1)?, uid, ended })
        })?;
        found.extend(ends.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    found.sort_by_cached_key(|end| query.place_of(end));
    if query.descends {
        found.reverse();
    }
    found.truncate(query.limit);
    Ok(found)
}

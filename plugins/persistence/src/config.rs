//! The configuration: the valid content of a manifest's `spec.config`, and the faults in it.

use std::collections::BTreeSet;

use kubewitness_sdk::FieldError;
use serde::{Deserialize, Deserializer, de};

use crate::schema;
pub use crate::schema::Type;

/// The most columns. Each adds a value to two tables on the hot path.
const MOST_COLUMNS: usize = 32;
/// With this limit, the longest name of an index stays below the 63 bytes that PostgreSQL keeps.
const PREFIX_BYTES: usize = 24;
const NAME_BYTES: usize = 63;
/// The most bytes that Kubernetes allows for the name of a resource.
const RESOURCE_BYTES: usize = 253;
const POINTER_BYTES: usize = 512;
/// Prefixes of names that the host or a database uses. The host refuses them, too.
const RESERVED_PREFIXES: [&str; 9] =
    ["kubewitness_", "sqlite_", "pg_", "pragma_", "lo_", "dblink", "inet_", "plpgsql_", "binary_upgrade_"];
/// Columns that SQLite and PostgreSQL add to every table.
const SYSTEM_COLUMNS: [&str; 8] = ["rowid", "oid", "ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"];

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Creates indexes for look-ups of a single object: object_status by namespace and name, object_history
    /// by uid. Each write then costs several times as much.
    pub index: bool,
    /// Values of the document that object_status and object_history get as columns of their own. A column is
    /// added to the tables when it is first named here. A column that is no longer named stays, and new rows
    /// have NULL in it.
    #[cfg_attr(test, schemars(length(max = 32)))]
    pub columns: Vec<Column>,
    /// The part of each state's document that object_history keeps, in the column `document`.
    pub documents: Documents,
    /// Creates the views for dashboards: object_current, object_times, object_queue_times, object_failures,
    /// object_gpu_hours, and with `causes` object_causes.
    pub views: bool,
    /// The resource that object_transitions counts as GPUs, such as `nvidia.com/gpu`: the limits of the
    /// containers, times
    /// `parallelism`. It needs the documents of states that change the phase. By default GPUs are not
    /// counted.
    #[cfg_attr(test, schemars(length(max = 253)))]
    pub gpus: String,
    /// Writes to object_outcomes why objects ended badly: the cause, the pod and the container that failed first, and the
    /// sentence for people. The manifest needs the grant `outcomes` and `tick`.
    pub causes: bool,
    /// How long rows of object_history and object_transitions are kept, such as `90d` or `12h`. Ticks delete
    /// older ones, so the manifest needs `tick`. By default all are kept.
    #[cfg_attr(test, schemars(with = "Option<String>", regex(pattern = "^[0-9]+[dh]$")))]
    pub keep: Option<KeepRows>,
    /// The prefix of the names of all tables, indexes and views, such as `batch_`, with which several
    /// installations can share a database. A letter, then letters, digits and underscores, all in lower case,
    /// at most 24. A database on a server refuses names that begin with `kw_`.
    #[cfg_attr(test, schemars(regex(pattern = "^([a-z][a-z0-9_]{0,23})?$")))]
    pub prefix: String,
    /// Whether the plugin creates and changes tables itself. If its user in the database lacks the right, use
    /// `false`, and run the files of deploy/schema.
    pub create: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            index: false,
            columns: Vec::new(),
            documents: Documents::None,
            views: false,
            gpus: String::new(),
            causes: false,
            keep: None,
            prefix: String::new(),
            create: true,
        }
    }
}

/// `pruned` is the document without managed fields, the copy that `kubectl apply` keeps, and heartbeats. For
/// a document over 256 KiB, only its size is kept.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Documents {
    #[default]
    None,
    Pruned,
    Whole,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The column's name in the database: a letter, then letters, digits and underscores, all in lower case, at most 63.
    #[cfg_attr(test, schemars(regex(pattern = "^[a-z][a-z0-9_]{0,62}$")))]
    pub name: String,
    /// The JSON Pointer of the value in the document. `/` within a key is written `~1`, and `~` is written
    /// `~0`.
    #[cfg_attr(test, schemars(regex(pattern = "^/"), length(max = 512)))]
    pub pointer: String,
    #[serde(rename = "type")]
    pub holds: Type,
}

/// How long rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepRows {
    pub ms: u64,
}

impl KeepRows {
    /// Rows of the last hour may still change.
    const LEAST_MS: u64 = 3_600_000;

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = match (text.strip_suffix('d'), text.strip_suffix('h')) {
            (Some(days), _) => (days, 86_400_000),
            (None, Some(hours)) => (hours, 3_600_000),
            (None, None) => return None,
        };
        let ms = number.parse::<u32>().ok().map(|number| u64::from(number) * unit)?;
        (ms >= Self::LEAST_MS).then_some(Self { ms })
    }
}

impl<'de> Deserialize<'de> for KeepRows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong =
            || format!("`{text}` is no time of at least an hour: write days or hours, such as 90d or 12h");
        Self::parse(&text).ok_or_else(|| de::Error::custom(wrong()))
    }
}

pub fn check(config: &Config) -> Vec<FieldError> {
    let mut faults = Vec::new();
    if config.columns.len() > MOST_COLUMNS {
        faults.push(FieldError::new(
            "columns",
            format!("has {}, at most {MOST_COLUMNS}", config.columns.len()),
        ));
    }
    if !config.prefix.is_empty() && !is_name(&config.prefix, PREFIX_BYTES) {
        faults.push(FieldError::new("prefix", wrong_name(PREFIX_BYTES)));
    }
    if config.gpus.len() > RESOURCE_BYTES {
        faults.push(FieldError::new(
            "gpus",
            format!("has {} bytes, at most {RESOURCE_BYTES}", config.gpus.len()),
        ));
    }
    let mut seen = BTreeSet::new();
    for (place, column) in config.columns.iter().enumerate() {
        let mut fault = |field: &str, why: String| {
            faults.push(FieldError::new(format!("columns[{place}].{field}"), why));
        };
        let name = column.name.as_str();
        if !is_name(name, NAME_BYTES) {
            fault("name", wrong_name(NAME_BYTES));
        } else if SYSTEM_COLUMNS.contains(&name) {
            fault("name", format!("databases have a column `{name}` of their own: choose another name"));
        } else if schema::has_column(name) {
            fault("name", format!("the tables have a column `{name}` of their own: choose another name"));
        } else if !seen.insert(name) {
            fault("name", format!("`{name}` is there twice"));
        }
        if let Some(why) = wrong_pointer(&column.pointer) {
            fault("pointer", why);
        }
    }
    faults
}

fn is_name(name: &str, most: usize) -> bool {
    name.len() <= most
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && !RESERVED_PREFIXES.iter().any(|taken| name.starts_with(taken))
        && !name.contains(RESERVED_PREFIXES[0])
}

fn wrong_name(most: usize) -> String {
    let taken = RESERVED_PREFIXES.join(", ");
    format!(
        "write a letter, then letters, digits and underscores, all in lower case, at most {most} of them; these \
         beginnings are taken: {taken}"
    )
}

fn wrong_pointer(pointer: &str) -> Option<String> {
    if !pointer.starts_with('/') {
        return Some("a JSON Pointer begins with `/`, such as `/metadata/labels/team`".into());
    }
    if pointer.len() > POINTER_BYTES {
        return Some(format!("has {} bytes, at most {POINTER_BYTES}", pointer.len()));
    }
    let escapes = pointer.split('~').skip(1);
    let wrong = escapes.into_iter().any(|after| !after.starts_with(['0', '1']));
    wrong.then(|| "write `~` as `~0`, and `/` within a key as `~1`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_days_or_hours() {
        for (text, ms) in [("90d", 7_776_000_000), ("1h", 3_600_000), ("0036h", 129_600_000)] {
            assert_eq!(KeepRows::parse(text), Some(KeepRows { ms }), "{text}");
        }
        for text in ["", "d", "0d", "0h", "59m", "-1d", "1.5d", "90", "99999999999d"] {
            assert_eq!(KeepRows::parse(text), None, "{text}");
        }
    }
}

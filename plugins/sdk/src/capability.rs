//! The capabilities as plugins call them: thin functions over the generated imports, with Rust's conveniences
//! (serde, string literals). In a component each call goes to the host. In a native build it goes to the
//! test's host.

#[cfg(target_arch = "wasm32")]
use crate::bindings::kubewitness::plugin as raw;
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::raw;

pub(crate) fn config_text() -> String {
    raw::config::get()
}

/// The documents of the states in this call.
pub mod documents {
    use serde::de::DeserializeOwned;

    use super::raw;
    use crate::Error;

    /// The whole object, as the API server wrote it. `None` if the host has none.
    pub fn json(seq: u64) -> Result<Option<String>, Error> {
        raw::documents::json(seq)
    }

    /// One value as JSON, by JSON Pointer (`/spec/template`).
    pub fn get(seq: u64, pointer: &str) -> Result<Option<String>, Error> {
        raw::documents::get(seq, pointer)
    }

    /// The change since the previous version, as a JSON merge patch.
    pub fn patch(seq: u64) -> Result<Option<String>, Error> {
        raw::documents::patch(seq)
    }

    /// The whole object, decoded. A document of another shape is [`Error::Invalid`].
    pub fn read<T: DeserializeOwned>(seq: u64) -> Result<Option<T>, Error> {
        decode(json(seq)?)
    }

    /// One value, decoded.
    pub fn value<T: DeserializeOwned>(seq: u64, pointer: &str) -> Result<Option<T>, Error> {
        decode(get(seq, pointer)?)
    }

    fn decode<T: DeserializeOwned>(text: Option<String>) -> Result<Option<T>, Error> {
        let Some(text) = text else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| Error::Invalid(error.to_string()))
    }
}

/// Reads the host's cache.
pub mod lister {
    use super::raw;
    use crate::{Error, ObjectRef};

    /// The object as JSON.
    pub fn get(source: &str, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        raw::lister::get(source, namespace, name)
    }

    pub fn in_namespace(source: &str, namespace: &str, limit: u32) -> Result<Vec<ObjectRef>, Error> {
        raw::lister::list(source, "namespace", namespace, limit)
    }

    pub fn owned_by(source: &str, uid: &str, limit: u32) -> Result<Vec<ObjectRef>, Error> {
        raw::lister::list(source, "owner", uid, limit)
    }

    /// Finds objects by `namespace`, `owner`, `node`, `label` (the key is `name=value`), or an index that the
    /// operator gave the source.
    pub fn by_index(source: &str, index: &str, key: &str, limit: u32) -> Result<Vec<ObjectRef>, Error> {
        raw::lister::list(source, index, key, limit)
    }

    pub fn all(source: &str, limit: u32) -> Result<Vec<ObjectRef>, Error> {
        raw::lister::list(source, "", "", limit)
    }
}

/// Why objects of granted sources ended badly.
pub mod outcomes {
    use super::raw;
    use crate::Error;
    pub use crate::bindings::kubewitness::plugin::outcomes::{
        ChangePage, ChangedOutcome, Explanation, Finding,
    };

    /// Why one object ended badly. The cause is known some seconds after the end: [`Finding::Pending`] until then.
    pub fn explain(source: &str, uid: &str) -> Result<Finding, Error> {
        raw::outcomes::explain(source, uid)
    }

    /// The outcomes that changed after a place: [`ChangePage::next`] of the page before, or an empty text. Keep the next place
    /// in the transaction in which you write what the page says.
    pub fn changes(after: &str, limit: u32) -> Result<ChangePage, Error> {
        raw::outcomes::changes(after, limit)
    }
}

/// Granted databases. The writes of one `handle` share a transaction with the receipts.
pub mod sql {
    use super::raw;
    use crate::Error;
    pub use crate::bindings::kubewitness::plugin::sql::{
        ColumnFilling, Dialect, FilledColumn, OnConflict, StateFact, StateWrite, TableCopy, TableWrite, Value,
    };
    pub use crate::facts::{column_text, uid_text};

    pub fn dialect_of(database: &str) -> Result<Dialect, Error> {
        raw::sql::dialect_of(database)
    }

    /// Writes many rows with one statement. Returns the number of rows that it changed.
    pub fn write(database: &str, rows: &TableWrite) -> Result<u64, Error> {
        raw::sql::write(database, rows)
    }

    /// Writes the same rows into two tables. Either both are written, or none is.
    pub fn write_both(database: &str, rows: &TableWrite, copy: &TableCopy) -> Result<u64, Error> {
        raw::sql::write_both(database, rows, copy)
    }

    /// Writes a row for each of these states, whose facts the host fills in. It costs much less than rows
    /// that the plugin makes of the same facts. With a copy, either both tables are written, or none is.
    pub fn write_states(database: &str, rows: &StateWrite, copy: Option<&TableCopy>) -> Result<u64, Error> {
        raw::sql::write_states(database, rows, copy)
    }

    impl FilledColumn {
        /// A column of a fact of the states.
        pub fn of_fact(name: &str, fact: StateFact) -> Self {
            Self { name: name.to_string(), filling: ColumnFilling::Fact(fact) }
        }

        /// A column with one value for all rows.
        pub fn of_one(name: &str, value: impl Into<Value>) -> Self {
            Self { name: name.to_string(), filling: ColumnFilling::Same(value.into()) }
        }

        /// A column with one value for each row.
        pub fn of_each(name: &str, values: Vec<Value>) -> Self {
            Self { name: name.to_string(), filling: ColumnFilling::Each(values) }
        }
    }

    /// Runs one statement for every row of parameters.
    pub fn execute(database: &str, statement: &str, rows: &[Vec<Value>]) -> Result<u64, Error> {
        raw::sql::execute(database, statement, rows)
    }

    /// Runs one statement without parameters.
    pub fn run(database: &str, statement: &str) -> Result<u64, Error> {
        raw::sql::execute(database, statement, &[Vec::new()])
    }

    pub fn query(database: &str, statement: &str, params: &[Value]) -> Result<Vec<Vec<Value>>, Error> {
        raw::sql::query(database, statement, params)
    }

    macro_rules! value_from {
        ($($from:ty => $case:ident),*) => {$(
            impl From<$from> for Value {
                fn from(value: $from) -> Self {
                    Self::$case(value.into())
                }
            }
        )*};
    }

    value_from!(bool => Boolean, i64 => Integer, i32 => Integer, u32 => Integer, f64 => Float);
    value_from!(&str => Text, String => Text, Vec<u8> => Blob);

    /// For positions and times. Not every database has unsigned 64-bit integers, and none of these values
    /// reaches the sign bit.
    impl From<u64> for Value {
        fn from(value: u64) -> Self {
            Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
        }
    }

    impl From<&String> for Value {
        fn from(value: &String) -> Self {
            Self::Text(value.clone())
        }
    }

    impl<T: Into<Value>> From<Option<T>> for Value {
        fn from(value: Option<T>) -> Self {
            value.map_or(Self::Null, Into::into)
        }
    }
}

/// Requests to granted destinations.
pub mod http {
    use serde::Serialize;

    use super::raw;
    use crate::Error;
    pub use crate::bindings::kubewitness::plugin::http::{Request, Response};

    pub fn send(destination: &str, request: &Request) -> Result<Response, Error> {
        raw::http::send(destination, request)
    }

    /// Posts a JSON body with the state's id as idempotency key, so that a receiver can recognize a repeat.
    pub fn post_json(
        destination: &str,
        path: &str,
        id: &str,
        body: &impl Serialize,
    ) -> Result<Response, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Invalid(error.to_string()))?;
        let headers = vec![
            ("content-type".to_string(), "application/json".to_string()),
            ("idempotency-key".to_string(), id.to_string()),
        ];
        send(destination, &Request { method: "POST".to_string(), path: path.to_string(), headers, body })
    }
}

/// Messages to people, through granted mail servers.
pub mod mail {
    use super::raw;
    use crate::Error;
    pub use crate::bindings::kubewitness::plugin::mail::{Message, Refusal};

    /// Sends one message. Returns the recipients that the server refused; the others have it.
    pub fn send(server: &str, message: &Message) -> Result<Vec<Refusal>, Error> {
        raw::mail::send(server, message)
    }
}

/// Small durable values of this plugin, committed with the batch.
pub mod kv {
    use super::raw;
    use crate::Error;

    pub fn get(key: &str) -> Result<Option<Vec<u8>>, Error> {
        raw::kv::get(key)
    }

    pub fn set(key: &str, value: &[u8]) -> Result<(), Error> {
        raw::kv::set(key, value)
    }

    pub fn delete(key: &str) -> Result<(), Error> {
        raw::kv::delete(key)
    }

    pub fn keys(prefix: &str, limit: u32) -> Result<Vec<String>, Error> {
        raw::kv::keys(prefix, limit)
    }
}

/// Granted append-only record files, and signatures.
pub mod ledger {
    use super::raw;
    use crate::Error;

    /// Returns the number of records in the ledger afterwards.
    pub fn append(ledger: &str, records: &[Vec<u8>]) -> Result<u64, Error> {
        raw::ledger::append(ledger, records)
    }

    pub fn last(ledger: &str) -> Result<Option<Vec<u8>>, Error> {
        raw::ledger::last(ledger)
    }

    pub fn sign(key: &str, message: &[u8]) -> Result<Vec<u8>, Error> {
        raw::ledger::sign(key, message)
    }
}

/// Names of people, stored beside a granted ledger, where they can be erased.
pub mod persons {
    use super::raw;
    use crate::Error;

    /// Returns the digest that replaces the name in records of this ledger.
    pub fn conceal(ledger: &str, name: &str) -> Result<String, Error> {
        raw::persons::conceal(ledger, name)
    }
}

/// Writes lines to the host's log, under the plugin's name.
pub mod log {
    use super::raw;
    pub use crate::bindings::kubewitness::plugin::log::Level;

    pub fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
        let fields: Vec<_> = fields.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        raw::log::write(level, message, &fields);
    }

    pub fn debug(message: &str, fields: &[(&str, &str)]) {
        write(Level::Debug, message, fields);
    }

    pub fn info(message: &str, fields: &[(&str, &str)]) {
        write(Level::Info, message, fields);
    }

    pub fn warn(message: &str, fields: &[(&str, &str)]) {
        write(Level::Warn, message, fields);
    }

    pub fn error(message: &str, fields: &[(&str, &str)]) {
        write(Level::Error, message, fields);
    }
}

pub mod clock {
    use super::raw;

    /// Milliseconds since 1970.
    pub fn now_ms() -> u64 {
        raw::clock::now_ms()
    }
}

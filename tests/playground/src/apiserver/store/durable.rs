//! The store's file: one line of JSON for each event. A line is appended before its request is answered. So a
//! process that is killed and started again has the same history.
//!
//! Lines reach the operating system, not the disk. They survive `kill -9`, but not a power failure. A last
//! line without a newline was never acknowledged and is cut off. Nothing is ever removed, because a file
//! lives only as long as a test.
//!
//! | line | what |
//! |---|---|
//! | `{"put": TABLE, "fields": {…}, "object": {…}}` | a version, with its fields for selectors |
//! | `{"gone": TABLE, "keys": […]}` | deletions at one version |
//! | `{"compact": N, "keepWindows": bool}` | the history before N was forgotten |
//! | `{"backup": NAME}`, `{"restore": NAME, "bump": N}` | a named copy of everything, and going back to it |
//! | `{"note": …}` | what others keep here: tokens |
//!
//! Each line has the field `at`, in milliseconds since 1970, and the version that it made.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::forgetting::WindowPolicy;
use super::inner::StoreInner;
use crate::apiserver::store::record::{ObjectDraft, VersionRecord, write_object};

pub(super) struct DurableFile {
    file: File,
    /// Why the last line could not be written. Nothing is written after it.
    failed: Option<io::Error>,
}

impl DurableFile {
    /// Opens the file and returns its lines.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<Value>)> {
        let mut file = File::options().create(true).read(true).append(true).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        file.set_len(end as u64)?;
        file.seek(SeekFrom::End(0))?;
        let lines = bytes[..end].split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let lines: Result<Vec<Value>, _> = lines.map(serde_json::from_slice).collect();
        Ok((DurableFile { file, failed: None }, lines.map_err(io::Error::other)?))
    }

    fn write(&mut self, line: &Value) {
        if self.failed.is_none()
            && let Err(error) = self.file.write_all(format!("{line}\n").as_bytes())
        {
            self.failed = Some(error);
        }
    }
}

impl StoreInner {
    fn log(&mut self, mut line: Value) {
        let at = self.now();
        let version = self.version;
        if let Some(durable) = &mut self.durable {
            line["at"] = at.into();
            line["version"] = version.into();
            durable.write(&line);
        }
    }

    pub(super) fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// Why events are no longer written.
    pub(super) fn failure(&self) -> Option<String> {
        self.durable.as_ref().and_then(|d| d.failed.as_ref()).map(ToString::to_string)
    }

    pub(super) fn log_put(&mut self, table: &str, record: &VersionRecord) {
        if !self.is_durable() {
            return;
        }
        let mut text = Vec::with_capacity(record.tail.len() + 128);
        write_object(&mut text, "", &record.version.to_string(), &record.tail);
        let object: Value = serde_json::from_slice(&text).unwrap_or_default();
        let fields: Map<String, Value> =
            record.fields.iter().map(|(k, v)| (k.to_string(), v.as_ref().into())).collect();
        self.log(json!({"put": table, "fields": fields, "object": object}));
    }

    pub(super) fn log_gone(&mut self, table: &str, keys: &[Arc<str>]) {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        self.log(json!({"gone": table, "keys": keys}));
    }

    pub(super) fn log_compact(&mut self, target: u64, windows: WindowPolicy) {
        self.log(json!({"compact": target, "keepWindows": windows == WindowPolicy::Keep}));
    }

    pub(super) fn log_backup(&mut self, name: &str) {
        self.log(json!({"backup": name}));
    }

    pub(super) fn log_restore(&mut self, name: &str, bump: u64) {
        self.log(json!({"restore": name, "bump": bump}));
    }

    pub(super) fn log_note(&mut self, note: &Value) {
        self.log(json!({"note": note}));
    }

    /// Applies a line again.
    pub(super) fn replay(&mut self, line: &Value) -> io::Result<()> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("a line makes no sense: {line}"));
        self.replayed_at = line["at"].as_u64();
        let version = line["version"].as_u64().ok_or_else(bad)?;
        if let Some(table) = line["put"].as_str() {
            let id = self.table(table);
            let draft = draft(line).ok_or_else(bad)?;
            self.version = version;
            let key = draft.key();
            let record = Arc::new(VersionRecord { version, deleted: false, draft });
            self.append(id, key.into(), &record);
        } else if let Some(table) = line["gone"].as_str() {
            let id = self.table(table);
            self.version = version;
            for key in line["keys"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let draft = self.tables[id.0].live(key).ok_or_else(bad)?.draft.clone();
                let record = Arc::new(VersionRecord { version, deleted: true, draft });
                self.append(id, key.into(), &record);
            }
        } else if let Some(target) = line["compact"].as_u64() {
            let windows = if line["keepWindows"] == true { WindowPolicy::Keep } else { WindowPolicy::Forget };
            self.compact(target, windows);
        } else if let Some(name) = line["backup"].as_str() {
            self.back_up(name);
        } else if let Some(name) = line["restore"].as_str() {
            self.restore(name, line["bump"].as_u64().unwrap_or(0)).ok_or_else(bad)?;
        } else if !line["note"].is_null() {
            self.notes.push(line["note"].clone());
        } else {
            return Err(bad());
        }
        self.replayed_at = None;
        Ok(())
    }
}

fn draft(line: &Value) -> Option<ObjectDraft> {
    let mut draft = ObjectDraft::new(line["object"].as_object()?, &[]);
    let fields = line["fields"].as_object()?;
    draft.fields = fields.iter().filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into()))).collect();
    Some(draft)
}

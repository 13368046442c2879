//! Writes a history as a file has it.

use std::collections::HashMap;

use anyhow::Result;
use serde_json::Value;

use crate::history::HistoryLine;
use crate::merge_patch;
use crate::{Operation, RecordedHistory};

/// The text of the file. Nulls in documents are left out, because a merge patch can't write them.
pub fn write_history(history: &RecordedHistory) -> Result<String> {
    let mut text = serde_json::to_string(&history.header)? + "\n";
    let mut newest: HashMap<&str, Value> = HashMap::new();
    for change in &history.changes {
        let mut line = HistoryLine {
            op: change.op,
            key: change.key.clone(),
            at_ms: change.at_ms,
            kind: None,
            object: None,
            patch: None,
        };
        let before = newest.remove(change.key.as_str());
        if change.op == Operation::Put {
            let mut document = change.document.clone();
            merge_patch::without_nulls(&mut document);
            match before {
                Some(before) => line.patch = Some(merge_patch::between(&before, &document)),
                None => {
                    line.kind = document["kind"].as_str().map(str::to_owned);
                    line.object = Some(document.clone());
                }
            }
            newest.insert(&change.key, document);
        }
        text += &serde_json::to_string(&line)?;
        text.push('\n');
    }
    Ok(text)
}

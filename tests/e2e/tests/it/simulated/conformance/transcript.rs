//! The recordings, as they are on disk.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use kubewitness_harness::project_root;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transcript {
    pub name: String,
    #[serde(rename = "about")]
    _about: String,
    pub steps: Vec<TranscriptStep>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranscriptStep {
    pub why: String,
    pub request: TranscriptRequest,
    pub response: TranscriptResponse,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranscriptRequest {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: Option<Value>,
}

/// Exactly one of `body`, `text` and `frames` is there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranscriptResponse {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: Option<Value>,
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub frames: Option<Vec<Value>>,
    #[serde(default)]
    pub closed_by_server: bool,
}

fn folder() -> PathBuf {
    project_root().join("tests").join("transcripts")
}

pub fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder()).context("the folder of recordings")? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            names.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

impl Transcript {
    pub fn load(name: &str) -> Result<Self> {
        let path = folder().join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("the recording {}", path.display()))
    }
}

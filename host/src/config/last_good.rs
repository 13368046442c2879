//! The configuration that last worked, kept beside the journal: what a bad change, or a restart
//! during one, falls back to.
//!
//! `DIR/last-good/host.yaml`, `DIR/last-good/sources.json`, `DIR/last-good/witnessed.mark` and, for each plugin,
//! `DIR/last-good/NAME/{plugin.yaml,plugin.wasm,config-map}`. Each file is written beside its place
//! and renamed into it, so a crash leaves the old or the new one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kubewitness_core::config::{SourceSpec, is_name};

use super::manifest::{Entry, Origin};

pub struct LastGood {
    folder: PathBuf,
}

/// A plugin as it last worked.
#[derive(Clone)]
pub struct GoodPlugin {
    pub entry: Entry,
    pub component: Vec<u8>,
}

impl LastGood {
    pub fn open(data: &Path) -> io::Result<Self> {
        let folder = data.join("last-good");
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    pub fn save_host(&self, entry: &Entry) -> io::Result<()> {
        replace(&self.folder.join("host.yaml"), entry.text.as_bytes())
    }

    /// The component goes first: a plugin.yaml is never there without the component it ran with.
    pub fn save_plugin(&self, name: &str, entry: &Entry, component: &[u8]) -> io::Result<()> {
        let folder = self.plugin_folder(name)?;
        std::fs::create_dir_all(&folder)?;
        replace(&folder.join("plugin.wasm"), component)?;
        replace(&folder.join("config-map"), entry.config_map.as_bytes())?;
        replace(&folder.join("plugin.yaml"), entry.text.as_bytes())
    }

    pub fn forget_plugin(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_dir_all(self.plugin_folder(name)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whoever calls has checked the name; here a wrong one would cost somebody's files.
    fn plugin_folder(&self, name: &str) -> io::Result<PathBuf> {
        if !is_name(name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{name}` is not a plugin's name"),
            ));
        }
        Ok(self.folder.join(name))
    }

    /// What each source that was ever taken witnesses: its history belongs to that.
    pub fn sources(&self) -> io::Result<BTreeMap<String, SourceSpec>> {
        let text = optional(std::fs::read_to_string(self.folder.join("sources.json")))?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?.unwrap_or_default())
    }

    pub fn save_sources(&self, sources: &BTreeMap<String, SourceSpec>) -> io::Result<()> {
        replace(&self.folder.join("sources.json"), &serde_json::to_vec_pretty(sources)?)
    }

    /// That the journal beside it has held something: one that is empty later is another one.
    pub fn has_witnessed(&self) -> bool {
        self.mark().exists()
    }

    fn mark(&self) -> PathBuf {
        self.folder.join("witnessed.mark")
    }

    pub fn witnessed(&self, has_states: bool) -> io::Result<()> {
        match has_states && !self.has_witnessed() {
            true => replace(&self.mark(), b""),
            false => Ok(()),
        }
    }

    pub fn host(&self) -> io::Result<Option<Entry>> {
        let path = self.folder.join("host.yaml");
        let text = optional(std::fs::read_to_string(&path))?;
        Ok(text.map(|text| entry(&path, String::new(), text)))
    }

    pub fn plugins(&self) -> io::Result<BTreeMap<String, GoodPlugin>> {
        let mut plugins = BTreeMap::new();
        for folder in std::fs::read_dir(&self.folder)? {
            let folder = folder?.path();
            let path = folder.join("plugin.yaml");
            let (Some(name), true) = (folder.file_name().and_then(|n| n.to_str()), folder.is_dir()) else {
                continue;
            };
            let Some(text) = optional(std::fs::read_to_string(&path))? else { continue };
            let config_map = std::fs::read_to_string(folder.join("config-map"))?;
            let component = std::fs::read(folder.join("plugin.wasm"))?;
            plugins.insert(name.to_string(), GoodPlugin { entry: entry(&path, config_map, text), component });
        }
        Ok(plugins)
    }
}

fn entry(path: &Path, config_map: String, text: String) -> Entry {
    let origin = Origin { place: path.display().to_string(), first_line: 1, folder: None };
    Entry { config_map, origin, text, binary: BTreeMap::new() }
}

fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.to_path_buf().into_os_string();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_there_again_until_it_is_forgotten() {
        let data = tempfile::tempdir().unwrap();
        let kept = LastGood::open(data.path()).unwrap();
        assert!(kept.host().unwrap().is_none());
        let one = entry(Path::new("x"), "map".into(), "text".into());
        kept.save_host(&one).unwrap();
        kept.save_plugin("audit", &one, b"\0asm").unwrap();
        let again = LastGood::open(data.path()).unwrap();
        assert_eq!(again.host().unwrap().unwrap().text, "text");
        let plugins = again.plugins().unwrap();
        assert_eq!(
            (plugins["audit"].entry.config_map.as_str(), plugins["audit"].component.as_slice()),
            ("map", &b"\0asm"[..])
        );
        again.forget_plugin("audit").unwrap();
        again.forget_plugin("audit").unwrap();
        assert!(again.forget_plugin("..").is_err() && data.path().exists());
        assert!(again.plugins().unwrap().is_empty());
    }
}

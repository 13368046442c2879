//! Keeps the last working configuration beside the journal. The controller falls back to it after a bad
//! change, also across a restart. Keeping it only in memory was rejected: a restart after a bad change would
//! stop everything.
//!
//! `DIR/last-good/host.yaml`, `DIR/last-good/sources.json`, `DIR/last-good/witnessed.mark` and, for each
//! plugin, `DIR/last-good/NAME/{plugin.yaml,plugin.wasm,config-map,pulled.json}`. While a version is on
//! probation, `DIR/last-good/NAME/before` has the same files of the version before it. Each file is written
//! beside its place and renamed into it, so a crash leaves the old or the new one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use kubewitness_core::config::{SourceSpec, is_name};
use kubewitness_core::files;

use super::component::{COMPONENT_BYTES, KeptComponents, PulledFrom, component_digest, digest_of};
use super::manifest::{ManifestEntry, ManifestOrigin};

/// No manifest is larger at its origin.
const TEXT_BYTES: u64 = 16 << 20;
const DOCUMENT: &str = "plugin.yaml";
const COMPONENT: &str = "plugin.wasm";
const BEFORE: &str = "before";

#[derive(Clone)]
pub struct LastGood {
    folder: PathBuf,
}

/// A plugin as it was when it last worked.
#[derive(Clone)]
pub struct GoodPlugin {
    pub entry: ManifestEntry,
    /// The digest of its component, whose bytes are only in the folder.
    pub component: String,
    /// The origin of a fetched component.
    pub pulled: Option<PulledFrom>,
}

impl GoodPlugin {
    /// Whether the folder has the same content for both.
    pub fn is_kept_as(&self, other: &Self) -> bool {
        self.entry.text == other.entry.text
            && self.entry.config_map == other.entry.config_map
            && self.component == other.component
            && self.pulled == other.pulled
    }

    /// Whether its effect differs from the other. The location of its document does not matter.
    pub fn is_another(&self, other: &Self) -> bool {
        self.entry.text != other.entry.text || self.component != other.component
    }
}

impl LastGood {
    pub fn open(data: &Path) -> io::Result<Self> {
        let folder = data.join("last-good");
        std::fs::create_dir_all(&folder).map_err(|error| write_error(&folder, &error))?;
        Ok(Self { folder })
    }

    /// Runs on a separate thread, so that the caller never waits indefinitely for the disk of this folder.
    pub async fn run_on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let kept = self.clone();
        files::run_within_limit(&self.folder, files::WORK, move || work(&kept)).await
    }

    pub fn save_host(&self, entry: &ManifestEntry) -> io::Result<()> {
        replace(&self.folder.join("host.yaml"), entry.text.as_bytes())
    }

    pub fn save_plugin(&self, name: &str, good: &GoodPlugin, component: &[u8]) -> io::Result<()> {
        write_plugin(&self.plugin_folder(name)?, good, component)
    }

    /// The location of a version's component. A crash may have left it in the folder of the previous version.
    pub fn component(&self, name: &str, good: &GoodPlugin) -> KeptComponents {
        let folder = self.folder.join(name);
        let files = [folder.join(COMPONENT), folder.join(BEFORE).join(COMPONENT)];
        KeptComponents::in_files(good.component.clone(), files.into())
    }

    pub fn forget_plugin(&self, name: &str) -> io::Result<()> {
        remove_plugin(&self.plugin_folder(name)?)
    }

    /// Keeps the last good version beside a newer one that has not worked yet.
    pub fn save_before(&self, name: &str, before: &GoodPlugin) -> io::Result<()> {
        let folder = self.plugin_folder(name)?;
        write_plugin(&folder.join(BEFORE), before, &read_component(&folder, before)?)
    }

    /// Makes the previous version the last good one again.
    pub fn restore_before(&self, name: &str, before: &GoodPlugin) -> io::Result<()> {
        let folder = self.plugin_folder(name)?;
        write_plugin(&folder, before, &read_component(&folder.join(BEFORE), before)?)?;
        self.forget_before(name)
    }

    pub fn forget_before(&self, name: &str) -> io::Result<()> {
        remove_plugin(&self.plugin_folder(name)?.join(BEFORE))
    }

    /// The caller has checked the name. It is checked again, because a wrong one would delete other files.
    fn plugin_folder(&self, name: &str) -> io::Result<PathBuf> {
        if !is_name(name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{name}` is not a plugin's name"),
            ));
        }
        Ok(self.folder.join(name))
    }

    /// Reads the resource that each source ever configured witnesses: its history belongs to that.
    pub fn sources(&self) -> io::Result<BTreeMap<String, SourceSpec>> {
        let text = optional(read(&self.folder.join("sources.json")))?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?.unwrap_or_default())
    }

    pub fn save_sources(&self, sources: &BTreeMap<String, SourceSpec>) -> io::Result<()> {
        replace(&self.folder.join("sources.json"), &serde_json::to_vec_pretty(sources)?)
    }

    /// Whether the journal beside it has ever had states: if it is empty later, it is another journal.
    pub fn has_witnessed(&self) -> bool {
        self.witnessed_mark().exists()
    }

    fn witnessed_mark(&self) -> PathBuf {
        self.folder.join("witnessed.mark")
    }

    pub fn note_witnessed(&self, has_states: bool) -> io::Result<()> {
        match has_states && !self.has_witnessed() {
            true => replace(&self.witnessed_mark(), b""),
            false => Ok(()),
        }
    }

    pub fn host(&self) -> io::Result<Option<ManifestEntry>> {
        let path = self.folder.join("host.yaml");
        let text = optional(read(&path))?;
        Ok(text.map(|text| entry(&path, String::new(), text)))
    }

    pub fn plugins(&self) -> io::Result<BTreeMap<String, GoodPlugin>> {
        let mut plugins = BTreeMap::new();
        for folder in std::fs::read_dir(&self.folder).map_err(|error| write_error(&self.folder, &error))? {
            let folder = folder?.path();
            let (Some(name), true) = (folder.file_name().and_then(|n| n.to_str()), folder.is_dir()) else {
                continue;
            };
            let Some(good) = read_plugin(&folder)? else { continue };
            plugins.insert(name.to_string(), good);
        }
        Ok(plugins)
    }

    /// The previous versions of those `plugins` that have not worked yet.
    pub fn versions_before(
        &self,
        plugins: &BTreeMap<String, GoodPlugin>,
    ) -> io::Result<BTreeMap<String, GoodPlugin>> {
        let mut all = BTreeMap::new();
        for (name, good) in plugins {
            let before = read_plugin(&self.plugin_folder(name)?.join(BEFORE))?;
            // A kill may have left a copy of the version beside itself.
            if let Some(before) = before.filter(|before| before.is_another(good)) {
                all.insert(name.clone(), before);
            }
        }
        Ok(all)
    }
}

/// The component is written first, so that a plugin.yaml never exists without the component with which it
/// ran.
fn write_plugin(folder: &Path, good: &GoodPlugin, component: &[u8]) -> io::Result<()> {
    let GoodPlugin { entry, pulled, .. } = good;
    std::fs::create_dir_all(folder)?;
    replace(&folder.join("pulled.json"), &serde_json::to_vec(pulled)?)?;
    replace(&folder.join(COMPONENT), component)?;
    replace(&folder.join("config-map"), entry.config_map.as_bytes())?;
    replace(&folder.join(DOCUMENT), entry.text.as_bytes())
}

/// The document is removed first, for the same reason.
fn remove_plugin(folder: &Path) -> io::Result<()> {
    optional(std::fs::remove_file(folder.join(DOCUMENT)))?;
    optional(std::fs::remove_dir_all(folder)).map(|_| ())
}

fn read_plugin(folder: &Path) -> io::Result<Option<GoodPlugin>> {
    let path = folder.join(DOCUMENT);
    let Some(text) = optional(read(&path))? else { return Ok(None) };
    let config_map = read(&folder.join("config-map"))?;
    let component = folder.join(COMPONENT);
    let component = digest_of(&component).map_err(|error| write_error(&component, &error))?;
    let pulled = optional(read(&folder.join("pulled.json")))?.unwrap_or_else(|| "null".into());
    let pulled = serde_json::from_str(&pulled).map_err(|error| write_error(folder, &error.into()))?;
    Ok(Some(GoodPlugin { entry: entry(&path, config_map, text), component, pulled }))
}

fn read_component(folder: &Path, good: &GoodPlugin) -> io::Result<Vec<u8>> {
    let path = folder.join(COMPONENT);
    let bytes = files::read(&path, COMPONENT_BYTES).map_err(|error| write_error(&path, &error))?;
    match component_digest(&bytes) == good.component {
        true => Ok(bytes),
        false => {
            Err(write_error(&path, &io::Error::other("it is not the component of the last good version")))
        }
    }
}

fn entry(path: &Path, config_map: String, text: String) -> ManifestEntry {
    let origin = ManifestOrigin { place: path.display().to_string(), first_line: 1, folder: None };
    ManifestEntry { config_map, origin, text, binary: BTreeMap::new() }
}

/// Only this program writes here. A file of another kind in this place is an error that names it.
fn read(path: &Path) -> io::Result<String> {
    files::text(path, TEXT_BYTES).map_err(|error| write_error(path, &error))
}

fn write_error(path: &Path, error: &io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound => String::new(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "; a folder is expected there: remove what lies there, and the controller makes it again".into()
        }
        _ => "; the controller keeps its last good configuration there: repair the disk, or remove what lies there"
            .to_owned(),
    };
    io::Error::new(error.kind(), format!("{}: {error}{what}", path.display()))
}

fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    files::replace_file_atomically(path, bytes, 0o666).map_err(|error| write_error(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pipe_in_the_place_of_what_was_kept_is_told_by_name_and_not_waited_for() {
        let data = tempfile::tempdir().unwrap();
        let kept = LastGood::open(data.path()).unwrap();
        for name in ["host.yaml", "sources.json"] {
            let path = data.path().join("last-good").join(name);
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        }
        let host = kept.run_on_thread(LastGood::host).await.unwrap_err().to_string();
        assert!(host.contains("last-good/host.yaml: it is a pipe"), "{host}");
        let sources = kept.run_on_thread(LastGood::sources).await.unwrap_err().to_string();
        assert!(sources.contains("last-good/sources.json: it is a pipe"), "{sources}");
    }

    #[test]
    fn a_pipe_or_a_file_in_the_place_of_the_folder_is_told_with_its_path_and_what_to_do() {
        for kind in ["mkfifo", "touch"] {
            let data = tempfile::tempdir().unwrap();
            let path = data.path().join("last-good");
            assert!(std::process::Command::new(kind).arg(&path).status().unwrap().success());
            let error = LastGood::open(data.path()).err().unwrap().to_string();
            assert!(
                error.contains(&path.display().to_string()) && error.contains("remove what lies"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_was_kept_is_there_again_until_it_is_forgotten() {
        let data = tempfile::tempdir().unwrap();
        let kept = LastGood::open(data.path()).unwrap();
        assert!(kept.host().unwrap().is_none());
        let one = entry(Path::new("x"), "map".into(), "text".into());
        kept.save_host(&one).unwrap();
        let pulled =
            PulledFrom { from: "r.example/a:1".into(), component: "c".into(), ..PulledFrom::default() };
        let good =
            GoodPlugin { entry: one, component: component_digest(b"\0asm"), pulled: Some(pulled.clone()) };
        kept.save_plugin("audit", &good, b"\0asm").unwrap();
        let again = LastGood::open(data.path()).unwrap();
        assert_eq!(again.host().unwrap().unwrap().text, "text");
        let plugins = again.plugins().unwrap();
        assert!(plugins["audit"].is_kept_as(&good), "it need not be written again");
        let others: [fn(&mut GoodPlugin); 4] = [
            |it| it.entry.text.push('x'),
            |it| it.entry.config_map.push('x'),
            |it| it.component = component_digest(b"other"),
            |it| it.pulled = None,
        ];
        for change in others {
            let mut other = good.clone();
            change(&mut other);
            assert!(!plugins["audit"].is_kept_as(&other));
        }
        assert_eq!(
            (plugins["audit"].entry.config_map.as_str(), &plugins["audit"].component),
            ("map", &component_digest(b"\0asm"))
        );
        assert_eq!(plugins["audit"].pulled, Some(pulled));
        again.forget_plugin("audit").unwrap();
        again.forget_plugin("audit").unwrap();
        assert!(!data.path().join("last-good/audit").exists());
        assert!(again.forget_plugin("..").is_err() && data.path().exists());
        assert!(again.plugins().unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_ran_before_a_version_on_probation_is_kept_beside_it_until_the_probation_ends() {
        let data = tempfile::tempdir().unwrap();
        let kept = LastGood::open(data.path()).unwrap();
        let good = |text: &str| GoodPlugin {
            entry: entry(Path::new("x"), "map".into(), text.into()),
            component: component_digest(text.as_bytes()),
            pulled: None,
        };
        let save = |text: &str| kept.save_plugin("audit", &good(text), text.as_bytes()).unwrap();
        let before = || kept.versions_before(&kept.plugins().unwrap()).unwrap();
        save("one");
        kept.save_before("audit", &good("one")).unwrap();
        assert!(before().is_empty(), "killed before the next version was kept");
        save("two");
        assert_eq!(before()["audit"].entry.text, "one");
        assert_eq!(kept.plugins().unwrap()["audit"].entry.text, "two");
        // The process was killed during the removal.
        std::fs::remove_file(data.path().join("last-good/audit/before/plugin.yaml")).unwrap();
        assert!(before().is_empty());
        kept.forget_before("audit").unwrap();
        kept.forget_before("audit").unwrap();
        assert!(!data.path().join("last-good/audit/before").exists());
        assert_eq!(kept.plugins().unwrap()["audit"].entry.text, "two");
        save("one");
        kept.save_before("audit", &good("one")).unwrap();
        save("two");
        let error = kept.save_before("audit", &good("one")).unwrap_err().to_string();
        assert!(error.contains("not the component of the last good version"), "{error}");
        let bytes = kept.component("audit", &good("one")).read().await.unwrap();
        assert_eq!(&bytes[..], b"one", "it lies in the place of the version before");
        kept.restore_before("audit", &good("one")).unwrap();
        assert!(kept.plugins().unwrap()["audit"].is_kept_as(&good("one")) && before().is_empty());
        kept.forget_plugin("audit").unwrap();
        assert!(before().is_empty());
    }
}

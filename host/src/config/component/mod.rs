//! Finds the component of a plugin: beside its manifest, in the plugin folders, in this binary, or in a
//! registry.
//!
//! A component is code that gets grants, and the server that delivers it is not trusted. So its digest
//! identifies it, wherever it comes from: a component from elsewhere is limited in time and size, and is
//! refused if its digest differs. A tag is resolved once and then kept by digest.

mod cosign;
mod docker_config;
mod download;
mod fetch_queue;
mod memory_budget;
mod on_disk;
mod registry;
mod remote;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kubewitness_core::config::{HostSpec, ManifestFault, PluginSpec};
use kubewitness_core::files;
use ring::digest::SHA256;
use thiserror::Error;

use super::manifest::{ManifestProblem, ParsedManifest};
pub use fetch_queue::is_fetching;
pub use on_disk::{KeptComponents, KeptError, digest_of};
pub use remote::{FetchError, PulledFrom, RemoteComponent, is_signed};

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// A component larger than this is a mistake: the shipped ones are under 1 MiB.
pub const COMPONENT_BYTES: u64 = 64 << 20;

/// Why no component was found.
#[derive(Debug, Error)]
pub enum FindError {
    #[error("looking for it in {folders}: {source}")]
    NoAnswer { folders: String, source: io::Error },
    #[error("{} can't be read: {source}", path.display())]
    Unread { path: PathBuf, source: io::Error },
    #[error(
        "`{file}` is not there; looked in {folders}; a `..` or a link that leads out of these folders is refused. Name \
         the folder of the file with --plugins"
    )]
    Missing { file: String, folders: String },
}

/// Why a component that comes with the controller can't be had.
#[derive(Debug, Error)]
pub enum ShippedError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Read(#[from] KeptError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

/// The folders that may hold components, besides a manifest's own.
#[derive(Clone, Default)]
pub struct ComponentFolders {
    pub plugins: Vec<PathBuf>,
    /// The controller's own folder. Its content comes from elsewhere, so no manifest may name it.
    pub data: Option<PathBuf>,
}

impl ComponentFolders {
    /// The folder for downloads until they are complete.
    pub fn for_fetching(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(std::env::temp_dir)
    }
}

impl From<Vec<PathBuf>> for ComponentFolders {
    fn from(plugins: Vec<PathBuf>) -> Self {
        Self { plugins, data: None }
    }
}

/// Where an installed binary looks by default: the image's folder, and those of a checkout.
pub fn default_folders(named: Option<PathBuf>) -> ComponentFolders {
    let mut folders: Vec<_> = named.into_iter().collect();
    if let Some(beside) = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf())) {
        folders.push(beside.join("plugins"));
        folders.push(beside.join("..").join("plugins"));
    }
    folders.push(PathBuf::from("/usr/share/kubewitness/plugins"));
    folders.into()
}

/// A component, or the place from which it must be fetched.
pub enum ComponentSource {
    /// From this binary or from a ConfigMap. It is in memory anyway, and needs no extra room.
    Here(Bytes),
    /// A file that the manifest names. It is read once room for it is available.
    File(KeptComponents),
    /// The last good component, if the configured one can't run.
    Kept(KeptComponents),
    Remote(Box<RemoteComponent>),
}

/// A component with the digest that its manifest requires.
pub struct FetchedComponent {
    pub bytes: Bytes,
    /// The origin, if it was fetched.
    pub pulled: Option<PulledFrom>,
}

impl ComponentSource {
    /// Identifies the component, so that two documents with the same one are recognized.
    pub fn source_mark(&self) -> String {
        match self {
            Self::Here(bytes) => component_digest(bytes),
            Self::File(kept) | Self::Kept(kept) => kept.digest().to_owned(),
            Self::Remote(remote) => remote.name(),
        }
    }

    /// This may take minutes.
    pub async fn fetch_component(
        self,
        parsed: &ParsedManifest<PluginSpec>,
    ) -> Result<FetchedComponent, Vec<ManifestProblem>> {
        let refused = |field: &str, message: String| {
            parsed.problems(vec![ManifestFault { field: field.into(), message }])
        };
        let fetched = match self {
            Self::Here(bytes) => FetchedComponent { bytes, pulled: None },
            Self::File(kept) => {
                let unread =
                    |error| refused("spec.module.file", format!("the component can't be read: {error}"));
                FetchedComponent { bytes: kept.read().await.map_err(unread)?, pulled: None }
            }
            Self::Kept(kept) => {
                let unread = |error| {
                    refused("spec.module", format!("the last good component can't be started: {error}"))
                };
                FetchedComponent { bytes: kept.read().await.map_err(unread)?, pulled: None }
            }
            Self::Remote(remote) => {
                let field = remote.field();
                let (bytes, pulled) =
                    remote.fetch_component().await.map_err(|error| refused(field, error.to_string()))?;
                FetchedComponent { bytes, pulled: Some(pulled) }
            }
        };
        let digest = component_digest(&fetched.bytes);
        match &parsed.spec.module.sha256 {
            Some(wanted) if !wanted.eq_ignore_ascii_case(&digest) => {
                let message = format!("the component that was found has the digest {digest}");
                Err(refused("spec.module.sha256", message))
            }
            _ => Ok(fetched),
        }
    }
}

/// Looks where the manifest says. Nothing is fetched yet.
pub async fn find(
    parsed: &ParsedManifest<PluginSpec>,
    folders: &ComponentFolders,
    host: &HostSpec,
) -> Result<ComponentSource, Vec<ManifestProblem>> {
    let module = &parsed.spec.module;
    if let Some(remote) = RemoteComponent::of(module, host, &folders.for_fetching()) {
        return Ok(ComponentSource::Remote(remote.into()));
    }
    let bytes = match (&module.file, &module.config_map_key) {
        (Some(file), _) => {
            let found = find_in_folders(file, parsed.entry.origin.folder.as_deref(), folders).await;
            return found.map_err(|error| {
                let (field, message) = ("spec.module.file".into(), error.to_string());
                parsed.problems(vec![ManifestFault { field, message }])
            });
        }
        (None, Some(key)) => parsed.entry.binary.get(key).cloned().ok_or_else(|| {
            let keys: Vec<_> = parsed.entry.binary.keys().map(String::as_str).collect();
            let message = format!("the ConfigMap's binaryData has no `{key}`; it has {}", keys.join(", "));
            parsed.problems(vec![ManifestFault { field: "spec.module.configMapKey".into(), message }])
        })?,
        (None, None) => Bytes::new(),
    };
    Ok(ComponentSource::Here(bytes))
}

pub fn component_digest(bytes: &[u8]) -> String {
    hex::encode(ring::digest::digest(&SHA256, bytes))
}

/// A component that comes with the controller: in its folders, or in this binary.
pub async fn shipped_component(name: &str, folder: Option<&Path>) -> Result<Bytes, ShippedError> {
    let folders = default_folders(folder.map(Path::to_path_buf));
    match find_in_folders(&format!("{name}.wasm"), None, &folders).await? {
        ComponentSource::Here(bytes) => Ok(bytes),
        ComponentSource::File(kept) | ComponentSource::Kept(kept) => Ok(kept.read().await?),
        ComponentSource::Remote(remote) => Ok(remote.fetch_component().await?.0),
    }
}

/// Whether a component comes with the program, or is in one of its folders of plugins.
pub fn is_shipped(file: &str, folders: &ComponentFolders) -> bool {
    folders.plugins.iter().any(|folder| folder.join(file).is_file()) || embedded_component(file).is_some()
}

fn embedded_component(file: &str) -> Option<&'static [u8]> {
    let name = file.strip_suffix(".wasm").unwrap_or(file);
    EMBEDDED.iter().find(|(embedded, _)| *embedded == name).map(|(_, bytes)| *bytes)
}

/// For folders that may not answer.
async fn find_in_folders(
    file: &str,
    beside: Option<&Path>,
    folders: &ComponentFolders,
) -> Result<ComponentSource, FindError> {
    let path = beside.unwrap_or(Path::new("")).join(file);
    let (file, beside, folders) = (file.to_owned(), beside.map(Path::to_path_buf), folders.clone());
    let looked = looked_in(&each_of(beside.as_deref(), &folders.plugins));
    let looking = move || Ok(find_file(&file, beside.as_deref(), &folders));
    let found = files::run_within_limit(&path, files::ANSWER, looking).await;
    found.unwrap_or_else(|source| Err(FindError::NoAnswer { folders: looked, source }))
}

fn each_of<'a>(beside: Option<&'a Path>, folders: &'a [PathBuf]) -> Vec<&'a Path> {
    // A manifest named without a folder is in the working directory.
    let beside = beside.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    beside.into_iter().chain(folders.iter().map(PathBuf::as_path)).collect()
}

fn looked_in(folders: &[&Path]) -> String {
    let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    folders.join(", ")
}

fn find_file(
    file: &str,
    beside: Option<&Path>,
    folders: &ComponentFolders,
) -> Result<ComponentSource, FindError> {
    let candidates = each_once(each_of(beside, &folders.plugins).into_iter());
    let data = folders.data.as_ref().and_then(|data| data.canonicalize().ok());
    for folder in &candidates {
        let path = folder.join(file);
        // A folder that can't be read counts as empty. A file elsewhere is reported as missing: otherwise a
        // manifest could find out which files exist on this machine.
        if let Some(real) =
            path.canonicalize().ok().filter(|real| may_hold(&candidates, data.as_deref(), real))
        {
            let digest = digest_of(&real).map_err(|source| FindError::Unread { path, source })?;
            return Ok(ComponentSource::File(KeptComponents::in_files(digest, vec![real])));
        }
    }
    if let Some(bytes) = embedded_component(file) {
        return Ok(ComponentSource::Here(Bytes::from_static(bytes)));
    }
    Err(FindError::Missing { file: file.to_owned(), folders: looked_in(&candidates) })
}

/// Whether one of the folders has the file, and not only because the data folder is inside of it.
fn may_hold(folders: &[&Path], data: Option<&Path>, file: &Path) -> bool {
    folders.iter().filter_map(|folder| folder.canonicalize().ok()).any(|folder| {
        let is_the_hosts = data.is_some_and(|data| data.starts_with(&folder) && file.starts_with(data));
        file.starts_with(&folder) && !is_the_hosts
    })
}

/// A program may be started in the folder of its plugins, or be given a folder that it already knows.
fn each_once<'a>(folders: impl Iterator<Item = &'a Path>) -> Vec<&'a Path> {
    let (mut known, mut once) = (BTreeSet::new(), Vec::new());
    for folder in folders {
        // `bin/../plugins` and `plugins` are the same folder. A missing folder has no other name.
        if known.insert(folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf())) {
            once.push(folder);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of the found component.
    fn found(file: &str, beside: Option<&Path>, folders: &ComponentFolders) -> Result<String, FindError> {
        find_file(file, beside, folders).map(|found| found.source_mark())
    }

    #[test]
    fn the_manifests_own_folder_comes_first_and_a_missing_file_says_where_it_was_looked_for() {
        let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(far.path().join("p.wasm"), b"far").unwrap();
        let folders = vec![far.path().to_path_buf()].into();
        assert_eq!(found("p.wasm", Some(near.path()), &folders).unwrap(), component_digest(b"far"));
        std::fs::write(near.path().join("p.wasm"), b"near").unwrap();
        assert_eq!(found("p.wasm", Some(near.path()), &folders).unwrap(), component_digest(b"near"));
        let error = found("q.wasm", Some(near.path()), &folders).unwrap_err().to_string();
        assert!(error.contains(&far.path().display().to_string()), "{error}");
    }

    #[test]
    fn a_file_outside_of_the_folders_or_in_the_data_folder_is_told_like_one_that_is_not_there() {
        let all = tempfile::tempdir().unwrap();
        let of = |path: &str| all.path().join(path);
        for folder in ["config", "plugins", "config/data/last-good", "data/plugins"] {
            std::fs::create_dir_all(of(folder)).unwrap();
        }
        for file in ["p.wasm", "plugins/p.wasm", "config/data/last-good/p.wasm", "data/plugins/q.wasm"] {
            std::fs::write(of(file), b"there").unwrap();
        }
        std::os::unix::fs::symlink("../p.wasm", of("config/out.wasm")).unwrap();
        std::os::unix::fs::symlink("../plugins/p.wasm", of("config/in.wasm")).unwrap();
        let read = |file: &str, data: &str| {
            let folders =
                ComponentFolders { plugins: vec![of("plugins"), of("data/plugins")], data: Some(of(data)) };
            found(file, Some(&of("config")), &folders)
        };
        let absolute = of("p.wasm").display().to_string();
        for file in ["../p.wasm", &absolute, "out.wasm", "data/last-good/p.wasm", "../absent.wasm"] {
            let error = read(file, "config/data").unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{file}` is not there; looked in ")), "{error}");
        }
        let named = of("plugins/p.wasm").display().to_string();
        for file in ["in.wasm", "../plugins/p.wasm", &named] {
            assert_eq!(read(file, "config/data").unwrap(), component_digest(b"there"), "{file}");
        }
        assert_eq!(
            read("q.wasm", "data").unwrap(),
            component_digest(b"there"),
            "a folder that the operator has put there"
        );
        assert!(read("../data/plugins/../q.wasm", "data").is_err());
    }

    #[test]
    fn a_manifest_that_is_named_without_a_folder_lies_in_the_one_of_the_process() {
        let error =
            found("q.wasm", Some(Path::new("")), &ComponentFolders::default()).unwrap_err().to_string();
        assert!(error.contains("looked in .; a"), "{error}");
    }

    #[tokio::test]
    async fn what_is_no_regular_file_is_no_component_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("p.wasm");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::create_dir(folder.path().join("d.wasm")).unwrap();
        for (file, kind) in [("p.wasm", "it is a pipe"), ("d.wasm", "it is a folder")] {
            let error = find_in_folders(file, Some(folder.path()), &ComponentFolders::default())
                .await
                .err()
                .unwrap()
                .to_string();
            assert!(error.contains(&format!("{file} can't be read: {kind}")), "{error}");
        }
    }

    #[test]
    fn a_folder_that_is_named_twice_is_looked_in_and_told_once() {
        let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (same, gone) = (near.path().join("."), far.path().join("gone"));
        let folders = vec![near.path().to_path_buf(), same, gone.clone(), gone.clone()].into();
        let error = found("q.wasm", Some(near.path()), &folders).unwrap_err().to_string();
        for folder in [near.path(), &gone] {
            assert_eq!(error.matches(&folder.display().to_string()).count(), 1, "{error}");
        }
    }
}

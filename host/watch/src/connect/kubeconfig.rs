//! Reads the kubeconfig, or the service account of the pod. Each file that it names is checked before the
//! client library opens it.

use std::io;
use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kubewitness_core::files;

use crate::connect::{ConnectError, ConnectOptions};

/// A kubeconfig's clusters, with their certificates, take some KiB each.
const FILE_BYTES: u64 = 16 << 20;
/// A bundle of certificates has some hundred KiB, a key and a token some KiB.
pub(super) const NAMED_FILE_BYTES: u64 = 1 << 20;

pub(super) struct KubeconfigChoice {
    pub config: kube::Config,
    pub in_cluster: bool,
}

impl KubeconfigChoice {
    fn of_file(config: kube::Config) -> Self {
        Self { config, in_cluster: false }
    }
}

pub(super) async fn choose_kubeconfig(options: &ConnectOptions) -> Result<KubeconfigChoice, ConnectError> {
    let chosen = KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &options.kubeconfig {
        let fault = |why: String| ConnectError::Kubeconfig { path: path.display().to_string(), why };
        let read = read_kubeconfig(path).await.map_err(|error| fault(error.to_string()))?;
        let looked = look_at_named_files(&read, chosen.context.as_deref()).await;
        looked.map_err(|error| fault(error.to_string()))?;
        let config = kube::Config::from_custom_kubeconfig(read, &chosen).await;
        return config.map(KubeconfigChoice::of_file).map_err(|error| fault(error.to_string()));
    }
    // The environment names the files.
    let read = files::run_within_limit(Path::new("the kubeconfig"), files::WORK, read_environment).await;
    let config = async {
        let read = read?;
        look_at_named_files(&read, chosen.context.as_deref()).await?;
        kube::Config::from_custom_kubeconfig(read, &chosen).await.map_err(io::Error::other)
    };
    let from_file = match config.await {
        Ok(config) => return Ok(KubeconfigChoice::of_file(config)),
        Err(error) => error.to_string(),
    };
    // A context that an operator named is never replaced by another cluster.
    if let Some(context) = &options.context {
        return Err(ConnectError::Kubeconfig { path: format!("context {context}"), why: from_file });
    }
    let config = kube::Config::incluster();
    let config = config.map_err(|error| ConnectError::NotConfigured(format!("{from_file}; {error}")))?;
    Ok(KubeconfigChoice { config, in_cluster: true })
}

/// The namespace of the kubeconfig's context, if a kubeconfig exists. No credentials are read.
pub async fn context_namespace(options: &ConnectOptions) -> Result<Option<String>, ConnectError> {
    let read = match &options.kubeconfig {
        Some(path) => read_kubeconfig(path).await,
        // Without a home folder, no default kubeconfig exists.
        None => {
            let read = || merge_kubeconfigs(&existing_paths(kubeconfig_paths().unwrap_or_default()));
            files::run_within_limit(Path::new("the kubeconfig"), files::WORK, read).await
        }
    };
    let config = read.map_err(|error| {
        let path = options.kubeconfig.as_ref().map_or("KUBECONFIG".into(), |path| path.display().to_string());
        ConnectError::Kubeconfig { path, why: error.to_string() }
    })?;
    let name = options.context.as_ref().or(config.current_context.as_ref());
    let chosen = config.contexts.iter().find(|context| Some(&context.name) == name);
    let namespace = chosen.and_then(|chosen| chosen.context.as_ref()?.namespace.clone());
    Ok(namespace.filter(|namespace| !namespace.is_empty()))
}

/// Reads a kubeconfig. It may come from a shell's `<(…)`; then reading takes as long as that program runs.
async fn read_kubeconfig(path: &Path) -> io::Result<Kubeconfig> {
    let asked = path.to_owned();
    files::run_within_limit(path, files::WORK, move || read_one(&asked)).await
}

/// The files of `KUBECONFIG` as one, or the file in the home folder.
fn read_environment() -> io::Result<Kubeconfig> {
    merge_kubeconfigs(&kubeconfig_paths()?)
}

fn kubeconfig_paths() -> io::Result<Vec<PathBuf>> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut paths: Vec<_> =
        std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if paths.is_empty() {
        let home = std::env::home_dir().ok_or_else(|| io::Error::other("there is no home folder"))?;
        paths.push(home.join(".kube/config"));
    }
    Ok(paths)
}

/// The paths that exist. Without any kubeconfig, no namespace was named.
fn existing_paths(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.retain(|path| !matches!(files::look(path), Ok(None)));
    paths
}

fn merge_kubeconfigs(paths: &[PathBuf]) -> io::Result<Kubeconfig> {
    paths.iter().try_fold(Kubeconfig::default(), |merged, path| {
        let with_path = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
        merged.merge(read_one(path).map_err(with_path)?).map_err(io::Error::other)
    })
}

fn read_one(path: &Path) -> io::Result<Kubeconfig> {
    if files::is_handed_over(path) {
        // It has no folder to which relative paths could refer.
        let text = files::into_text(files::read_from(files::open_command_input(path)?, FILE_BYTES)?)?;
        return Kubeconfig::from_yaml(&text).map_err(io::Error::other);
    }
    if files::look(path)?.is_some_and(|file| file.len() > FILE_BYTES) {
        return Err(io::Error::other(format!("it is larger than {} MiB", FILE_BYTES >> 20)));
    }
    Kubeconfig::read_from(path).map_err(io::Error::other)
}

/// The files that the chosen context names, with their fields. The client library would open any file there.
fn named_files(config: &Kubeconfig, context: Option<&str>) -> Vec<(&'static str, String)> {
    let Some(name) = context.or(config.current_context.as_deref()) else { return Vec::new() };
    let chosen = config.contexts.iter().find(|context| context.name == name);
    let Some(chosen) = chosen.and_then(|chosen| chosen.context.as_ref()) else { return Vec::new() };
    let mut files = Vec::new();
    let cluster = config.clusters.iter().find(|cluster| cluster.name == chosen.cluster);
    if let Some(cluster) = cluster.and_then(|named| named.cluster.as_ref()) {
        // Data in the kubeconfig itself takes precedence, and the file is not read.
        let file = cluster.certificate_authority.clone();
        let file = file.filter(|_| cluster.certificate_authority_data.is_none());
        files.extend(file.map(|file| ("certificate-authority", file)));
    }
    let user = config.auth_infos.iter().find(|user| Some(&user.name) == chosen.user.as_ref());
    if let Some(user) = user.and_then(|named| named.auth_info.as_ref()) {
        let certificate = user.client_certificate.clone().filter(|_| user.client_certificate_data.is_none());
        let key = user.client_key.clone().filter(|_| user.client_key_data.is_none());
        let token = user.token_file.clone().filter(|_| user.token.is_none());
        files.extend(certificate.map(|file| ("client-certificate", file)));
        files.extend(key.map(|file| ("client-key", file)));
        files.extend(token.map(|file| ("tokenFile", file)));
    }
    files
}

async fn look_at_named_files(config: &Kubeconfig, context: Option<&str>) -> io::Result<()> {
    for (field, file) in named_files(config, context) {
        let path = PathBuf::from(&file);
        if files::is_handed_over(&path) {
            continue;
        }
        let refusal = |why: String| io::Error::other(format!("`{field}` names {file}: {why}"));
        let asked = path.clone();
        let looked = files::run_within_limit(&path, files::ANSWER, move || files::look(&asked)).await;
        match looked.map_err(|error| refusal(error.to_string()))? {
            None => return Err(refusal("it is not there".into())),
            Some(found) if found.len() > NAMED_FILE_BYTES => {
                return Err(refusal(format!("it is larger than {} MiB", NAMED_FILE_BYTES >> 20)));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_context_names_a_namespace_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let config = serde_json::json!({"current-context": "a", "contexts": [
            {"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "team-speech"}},
            {"name": "b", "context": {"cluster": "c", "user": "u"}}]});
        std::fs::write(&path, config.to_string()).unwrap();
        let of = |path: &Path, context: Option<&str>| ConnectOptions {
            kubeconfig: Some(path.to_owned()),
            context: context.map(Into::into),
        };
        assert_eq!(context_namespace(&of(&path, None)).await.unwrap().as_deref(), Some("team-speech"));
        assert_eq!(context_namespace(&of(&path, Some("b"))).await.unwrap(), None);
        let missing = folder.path().join("missing");
        let error = context_namespace(&of(&missing, None)).await.unwrap_err().to_string();
        assert!(error.contains("missing` can't be used"), "{error}");
        assert_eq!(existing_paths(vec![missing, path.clone()]), [path]);
    }

    #[test]
    fn each_file_of_the_environment_is_looked_at_before_it_is_read_and_they_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let of = |name: &str| format!("users: [{{name: {name}, user: {{}}}}]\n");
        for name in ["a", "b"] {
            std::fs::write(path(name), of(name)).unwrap();
        }
        let both = merge_kubeconfigs(&[path("a"), path("b")]).unwrap();
        assert_eq!(both.auth_infos.iter().map(|user| user.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        std::fs::File::create(path("large")).unwrap().set_len(FILE_BYTES + 1).unwrap();
        for (name, why) in [("pipe", "it is a pipe"), ("large", "it is larger than 16 MiB")] {
            let error = merge_kubeconfigs(&[path("a"), path(name)]).unwrap_err().to_string();
            assert_eq!(error.split(", and").next().unwrap(), format!("{}: {why}", path(name).display()));
        }
    }
}

//! From a kubeconfig or a service account to requests that are answered or fail for a stated reason.
//!
//! Promises that no request waits for ever: not for a connection that is gone, nor behind more streams than a
//! server takes. Knows the address of a resource and nothing about objects, sources or the journal.

pub(crate) mod backoff;
pub(crate) mod client;
mod liveness;
mod pool;
pub(crate) mod request;
pub(crate) mod resource;

use std::io;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kubewitness_core::files;
use thiserror::Error;

use crate::connect::client::KeepAlive;
use crate::connect::request::{Api, causes};

/// Clusters with their certificates are some KiB each.
const FILE_BYTES: u64 = 16 << 20;

/// How the API server is found. The default is what kubectl does: `KUBECONFIG`, then
/// `~/.kube/config`, then the service account of the pod.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
}

/// A client with what people want to be told about it. No request has been made yet.
#[derive(Clone)]
pub struct Connection {
    pub client: kube::Client,
    /// Of the context, or the pod's own.
    pub namespace: String,
    pub server: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server)
            .field("namespace", &self.namespace)
            .finish()
    }
}

impl Connection {
    pub(crate) fn api(&self) -> Api {
        Api::new(self.client.clone())
    }

    /// What the server calls itself (`v1.36.0`): a cheap proof that it answers.
    pub async fn server_version(&self) -> Result<String, ConnectError> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let body = self.api().get("/version").await.map_err(|failure| ConnectError::Unreachable {
            server: self.server.clone(),
            why: failure.to_string(),
        })?;
        serde_json::from_slice::<Version>(&body).map(|version| version.git_version).map_err(|error| {
            ConnectError::Unreachable {
                server: self.server.clone(),
                why: format!("/version is not understood: {error}"),
            }
        })
    }
}

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("the kubeconfig `{path}` can't be used: {why}")]
    Kubeconfig { path: String, why: String },
    #[error("no API server is configured: {0}; give --kubeconfig, set KUBECONFIG, or run in a cluster")]
    NotConfigured(String),
    #[error("no client can be made for {server}: {why}")]
    Client { server: String, why: String },
    #[error("{server} doesn't answer: {why}")]
    Unreachable { server: String, why: String },
}

/// A kubeconfig may come out of a shell's `<(…)`, and that takes as long as a program that is asked for it.
async fn read_kubeconfig(path: &Path) -> io::Result<Kubeconfig> {
    let asked = path.to_owned();
    files::within(path, files::WORK, move || {
        if !files::is_handed_over(&asked) && files::look(&asked)?.is_some_and(|file| file.len() > FILE_BYTES)
        {
            return Err(io::Error::other(format!("it is larger than {} MiB", FILE_BYTES >> 20)));
        }
        Kubeconfig::read_from(&asked).map_err(io::Error::other)
    })
    .await
}

/// Must be called within a tokio runtime, and used there: the client's connections live in it.
pub async fn connect(options: &ConnectOptions) -> Result<Connection, ConnectError> {
    connect_with(options, &KeepAlive::default()).await
}

pub async fn connect_with(
    options: &ConnectOptions,
    keep_alive: &KeepAlive,
) -> Result<Connection, ConnectError> {
    let mut config = configuration(options).await?;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(concat!("kubewitness/", env!("CARGO_PKG_VERSION")))));
    let server = config.cluster_url.to_string();
    let namespace = config.default_namespace.clone();
    let client = client::client(&config, keep_alive)
        .map_err(|error| ConnectError::Client { server: server.clone(), why: causes(&*error) })?;
    Ok(Connection { client, namespace, server })
}

async fn configuration(options: &ConnectOptions) -> Result<kube::Config, ConnectError> {
    let chosen = KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &options.kubeconfig {
        let fault = |why: String| ConnectError::Kubeconfig { path: path.display().to_string(), why };
        let read = read_kubeconfig(path).await.map_err(|error| fault(error.to_string()))?;
        return kube::Config::from_custom_kubeconfig(read, &chosen)
            .await
            .map_err(|error| fault(error.to_string()));
    }
    // Which files these are is said by the environment.
    let of_environment = || Kubeconfig::read().map_err(io::Error::other);
    let read = files::within(Path::new("the kubeconfig"), files::WORK, of_environment).await;
    let config =
        async { kube::Config::from_custom_kubeconfig(read?, &chosen).await.map_err(io::Error::other) };
    let from_file = match config.await {
        Ok(config) => return Ok(config),
        Err(error) => error.to_string(),
    };
    // A context that was asked for by name is never replaced by another cluster.
    if let Some(context) = &options.context {
        return Err(ConnectError::Kubeconfig { path: format!("context {context}"), why: from_file });
    }
    kube::Config::incluster().map_err(|error| ConnectError::NotConfigured(format!("{from_file}; {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pipe_in_the_place_of_a_kubeconfig_is_refused_by_name_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("kubeconfig");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let options = ConnectOptions { kubeconfig: Some(pipe), context: None };
        let told = connect(&options).await.err().unwrap().to_string();
        assert!(told.contains("kubeconfig` can't be used: it is a pipe"), "{told}");
    }
}

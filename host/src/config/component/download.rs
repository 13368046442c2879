//! Downloads bytes from an untrusted server: limited in time and size, over HTTPS, and from addresses that
//! the host's settings allow. Checking the name once was rejected, because it may resolve to another address
//! later. So each connection is made to an address that was checked, also after a redirect.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use kubewitness_capability::{AddressGuard, ForbiddenName, ResolveFailure};
use kubewitness_core::config::{AddressKind, AddressRange, is_local};
use kubewitness_core::files;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use ring::digest::{Context, SHA256};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use super::memory_budget;

const CONNECT: Duration = Duration::from_secs(10);
/// A server that sends nothing for this long counts as away.
const SILENCE: Duration = Duration::from_secs(30);
/// The minimum average rate of a server after its first silence. It prevents a server from sending slowly for
/// the whole time limit.
const BYTES_A_SECOND: u64 = 16 << 10;
/// Registries redirect to where they keep their files.
const REDIRECTS: usize = 5;

/// Why nothing was fetched. Each text goes on after the name of what was asked for.
#[derive(Debug, Error)]
pub enum DownloadError {
    #[error("leads to {0}, which `spec.modules.addresses` of the host's settings does not name")]
    ForbiddenAddress(AddressKind),
    #[error("no HTTP client can be made: {0}")]
    Client(#[source] reqwest::Error),
    #[error("has {length} bytes or more, and {most} are allowed")]
    TooLong { length: u64, most: u64 },
    #[error("comes too slowly: {bytes} bytes in {} s, and {BYTES_A_SECOND} a second are needed", elapsed.as_secs())]
    TooSlow { bytes: u64, elapsed: Duration },
    #[error("broke off: {0}")]
    BrokenOff(#[source] RequestError),
    #[error("can't be kept in {} while it comes: {source}", folder.display())]
    NoFile { folder: PathBuf, source: io::Error },
    #[error("can't be kept while it comes: {0}")]
    Unwritten(#[source] io::Error),
    #[error("can't be read from where it was kept: {0}")]
    Unread(#[source] io::Error),
}

/// Why a request has no answer. It never names an address: one may be signed, and is a secret then.
#[derive(Debug, Error)]
pub enum RequestError {
    /// A redirect or a name leads there.
    #[error(transparent)]
    Forbidden(Box<DownloadError>),
    #[error("{}", innermost_cause(.0))]
    Failed(#[source] reqwest::Error),
}

impl From<reqwest::Error> for RequestError {
    fn from(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let mut causes =
            std::iter::successors(Some(&error as &dyn std::error::Error), |cause| cause.source());
        let forbidden = causes.find_map(|cause| match cause.downcast_ref() {
            Some(ResolveFailure::Forbidden(forbidden)) => Some(forbidden),
            _ => cause.downcast_ref(),
        });
        match forbidden {
            Some(ForbiddenName(kind)) => Self::Forbidden(DownloadError::ForbiddenAddress(*kind).into()),
            None => Self::Failed(error),
        }
    }
}

/// The outer errors of a request repeat that it failed.
fn innermost_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A proxy resolves names itself. If one is used, only literal addresses are checked here.
#[derive(Clone)]
pub struct DownloadNetwork {
    reachable: Arc<[AddressRange]>,
    /// The folder for long downloads in progress.
    folder: Arc<Path>,
}

impl DownloadNetwork {
    pub fn new(reachable: Vec<AddressRange>, folder: &Path) -> Self {
        Self { reachable: reachable.into(), folder: folder.into() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A client for the network, or for this machine, where no proxy applies.
    pub fn client(&self, url: &Url) -> Result<Client, DownloadError> {
        if let Some(kind) = self.forbidden_address(url) {
            return Err(DownloadError::ForbiddenAddress(kind));
        }
        let (is_local, network) = (is_local(url.authority()), self.clone());
        let guard = AddressGuard::of_modules(self.reachable.to_vec());
        let builder = Client::builder()
            .user_agent(concat!("kubewitness/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Arc::new(guard))
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .referer(false)
            .redirect(Policy::custom(move |attempt| {
                let is_there =
                    attempt.url().scheme() == "https" || (is_local && is_of_this_machine(attempt.url()));
                match network.forbidden_address(attempt.url()) {
                    Some(kind) => attempt.error(ForbiddenName(kind)),
                    None if attempt.previous().len() > REDIRECTS || !is_there => attempt.stop(),
                    None => attempt.follow(),
                }
            }));
        let builder = if is_local { builder.no_proxy() } else { builder };
        builder.build().map_err(DownloadError::Client)
    }

    /// The client's resolver does not see literal addresses.
    fn forbidden_address(&self, url: &Url) -> Option<AddressKind> {
        let address: IpAddr = url.host_str()?.trim_matches(['[', ']']).parse().ok()?;
        let is_reachable = self.reachable.iter().any(|range| range.contains(address));
        (!is_reachable).then(|| AddressKind::of(address))
    }
}

fn is_of_this_machine(url: &Url) -> bool {
    url.scheme() == "http" && is_local(url.authority())
}

/// The whole body of a short answer, up to `most` bytes.
pub async fn body(response: Response, most: u64) -> Result<Vec<u8>, DownloadError> {
    let mut bytes = Vec::new();
    take(response, most, &mut bytes).await.map(|_| bytes)
}

/// A downloaded component. It is in a file without a name: a slow server holds no memory, so many may be slow
/// at a time.
pub struct DownloadedFile {
    pub digest: String,
    length: u64,
    file: tokio::fs::File,
}

/// Saves the whole body, up to `most` bytes.
pub async fn to_disk(response: Response, most: u64, folder: &Path) -> Result<DownloadedFile, DownloadError> {
    let unkept = |source| DownloadError::NoFile { folder: folder.to_owned(), source };
    let place = folder.to_owned();
    let file = files::run_within_limit(folder, files::WORK, move || files::open_unnamed_file(&place))
        .await
        .map_err(unkept)?;
    let mut file = tokio::fs::File::from_std(file);
    let (length, digest) = take(response, most, &mut file).await?;
    Ok(DownloadedFile { digest, length, file })
}

impl DownloadedFile {
    /// Waits until room for it is available.
    pub async fn read(mut self) -> Result<Bytes, DownloadError> {
        let place = memory_budget::ALL.await_room(self.length).await;
        let mut bytes = Vec::with_capacity(usize::try_from(self.length).unwrap_or_default());
        let read = async {
            self.file.rewind().await?;
            self.file.read_to_end(&mut bytes).await
        };
        read.await.map_err(DownloadError::Unread)?;
        Ok(place.fill_with(bytes))
    }
}

/// Returns the length and the digest. If a length is announced, it is checked before a byte is read.
async fn take(
    response: Response,
    most: u64,
    to: &mut (impl AsyncWrite + Unpin),
) -> Result<(u64, String), DownloadError> {
    let too_long = |length| DownloadError::TooLong { length, most };
    if let Some(length) = response.content_length().filter(|length| *length > most) {
        return Err(too_long(length));
    }
    let begun = Instant::now();
    let (mut taken, mut digest, mut stream) = (0, Context::new(&SHA256), response.bytes_stream());
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| DownloadError::BrokenOff(error.into()))?;
        taken += piece.len() as u64;
        if taken > most {
            return Err(too_long(taken));
        }
        digest.update(&piece);
        to.write_all(&piece).await.map_err(DownloadError::Unwritten)?;
        let elapsed = begun.elapsed();
        if is_too_slow(taken, elapsed) {
            return Err(DownloadError::TooSlow { bytes: taken, elapsed });
        }
    }
    to.flush().await.map_err(DownloadError::Unwritten)?;
    Ok((taken, hex::encode(digest.finish())))
}

fn is_too_slow(bytes: u64, elapsed: Duration) -> bool {
    elapsed > SILENCE && bytes < elapsed.as_secs() * BYTES_A_SECOND
}

//! Gets bytes from a server that nobody has to trust: bounded in time and in size, over HTTPS, and from addresses that
//! the host's settings allow. Each connection is made to an address that was judged, also after a redirect.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kubewitness_capability::{Forbidden, Guard, Unresolved};
use kubewitness_core::config::{AddressKind, AddressRange, is_local};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use tokio::time::Instant;

const CONNECT: Duration = Duration::from_secs(10);
/// Without a byte for so long, a server is taken for one that is away.
const SILENCE: Duration = Duration::from_secs(30);
/// What a server gives on the average, from its first silence on. So that nobody drips for as long as all may take.
const BYTES_A_SECOND: u64 = 16 << 10;
/// Registries lead to where they keep their files.
const REDIRECTS: usize = 5;

/// A proxy resolves names itself. Where there is one, only addresses without a name are judged here.
#[derive(Clone)]
pub struct Network {
    reachable: Arc<[AddressRange]>,
}

impl Network {
    pub fn new(reachable: Vec<AddressRange>) -> Self {
        Self { reachable: reachable.into() }
    }

    /// For the network, and for this machine, where a proxy has nothing to do.
    pub fn client(&self, url: &Url) -> Result<Client, String> {
        if let Some(kind) = self.forbidden(url) {
            return Err(told(kind));
        }
        let (is_local, network) = (is_local(url.authority()), self.clone());
        let guard = Guard::of_modules(self.reachable.to_vec());
        let builder = Client::builder()
            .user_agent(concat!("kubewitness/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Arc::new(guard))
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .referer(false)
            .redirect(Policy::custom(move |attempt| {
                let is_there =
                    attempt.url().scheme() == "https" || (is_local && is_of_this_machine(attempt.url()));
                match network.forbidden(attempt.url()) {
                    Some(kind) => attempt.error(Forbidden(kind)),
                    None if attempt.previous().len() > REDIRECTS || !is_there => attempt.stop(),
                    None => attempt.follow(),
                }
            }));
        let builder = if is_local { builder.no_proxy() } else { builder };
        builder.build().map_err(|error| format!("no HTTP client can be made: {error}"))
    }

    /// The client resolves no address that stands in the place of a name.
    fn forbidden(&self, url: &Url) -> Option<AddressKind> {
        let address: IpAddr = url.host_str()?.trim_matches(['[', ']']).parse().ok()?;
        let is_reachable = self.reachable.iter().any(|range| range.contains(address));
        (!is_reachable).then(|| AddressKind::of(address))
    }
}

fn told(kind: AddressKind) -> String {
    format!("leads to {kind}, which `spec.modules.addresses` of the host's settings does not name")
}

fn is_of_this_machine(url: &Url) -> bool {
    url.scheme() == "http" && is_local(url.authority())
}

/// The whole body, if it is no longer than `most`. What a server announces is judged before a byte of it is read.
pub async fn body(response: Response, most: u64) -> Result<Vec<u8>, String> {
    let too_long = |length: u64| format!("has {length} bytes or more, and {most} are allowed");
    if let Some(length) = response.content_length().filter(|length| *length > most) {
        return Err(too_long(length));
    }
    let begun = Instant::now();
    let (mut bytes, mut stream) = (Vec::new(), response.bytes_stream());
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| format!("broke off: {}", cause(error)))?;
        if (bytes.len() + piece.len()) as u64 > most {
            return Err(too_long((bytes.len() + piece.len()) as u64));
        }
        bytes.extend_from_slice(&piece);
        if is_too_slow(bytes.len() as u64, begun.elapsed()) {
            return Err(format!(
                "comes too slowly: {} bytes in {} s, and {BYTES_A_SECOND} a second are needed",
                bytes.len(),
                begun.elapsed().as_secs()
            ));
        }
    }
    Ok(bytes)
}

fn is_too_slow(bytes: u64, elapsed: Duration) -> bool {
    elapsed > SILENCE && bytes < elapsed.as_secs() * BYTES_A_SECOND
}

/// The innermost cause, which has no address in it: one may be signed, and is a secret then.
pub fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    loop {
        let of_name = match cause.downcast_ref() {
            Some(Unresolved::Forbidden(forbidden)) => Some(forbidden),
            _ => None,
        };
        // A redirect, or a name.
        if let Some(Forbidden(kind)) = cause.downcast_ref().or(of_name) {
            return told(*kind);
        }
        match cause.source() {
            Some(source) => cause = source,
            None => return cause.to_string(),
        }
    }
}

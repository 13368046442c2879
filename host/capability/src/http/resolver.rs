//! Resolves the name of a destination, and returns only addresses that are allowed for it. The client
//! connects to these addresses and to no others, so a name that resolves elsewhere later gains nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kubewitness_core::config::{AddressKind, AddressRange};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;
use tokio::time::Instant;

/// The client tries one after the other. No reasonable name has more.
const ADDRESSES: usize = 64;
/// How often a forbidden address is logged, so that a plugin that keeps trying does not fill the log.
const WARN_EVERY: Duration = Duration::from_secs(60);

type AddressLookup = Arc<dyn Fn(String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The name has no address at which the destination may be reached.
#[derive(Debug, Error)]
#[error("resolves to {0}")]
pub struct ForbiddenName(pub AddressKind);

/// Why a name has no address to connect to.
#[derive(Debug, Error)]
pub enum ResolveFailure {
    #[error(transparent)]
    Forbidden(#[from] ForbiddenName),
    #[error(transparent)]
    Lookup(#[from] std::io::Error),
}

#[derive(Clone)]
pub struct AddressGuard {
    destination: String,
    /// The setting in which an operator names intended addresses.
    setting: &'static str,
    reachable: Arc<[AddressRange]>,
    lookup: AddressLookup,
    last_warning: Arc<Mutex<Option<Instant>>>,
}

impl AddressGuard {
    pub fn new(destination: &str, reachable: Vec<AddressRange>) -> Self {
        Self::with_lookup(destination, reachable, Arc::new(|name| system_lookup(name).boxed()))
    }

    /// For downloads of plugin components.
    pub fn of_modules(reachable: Vec<AddressRange>) -> Self {
        Self {
            setting: "`spec.modules.addresses` of the host's settings",
            ..Self::new("components", reachable)
        }
    }

    pub fn with_lookup(destination: &str, reachable: Vec<AddressRange>, lookup: AddressLookup) -> Self {
        Self {
            destination: destination.to_owned(),
            setting: "`addresses` of the destination",
            reachable: reachable.into(),
            lookup,
            last_warning: Arc::default(),
        }
    }
}

impl AddressGuard {
    /// The addresses of a name to which connections are allowed.
    pub async fn allowed_addresses(&self, name: &str) -> Result<Vec<IpAddr>, ResolveFailure> {
        let found = (self.lookup)(name.to_owned()).await?;
        let is_reachable = |address: &IpAddr| self.reachable.iter().any(|range| range.contains(*address));
        let kept: Vec<_> = found.iter().copied().filter(is_reachable).collect();
        if let (true, Some(first)) = (kept.is_empty(), found.first()) {
            let kind = AddressKind::of(*first);
            self.warn_of_address(*first, kind);
            return Err(ForbiddenName(kind).into());
        }
        Ok(kept)
    }

    fn warn_of_address(&self, address: IpAddr, kind: AddressKind) {
        let (destination, setting) = (&self.destination, self.setting);
        let mut last_warning = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last_warning.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *last_warning = Some(Instant::now());
            tracing::warn!(
                destination,
                %address,
                "the controller does not connect: the destination's name resolves to {kind}; if this is meant, name the \
                 address under {setting}"
            );
        }
    }
}

async fn system_lookup(name: String) -> std::io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((name, 0)).await?.take(ADDRESSES).map(|address| address.ip()).collect())
}

impl Resolve for AddressGuard {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, name) = (self.clone(), name.as_str().to_owned());
        Box::pin(async move {
            let kept = guard.allowed_addresses(&name).await?;
            Ok(Box::new(kept.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

//! Builds a client from a kube configuration. It chooses connections and protocols and detects dead
//! connections. Credentials and trust are left to kube. It knows nothing about resources.
//!
//! kube's own stack was rejected: it offers HTTP/1.1 only, with a connection for each watch and each
//! concurrent request. Over HTTP/2 many of them share a connection ([`pool`](crate::connect::pool)).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt};
use percent_encoding::percent_decode_str;
use tower::{BoxError, Service, ServiceBuilder};

use crate::connect::LOGIN;
use crate::connect::liveness::ReportingConnector;
use crate::connect::login::LoginService;
use crate::connect::pool::ClientPool;

/// How many bytes one stream may send before they are read: a large object, or a second of a busy watch. A
/// watch that waits for the journal occupies this much of the connection's window.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// How many streams may be blocked while others are still read. No API server allows more streams on one
/// connection (Go's default is 250, Kubernetes' 100). With an adaptive window, which is the same for a stream
/// and its connection, one slow watch would block all others.
const HELD_UP: u32 = 256;
const CONNECTION_WINDOW: u32 = HELD_UP * STREAM_WINDOW;

/// Detects a dead connection that many requests share.
#[derive(Clone, Debug)]
pub struct KeepAlive {
    /// A ping is sent if nothing has arrived for this long.
    pub every: Duration,
    /// If no answer arrives within this time, the connection and everything on it is dropped.
    pub within: Duration,
}

/// client-go's values. Their sum is well below the time after which a silent watch is dropped, so that a dead
/// connection is not mistaken for a quiet cluster.
impl Default for KeepAlive {
    fn default() -> Self {
        Self { every: Duration::from_secs(30), within: Duration::from_secs(15) }
    }
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HttpProtocol {
    /// HTTP/2 if the server supports it.
    Shared,
    /// HTTP/1.1: a WebSocket takes a whole connection.
    Upgradable,
}

/// Must be called within a tokio runtime: the client's connections live in it.
pub(crate) fn make_client(
    config: &Config,
    login: Option<LoginService>,
    keep_alive: &KeepAlive,
) -> Result<kube::Client, BoxError> {
    Ok(make_client_with(config, login, keep_alive, HttpProtocol::Shared)?.0)
}

/// Makes a client for WebSockets, with the login. Must be called within a tokio runtime.
pub(crate) fn make_upgradable_client(
    config: &Config,
    login: Option<LoginService>,
) -> Result<MadeClient, BoxError> {
    make_client_with(config, login, &KeepAlive::default(), HttpProtocol::Upgradable)
}

pub(crate) type MadeClient = (kube::Client, Option<LoginService>);

fn make_client_with(
    config: &Config,
    login: Option<LoginService>,
    keep_alive: &KeepAlive,
    protocol: HttpProtocol,
) -> Result<MadeClient, BoxError> {
    let mut direct = HttpConnector::new();
    // The layer above decides about TLS.
    direct.enforce_http(false);
    let Some(proxy) = &config.proxy_url else {
        return client_over(direct, config, login, keep_alive, protocol);
    };
    match proxy.scheme_str() {
        Some("http") => client_over(proxy_tunnel(proxy, direct)?, config, login, keep_alive, protocol),
        Some("https") => {
            let secured = config.rustls_https_connector_with_connector(direct)?;
            client_over(proxy_tunnel(proxy, secured)?, config, login, keep_alive, protocol)
        }
        Some("socks5") => {
            client_over(SocksV5::new(proxy.clone(), direct), config, login, keep_alive, protocol)
        }
        scheme => Err(format!(
            "a proxy of the scheme `{}` is not supported: use http, https or socks5",
            scheme.unwrap_or("no scheme")
        )
        .into()),
    }
}

/// Tunnels through a proxy with CONNECT, with the name and password of its URL.
fn proxy_tunnel<C>(proxy: &Uri, connector: C) -> Result<Tunnel<C>, BoxError> {
    let tunnel = Tunnel::new(proxy.clone(), connector);
    let user = proxy.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
    let Some((user, _)) = user else { return Ok(tunnel) };
    let user: Vec<u8> = percent_decode_str(user).collect();
    let mut header = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(user)))?;
    header.set_sensitive(true);
    Ok(tunnel.with_auth(header))
}

/// Builds the client over this connector.
fn client_over<C>(
    connector: C,
    config: &Config,
    login: Option<LoginService>,
    keep_alive: &KeepAlive,
    protocol: HttpProtocol,
) -> Result<MadeClient, BoxError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut connector = TimeoutConnector::new(secured_connector(connector, config, protocol)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let connector = ReportingConnector::new(connector);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(keep_alive.every)
        .http2_keep_alive_timeout(keep_alive.within)
        // A connection that died while idle is not used for the next request.
        .http2_keep_alive_while_idle(true);
    let client = ClientPool::new(move || -> Client<_, Body> { builder.build(connector.clone()) });
    let auth = config.auth_layer()?;
    let (auth, login) = match (login, protocol) {
        (Some(login), _) => (None, Some(login)),
        (None, HttpProtocol::Shared) => (auth, None),
        (None, HttpProtocol::Upgradable) => {
            (None, auth.map(|auth| LoginService::from_layer("kubeconfig", LOGIN, &auth)))
        }
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(auth)
        .option_layer(login.clone())
        .layer(config.extra_headers_layer()?)
        .service(client);
    Ok((ClientBuilder::new(service, config.default_namespace.clone()).build(), login))
}

/// The certificate that the server shows, in DER; `None` without TLS, and through a proxy.
pub(crate) async fn shown_certificate(config: &Config) -> Result<Option<Vec<u8>>, BoxError> {
    if config.proxy_url.is_some() {
        return Ok(None);
    }
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    let mut connector = secured_connector(direct, config, HttpProtocol::Upgradable)?;
    Ok(match connector.call(config.cluster_url.clone()).await? {
        MaybeHttpsStream::Http(_) => None,
        MaybeHttpsStream::Https(stream) => {
            let (_, connection) = stream.inner().get_ref();
            let shown = connection.peer_certificates().and_then(<[_]>::first);
            shown.map(|certificate| certificate.to_vec())
        }
    })
}

/// Adds TLS as configured, and offers the protocols that are needed. A plain address gets no TLS.
fn secured_connector<C>(
    connector: C,
    config: &Config,
    protocol: HttpProtocol,
) -> Result<HttpsConnector<C>, BoxError> {
    let builder = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?);
    let mut builder = builder.https_or_http();
    if let Some(name) = &config.tls_server_name {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into()?));
    }
    let builder = builder.enable_http1();
    Ok(match protocol {
        HttpProtocol::Shared => builder.enable_http2().wrap_connector(connector),
        HttpProtocol::Upgradable => builder.wrap_connector(connector),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handshake_that_nobody_answers_ends_with_the_time_for_connecting() {
        // The server accepts connections and sends nothing.
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", server.local_addr().unwrap());
        let mut config = Config::new(address.parse().unwrap());
        assert_eq!(config.connect_timeout, Some(Duration::from_secs(30)));
        config.connect_timeout = Some(Duration::from_millis(100));
        let client = make_client(&config, None, &KeepAlive::default()).unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(20), client.apiserver_version()).await;
        assert!(asked.expect("it is given up").is_err());
    }
}

//! Serves TLS with a certificate from files, and offers clients HTTP/2 or HTTP/1.1.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The longest handshake of a client.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// The certificate, and how it is used.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// The server's certificate and its chain, as PEM.
    pub certificate: PathBuf,
    /// The certificate's key, as PEM.
    pub key: PathBuf,
    /// The authority in kubeconfigs, as PEM; `None` for the certificate itself.
    pub authority: Option<PathBuf>,
    /// Whether to offer HTTP/2. Otherwise clients must speak HTTP/1.1.
    pub http2: bool,
}

#[derive(Clone)]
pub struct ServerTls(TlsAcceptor);

impl ServerTls {
    pub fn open(options: &TlsOptions) -> io::Result<Self> {
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_file_iter(&options.certificate).map_err(io::Error::other)?.collect();
        let key = PrivateKeyDer::from_pem_file(&options.key).map_err(io::Error::other)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain.map_err(io::Error::other)?, key)
            .map_err(io::Error::other)?;
        let offered: &[&[u8]] = if options.http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
        config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        Ok(ServerTls(TlsAcceptor::from(Arc::new(config))))
    }

    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let handshake = self.0.accept(stream);
        tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }
}

//! TLS: a certificate from files, and the choice between HTTP/2 and HTTP/1.1 that clients are given.

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

/// A client that does not finish its handshake within this is let go.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Where the certificate is, and how it is used.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// PEM: the server's certificate, and what it was signed with.
    pub certificate: PathBuf,
    /// PEM: its key.
    pub key: PathBuf,
    /// Offer HTTP/2; otherwise clients have to speak HTTP/1.1.
    pub http2: bool,
}

#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
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
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }

    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let handshake = self.0.accept(stream);
        tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }
}

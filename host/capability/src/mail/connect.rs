//! Connects to a mail server: to a checked address, with a limit on the server's answers, and encrypted as
//! the settings demand.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use kubewitness_core::config::{MailSpec, MailTls};
use lettre::transport::smtp::client::{
    AsyncSmtpConnection, AsyncTokioStream, Certificate, TlsParameters, TlsParametersBuilder,
};
use lettre::transport::smtp::extension::ClientId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How much a server may answer to one message, encryption included. An honest one needs a few kilobytes.
const ANSWERS: usize = 256 * 1024;

/// Why there is no connection, for the log of the controller.
#[derive(Debug, thiserror::Error)]
pub enum MailConnectError {
    #[error("its name has no address")]
    NoAddress,
    #[error(transparent)]
    Unreached(io::Error),
    #[error("is no certificate: {0}")]
    Authority(lettre::transport::smtp::Error),
    #[error("can't be used: {0}")]
    Parameters(lettre::transport::smtp::Error),
    #[error("no encryption: {0}")]
    Encryption(rustls::Error),
    #[error("no certificate is for its name: {0}")]
    ServerName(InvalidDnsNameError),
    #[error(transparent)]
    Conversation(lettre::transport::smtp::Error),
}

/// A stream that ends once the server has sent too much.
struct BoundedStream<S> {
    stream: S,
    peer: SocketAddr,
    left: usize,
}

impl<S> fmt::Debug for BoundedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a connection to {}", self.peer)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        match self.left.checked_sub(read) {
            Some(left) => self.left = left,
            None => return Poll::Ready(Err(io::Error::other("the server says too much"))),
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> AsyncTokioStream for BoundedStream<S> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

/// The TLS settings that lettre uses after STARTTLS.
pub fn tls_parameters(server: &str, ca: Option<&[u8]>) -> Result<TlsParameters, MailConnectError> {
    let mut builder: TlsParametersBuilder = TlsParameters::builder(server.to_owned());
    if let Some(pem) = ca {
        let certificate = Certificate::from_pem(pem).map_err(MailConnectError::Authority)?;
        builder = builder.add_root_certificate(certificate);
    }
    builder.build_rustls().map_err(MailConnectError::Parameters)
}

pub async fn connect_to_any(
    spec: &MailSpec,
    addresses: &[IpAddr],
    ca: Option<&[u8]>,
) -> Result<AsyncSmtpConnection, MailConnectError> {
    let (stream, peer) = open(addresses, spec.port()).await?;
    let hello = ClientId::Domain("kubewitness".to_owned());
    let stream: Box<dyn AsyncTokioStream> = match spec.tls {
        MailTls::Implicit => {
            let stream = encrypt_stream(&spec.server, ca, stream).await?;
            Box::new(BoundedStream { stream, peer, left: ANSWERS })
        }
        MailTls::StartTls | MailTls::None => Box::new(BoundedStream { stream, peer, left: ANSWERS }),
    };
    let greeted = AsyncSmtpConnection::connect_with_transport(stream, &hello).await;
    let mut connection = greeted.map_err(MailConnectError::Conversation)?;
    if spec.tls == MailTls::StartTls {
        let parameters = tls_parameters(&spec.server, ca)?;
        connection.starttls(parameters, &hello).await.map_err(MailConnectError::Conversation)?;
    }
    Ok(connection)
}

async fn open(addresses: &[IpAddr], port: u16) -> Result<(TcpStream, SocketAddr), MailConnectError> {
    let mut why = MailConnectError::NoAddress;
    for address in addresses {
        let peer = SocketAddr::new(*address, port);
        match TcpStream::connect(peer).await {
            Ok(stream) => return Ok((stream, peer)),
            Err(error) => why = MailConnectError::Unreached(error),
        }
    }
    Err(why)
}

async fn encrypt_stream(
    server: &str,
    ca: Option<&[u8]>,
    stream: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, MailConnectError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let own = CertificateDer::pem_slice_iter(ca.unwrap_or_default()).filter_map(Result::ok);
    roots.add_parsable_certificates(own);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(MailConnectError::Encryption)?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(server.to_owned()).map_err(MailConnectError::ServerName)?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.map_err(MailConnectError::Unreached)
}

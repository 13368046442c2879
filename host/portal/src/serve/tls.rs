//! HTTPS: a certificate and its key from files, read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::files;
use ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{info, warn};

/// A chain of certificates has some kilobytes.
const FILE_BYTES: u64 = 1024 * 1024;
/// A handshake checks the files if the last check is older than this. A kubelet updates a changed Secret
/// within a minute.
const AGE: Duration = Duration::from_secs(10);

/// A certificate chain and its key, as PEM. Both files are read again when they change, as a mounted Secret
/// does. A pair that does not match is logged, and the previous one stays in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Why a pair can't be used. It quotes nothing of the files, of which one is secret.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{}: {error}", path.display())]
    Unread { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Malformed { path: PathBuf, error: pem::Error },
    #[error("{}: there is no certificate in it, as PEM", .0.display())]
    NoCertificate(PathBuf),
    #[error("{}: there is no private key in it, as PEM", .0.display())]
    NoKey(PathBuf),
    #[error("{} and {}: {error}", files.certificate.display(), files.key.display())]
    Unfit { files: TlsFiles, error: rustls::Error },
}

pub(crate) struct TlsListener {
    files: TlsFiles,
    age: Duration,
    acceptor: Mutex<TlsAcceptor>,
    /// Held while the files are checked; others continue with the present pair.
    looked: tokio::sync::Mutex<CertificateLook>,
}

struct CertificateLook {
    at: Instant,
    /// The content of the files: the pair in use, or one that did not match.
    pair: Vec<u8>,
}

impl TlsListener {
    pub(crate) async fn open(files: TlsFiles) -> Result<Self, CertificateError> {
        let (certificate, key) = read(&files).await?;
        let acceptor = Mutex::new(make_acceptor(&files, &certificate, &key)?);
        let looked = CertificateLook { at: Instant::now(), pair: files_mark(&certificate, &key) };
        Ok(Self { files, age: AGE, acceptor, looked: tokio::sync::Mutex::new(looked) })
    }

    pub(super) async fn accept_tls(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        if let Ok(mut looked) = self.looked.try_lock()
            && looked.at.elapsed() >= self.age
        {
            self.look_for_changes(&mut looked).await;
            looked.at = Instant::now();
        }
        let acceptor = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner).clone();
        acceptor.accept(stream).await
    }

    async fn look_for_changes(&self, looked: &mut CertificateLook) {
        let pair = match read(&self.files).await {
            Ok(pair) => pair,
            Err(error) => {
                return warn!("the portal's certificate stays the one that was read before: {error}");
            }
        };
        let mark = files_mark(&pair.0, &pair.1);
        if mark == looked.pair {
            return;
        }
        looked.pair = mark;
        match make_acceptor(&self.files, &pair.0, &pair.1) {
            Ok(new) => {
                *self.acceptor.lock().unwrap_or_else(PoisonError::into_inner) = new;
                info!("the portal shows its new certificate");
            }
            Err(error) => warn!("the portal's certificate stays the one before: {error}"),
        }
    }
}

async fn read(files: &TlsFiles) -> Result<(Vec<u8>, Vec<u8>), CertificateError> {
    Ok((read_one(&files.certificate).await?, read_one(&files.key).await?))
}

async fn read_one(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let owned = path.to_owned();
    let reading = files::run_within_limit(path, files::ANSWER, move || files::read(&owned, FILE_BYTES));
    reading.await.map_err(|error| CertificateError::Unread { path: path.to_owned(), error })
}

fn files_mark(certificate: &[u8], key: &[u8]) -> Vec<u8> {
    [certificate, key].map(|bytes| digest(&SHA256, bytes).as_ref().to_vec()).concat()
}

fn make_acceptor(files: &TlsFiles, certificate: &[u8], key: &[u8]) -> Result<TlsAcceptor, CertificateError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain =
        chain.map_err(|error| CertificateError::Malformed { path: files.certificate.clone(), error })?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate(files.certificate.clone()));
    }
    // The parser's error would quote the file.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| CertificateError::NoKey(files.key.clone()))?;
    let unfit = |error| CertificateError::Unfit { files: files.clone(), error };
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(unfit)?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(unfit)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use kubewitness_harness::{Scratch, tls};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    /// A client that trusts one authority.
    fn client(authority: &Path) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    }

    async fn is_trusted(server: &TlsListener, client: &TlsConnector) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let name = "127.0.0.1".try_into().unwrap();
        let accepting = async { server.accept_tls(listener.accept().await.unwrap().0).await };
        let (accepted, connected) = tokio::join!(accepting, client.connect(name, stream));
        accepted.is_ok() && connected.is_ok()
    }

    fn put(from: &tls::TestCertificates, files: &TlsFiles) {
        std::fs::copy(&from.certificate, &files.certificate).unwrap();
        std::fs::copy(&from.key, &files.key).unwrap();
    }

    #[tokio::test]
    async fn a_new_pair_is_shown_and_a_broken_one_is_not() {
        let scratch = Scratch::new("portal-tls").unwrap();
        let folder = |name: &str| scratch.folder(name).unwrap();
        let (first, second) = (tls::make(&folder("first")).unwrap(), tls::make(&folder("second")).unwrap());
        let mounted = folder("mounted");
        let files = TlsFiles { certificate: mounted.join("tls.crt"), key: mounted.join("tls.key") };
        assert!(TlsListener::open(files.clone()).await.err().unwrap().to_string().contains("tls.crt"));
        put(&first, &files);
        let (old, new) = (client(&first.authority), client(&second.authority));
        let patient = TlsListener::open(files.clone()).await.unwrap();
        let server = TlsListener { age: Duration::ZERO, ..TlsListener::open(files.clone()).await.unwrap() };
        assert!(is_trusted(&server, &old).await && !is_trusted(&server, &new).await);
        std::fs::copy(&second.certificate, &files.certificate).unwrap();
        assert!(is_trusted(&server, &old).await, "the key is of another certificate");
        std::fs::write(&files.certificate, "no certificate").unwrap();
        assert!(is_trusted(&server, &old).await);
        std::fs::remove_file(&files.certificate).unwrap();
        assert!(is_trusted(&server, &old).await);
        put(&second, &files);
        assert!(is_trusted(&server, &new).await && !is_trusted(&server, &old).await);
        assert!(is_trusted(&patient, &old).await, "the files were read a moment ago");
    }

    #[tokio::test]
    async fn files_that_are_no_pair_say_which_and_nothing_of_what_is_in_them() {
        let scratch = Scratch::new("portal-tls").unwrap();
        let made = tls::make(scratch.path()).unwrap();
        let hush = scratch.path().join("hush");
        std::fs::write(&hush, "hush").unwrap();
        for (certificate, key, named) in [
            (&hush, &made.key, "hush: there is no certificate"),
            (&made.certificate, &hush, "hush: there is no private key"),
        ] {
            let files = TlsFiles { certificate: certificate.clone(), key: key.clone() };
            let error = TlsListener::open(files).await.err().unwrap().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}

//! Certificates for servers of tests, from an authority that is made for one server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
pub use tokio_rustls::TlsAcceptor;

const PROGRAM: &str = "openssl";

/// The certificate that a server shows, and the authority by which a client knows it.
#[derive(Clone, Debug)]
pub struct TestCertificates {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TestCertificates {
    /// Those that were [made](make) there.
    pub fn in_folder(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name);
        Self { authority: path("ca.pem"), certificate: path("server.pem"), key: path("server.key") }
    }

    /// `asks`: each client has to show a certificate of the same authority.
    pub fn acceptor(&self, asks: bool) -> Result<TlsAcceptor> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions()?;
        let config = match asks {
            true => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(chain(&self.authority)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build()?;
                config.with_client_cert_verifier(verifier)
            }
            false => config.with_no_client_auth(),
        };
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)?;
        Ok(TlsAcceptor::from(Arc::new(config.with_single_cert(chain(&self.certificate)?, key)?)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>()?)
}

/// Takes the encryption off what clients send to a server that knows none, until it is dropped.
pub struct TlsFront {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl TlsFront {
    #[allow(clippy::disallowed_methods)]
    pub async fn of(server: SocketAddr, acceptor: TlsAcceptor) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    match acceptor.accept(client).into_fallible().await {
                        Ok(mut client) => {
                            let mut server = TcpStream::connect(server).await?;
                            tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
                        }
                        // The client hears why only while its bytes are read.
                        Err((_, mut client)) => {
                            tokio::io::copy(&mut client, &mut tokio::io::sink()).await.map(drop)
                        }
                    }
                });
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn is_installed() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(PROGRAM).is_file())
}

fn openssl(folder: &Path, words: &str) -> Result<()> {
    let mut command = Command::new(PROGRAM);
    let output = command.current_dir(folder).args(words.split_whitespace()).output();
    let output = output.with_context(|| format!("starting {:?}", command.get_program()))?;
    ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// An authority, and a certificate of it for 127.0.0.1 alone.
pub fn make(folder: &Path) -> Result<TestCertificates> {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc";
    openssl(folder, &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"))?;
    openssl(folder, &format!("req {key} -keyout server.key -out server.csr -subj /CN=server"))?;
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").context("the names")?;
    let sign = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
    openssl(folder, &format!("{sign} -out server.pem"))?;
    Ok(TestCertificates::in_folder(folder))
}

//! Tests of TLS with either protocol, as a client chooses.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

const CERTIFICATE: &str = "[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = simulator
[extensions]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1, DNS:localhost
";

/// A self-signed certificate.
fn certificate(folder: &Path, http2: bool) -> TlsOptions {
    let (config, certificate, key) =
        (folder.join("openssl.conf"), folder.join("tls.crt"), folder.join("tls.key"));
    std::fs::write(&config, CERTIFICATE).unwrap();
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-days",
            "2",
        ])
        .arg("-config")
        .args([&config])
        .arg("-out")
        .args([&certificate])
        .arg("-keyout")
        .args([&key])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    TlsOptions { certificate, key, authority: None, http2 }
}

async fn connect(
    server: &ApiServer,
    certificate: &Path,
    offers: &[&str],
) -> TlsStream<tokio::net::TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|name| name.as_bytes().to_vec()).collect();
    let tcp = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
}

fn chosen(stream: &TlsStream<tokio::net::TcpStream>) -> Option<&[u8]> {
    stream.get_ref().1.alpn_protocol()
}

#[tokio::test]
async fn tls_is_spoken_with_http_2_and_http_1() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificate(folder.path(), true);
    let mut cluster = TestCluster::start(|options| options.tls = Some(tls.clone())).await;
    assert!(cluster.server.kubeconfig().contains("server: https://127.0.0.1:"));

    let stream = connect(&cluster.server, &tls.certificate, &["http/1.1"]).await;
    assert_eq!(chosen(&stream), Some(&b"http/1.1"[..]));
    let pem = std::fs::read(&tls.certificate).unwrap();
    let authority = reqwest::Certificate::from_pem(&pem).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([authority]).build().unwrap();
    cluster.client = client;
    assert_eq!(cluster.get(MAPS).await.0, 200);

    let stream = connect(&cluster.server, &tls.certificate, &["h2", "http/1.1"]).await;
    assert_eq!(chosen(&stream), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    #[allow(clippy::disallowed_methods)]
    tokio::spawn(connection);
    let request = http::Request::get(format!("{}{MAPS}?watch=true", cluster.server.url()))
        .header("authorization", format!("Bearer {}", cluster.token))
        .body(Empty::<Bytes>::new())
        .unwrap();
    let mut response = sender.send_request(request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_2));
    cluster.config("a", json!({})).await;
    let frame = response.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(frame.starts_with(b"{\"type\":\"ADDED\""));
    cluster.server.drop_watches(WatchDrop::Cut);
    while let Some(frame) = response.frame().await {
        if frame.is_err() {
            return;
        }
    }
    panic!("a broken watch ends with an error on HTTP/2 too");
}

#[tokio::test]
async fn http_2_can_be_left_out_of_the_offer() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificate(folder.path(), false);
    let cluster = TestCluster::start(|options| options.tls = Some(tls.clone())).await;
    let stream = connect(&cluster.server, &tls.certificate, &["h2", "http/1.1"]).await;
    assert_eq!(chosen(&stream), Some(&b"http/1.1"[..]));
}

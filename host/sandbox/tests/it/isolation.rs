//! Tests that WASI is linked, but empty.

use crate::fixture::SandboxBench;
use crate::limits::call;

#[tokio::test]
async fn there_is_no_variable_no_argument_and_no_input() {
    let bench = SandboxBench::plain().await;
    assert!(std::env::vars_os().count() > 0, "the host itself has some");
    assert_eq!(bench.ask("environment").await, "0 variables, 0 arguments");
    assert_eq!(bench.ask("stdin").await, "0 bytes");
}

#[tokio::test]
async fn there_is_no_file() {
    let bench = SandboxBench::plain().await;
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for path in [manifest, "/", ".", "/etc/hostname", "/proc/self/environ"] {
        let answer = bench.ask(&format!("read {path}")).await;
        assert!(answer.starts_with("error: "), "{path}: {answer}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written");
    assert!(bench.ask(&format!("write {}", path.display())).await.starts_with("error: "));
    assert!(!path.exists());
}

#[tokio::test]
async fn there_is_no_network() {
    let bench = SandboxBench::plain().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for command in [
        format!("connect {address}"),
        "listen 127.0.0.1:0".to_string(),
        "datagram 127.0.0.1:0".to_string(),
        "resolve localhost:80".to_string(),
    ] {
        let answer = bench.ask(&command).await;
        assert!(answer.starts_with("error: "), "{command}: {answer}");
    }
    listener.set_nonblocking(true).unwrap();
    let arrived = listener.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(arrived, Err(std::io::ErrorKind::WouldBlock));
}

#[tokio::test]
async fn output_is_swallowed_however_much_it_is() {
    let bench = SandboxBench::hostile("floods_the_output", "{}", call(20_000)).await;
    let error = bench.hand_over(1).await.unwrap_err().to_string();
    assert!(error.contains("all of it is written") && error.len() < 4096, "{} bytes", error.len());
}

use kubewitness_harness::registry::{ImageRegistry, SigningKey, base64, sha256};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::config::component::is_fetching;

const COMPONENT: &[u8] = b"\0asm and what follows";

/// The tests' registries are on this machine.
fn host(mut modules: Value) -> HostSpec {
    modules["addresses"] = json!(["loopback"]);
    HostSpec { modules: serde_json::from_value(modules).unwrap(), ..HostSpec::default() }
}

fn plain() -> HostSpec {
    host(json!({}))
}

fn remote(module: &Value, host: &HostSpec) -> RemoteComponent {
    // The program does the same at its start. Another test may have done it before.
    rustls::crypto::ring::default_provider().install_default().ok();
    RemoteComponent::of(&serde_json::from_value(module.clone()).unwrap(), host, &std::env::temp_dir())
        .unwrap()
}

async fn aside(bytes: &Bytes) -> KeptComponents {
    KeptComponents::on_disk(bytes.clone(), &std::env::temp_dir()).await.unwrap()
}

async fn pull(reference: &str, host: &HostSpec) -> Result<(Bytes, PulledFrom), FetchError> {
    remote(&json!({"oci": reference}), host).fetch_component().await
}

#[tokio::test]
async fn a_tag_is_pulled_and_told_with_its_digest_and_a_digest_is_what_it_says() {
    let registry = ImageRegistry::start(None).await.unwrap();
    let image = registry.push("team/plugin", "1.2", COMPONENT);
    let name = format!("{}/team/plugin", registry.name());
    let (bytes, pulled) = pull(&format!("{name}:1.2"), &plain()).await.unwrap();
    assert_eq!((&bytes[..], pulled.source_label()), (COMPONENT, format!("{name}:1.2@sha256:{image}")));
    let pinned = format!("{name}@sha256:{image}");
    assert_eq!(pull(&pinned, &plain()).await.unwrap().1.source_label(), pinned);
    // The content does not match its digest.
    registry.put(format!("team/plugin/manifests/sha256:{image}"), b"{}".to_vec());
    assert!(pull(&pinned, &plain()).await.unwrap_err().to_string().contains("another image"));
    registry
        .put(format!("team/plugin/blobs/sha256:{}", sha256(COMPONENT)), b"\0asm and what falls!!".to_vec());
    let error = pull(&format!("{name}:1.2"), &plain()).await.unwrap_err().to_string();
    assert!(error.contains("other bytes") && error.starts_with(&name), "{error}");
}

#[tokio::test]
async fn a_tag_is_resolved_once_and_a_restart_needs_no_registry() {
    let registry = ImageRegistry::start(None).await.unwrap();
    registry.push("plugin", "1", COMPONENT);
    let name = format!("{}/plugin:1", registry.name());
    let (bytes, pulled) = pull(&name, &plain()).await.unwrap();
    let asked = registry.asked().len();
    let kept = async |bytes: &Bytes| {
        let mut again = remote(&json!({"oci": name}), &plain());
        again.reuse_kept(aside(bytes).await, &pulled);
        again
    };
    registry.push("plugin", "1", b"\0asm of another");
    assert_eq!(kept(&bytes).await.fetch_component().await.unwrap(), (bytes.clone(), pulled.clone()));
    assert_eq!(registry.asked().len(), asked, "nobody was asked");
    let damaged = Bytes::from_static(b"\0asm damaged");
    assert_eq!(
        &kept(&damaged).await.fetch_component().await.unwrap().0[..],
        b"\0asm of another",
        "it is fetched again"
    );
    drop(registry);
    assert_eq!(kept(&bytes).await.fetch_component().await.unwrap().0, bytes);
    assert!(kept(&damaged).await.fetch_component().await.unwrap_err().to_string().contains("can't be asked"));
}

#[tokio::test]
async fn what_is_no_component_is_refused_before_its_bytes_come() {
    let registry = ImageRegistry::start(None).await.unwrap();
    let refused = async |layers: Value| {
        registry.manifest("p", "1", &json!({"layers": layers}));
        pull(&format!("{}/p:1", registry.name()), &plain()).await.unwrap_err().to_string()
    };
    let layer =
        |kind: &str, digest: &str, size: u64| json!({"mediaType": kind, "digest": digest, "size": size});
    let digest = format!("sha256:{}", "0".repeat(64));
    assert!(refused(json!([])).await.contains("0 layers"));
    assert!(refused(json!([layer("application/gzip", &digest, 1)])).await.contains("application/gzip"));
    assert!(refused(json!([layer("application/wasm", &digest, u64::MAX)])).await.contains("are allowed"));
    assert!(refused(json!([layer("application/wasm", "md5:1", 1)])).await.contains("no SHA-256"));
    assert!(refused(json!([layer("application/wasm", &digest, 1)])).await.contains("404"));
    let blobs = registry.asked().iter().filter(|path| path.contains("/blobs/")).count();
    assert_eq!(blobs, 1);
    // A body that is longer than the image's manifest states.
    let (long, place) = (vec![7; 4096], format!("p/blobs/{digest}"));
    registry.put(place, long);
    assert!(refused(json!([layer("application/wasm", &digest, 8)])).await.contains("8 are allowed"));
    let error = pull(&format!("{}/gone:1", registry.name()), &plain()).await.unwrap_err().to_string();
    assert!(error.contains("has no 1 of it"), "{error}");
}

#[tokio::test]
async fn a_name_and_a_password_open_a_registry_and_are_told_to_nobody() {
    let login = base64(b"ann:hush");
    let registry = ImageRegistry::start(Some(&login)).await.unwrap();
    registry.push("plugin", "1", COMPONENT);
    let name = format!("{}/plugin:1", registry.name());
    let error = pull(&name, &plain()).await.unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("spec.modules.credentials"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let with = async |auth: &str| {
        let mut auths = serde_json::Map::new();
        auths.insert(registry.name(), json!({"auth": auth}));
        std::fs::write(&file, json!({"auths": auths}).to_string()).unwrap();
        pull(&name, &host(json!({"credentials": {"file": file}}))).await
    };
    assert_eq!(&with(&login).await.unwrap().0[..], COMPONENT);
    let error = with(&base64(b"ann:wrong")).await.unwrap_err().to_string();
    assert!(error.contains("may not pull") && !error.contains("wrong"), "{error}");
    std::fs::remove_file(&file).unwrap();
    let error = pull(&name, &host(json!({"credentials": {"file": file}}))).await.unwrap_err().to_string();
    assert!(error.contains("spec.modules.credentials"), "{error}");
}

/// Answers each request with this, and keeps the requests.
async fn answers(listener: &tokio::net::TcpListener, answer: &str, asked: &std::sync::Mutex<Vec<String>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let read = stream.read(&mut head).await.unwrap();
        asked.lock().unwrap().push(String::from_utf8_lossy(&head[..read]).to_lowercase());
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_a_redirect_leads_to_is_not_shown_the_registrys_password() {
    let bind = async || tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (registry, other) = (bind().await, bind().await);
    let name = format!("{}/plugin:1", registry.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let mut auths = serde_json::Map::new();
    auths.insert(registry.local_addr().unwrap().to_string(), json!({"auth": base64(b"ann:hush")}));
    std::fs::write(&file, json!({"auths": auths}).to_string()).unwrap();
    let end = "Content-Length: 0\r\nConnection: close\r\n\r\n";
    let leads = format!("HTTP/1.1 307 X\r\nLocation: http://{}/x\r\n{end}", other.local_addr().unwrap());
    let realm = other.local_addr().unwrap();
    for challenge in ["Basic realm=\"x\"".to_owned(), format!("Bearer realm=\"http://{realm}/token\"")] {
        let wants = format!("HTTP/1.1 401 X\r\nWWW-Authenticate: {challenge}\r\n{end}");
        let asked = std::sync::Mutex::new(Vec::new());
        let host = host(json!({"credentials": {"file": file}}));
        let error = tokio::select! {
            pulled = pull(&name, &host) => pulled.unwrap_err().to_string(),
            () = answers(&registry, &leads, &asked) => unreachable!("it goes on"),
            () = answers(&other, &wants, &asked) => unreachable!("it goes on"),
        };
        assert!(error.contains("401"), "{error}");
        let asked = asked.into_inner().unwrap();
        assert!(asked.len() == 2 && asked.iter().all(|head| !head.contains("authorization")), "{asked:?}");
    }
}

#[tokio::test]
async fn where_signatures_are_asked_for_an_unsigned_component_is_refused_also_one_that_was_kept() {
    let registry = ImageRegistry::start(None).await.unwrap();
    let (key, other) = (SigningKey::make().unwrap(), SigningKey::make().unwrap());
    let image = registry.push("plugin", "1", COMPONENT);
    let name = format!("{}/plugin:1", registry.name());
    let strict = host(json!({"signedBy": [key.public()]}));
    let (bytes, unsigned) = pull(&name, &plain()).await.unwrap();
    let mut kept = remote(&json!({"oci": name}), &strict);
    kept.reuse_kept(aside(&bytes).await, &unsigned);
    for refused in [kept.fetch_component().await, pull(&name, &strict).await] {
        assert!(refused.unwrap_err().to_string().contains("no signature"));
    }
    registry.sign("plugin", &image, &other);
    assert!(pull(&name, &strict).await.unwrap_err().to_string().contains("none of the keys"));
    registry.sign("plugin", &image, &key);
    let (_, signed) = pull(&name, &strict).await.unwrap();
    drop(registry);
    let mut kept = remote(&json!({"oci": name}), &strict);
    kept.reuse_kept(aside(&bytes).await, &signed);
    assert!(kept.fetch_component().await.is_ok(), "its signature was kept with it");
}

#[tokio::test]
async fn a_file_at_an_address_is_fetched_and_is_bounded() {
    let registry = ImageRegistry::start(None).await.unwrap();
    registry.put("files/p.wasm".into(), COMPONENT.to_vec());
    let digest = sha256(COMPONENT);
    let at = |path: &str| json!({"url": format!("http://{}/v2/{path}", registry.name()), "sha256": digest});
    let (bytes, pulled) = remote(&at("files/p.wasm"), &plain()).fetch_component().await.unwrap();
    assert_eq!((&bytes[..], pulled.image), (COMPONENT, None));
    let error = remote(&at("files/gone"), &plain()).fetch_component().await.unwrap_err().to_string();
    assert!(error.contains("404") && error.starts_with("http://"), "{error}");
}

#[tokio::test]
async fn a_registry_that_does_not_answer_holds_up_only_what_comes_from_it() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("{}/plugin:1", silent.local_addr().unwrap());
    let registry = ImageRegistry::start(None).await.unwrap();
    registry.push("plugin", "1", COMPONENT);
    let (good, host) = (format!("{}/plugin:1", registry.name()), plain());
    let slow = (0..8).map(|_| pull(&silent, &host));
    tokio::select! {
        biased;
        _ = futures::future::join_all(slow) => panic!("nobody answers these"),
        pulled = pull(&good, &host) => assert_eq!(&pulled.unwrap().0[..], COMPONENT),
    }
}

/// Accepts connections, and sends only the length of the answer.
async fn only_begins(listener: &tokio::net::TcpListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{").await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn many_slow_registries_leave_a_place_to_one_that_is_not() {
    let mut slow = Vec::new();
    for _ in 0..8 {
        slow.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let registry = ImageRegistry::start(None).await.unwrap();
    registry.push("plugin", "1", COMPONENT);
    let (good, host) = (format!("{}/plugin:1", registry.name()), plain());
    let names: Vec<_> = slow.iter().map(|it| format!("{}/plugin:1", it.local_addr().unwrap())).collect();
    let all_are_fetched = async {
        while !names.iter().all(|name| is_fetching(name)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        pull(&good, &host).await
    };
    tokio::select! {
        _ = futures::future::join_all(slow.iter().map(only_begins)) => unreachable!("they wait for ever"),
        _ = futures::future::join_all(names.iter().map(|name| pull(name, &host))) => panic!("nobody answers these"),
        pulled = all_are_fetched => assert_eq!(&pulled.unwrap().0[..], COMPONENT),
    }
}

#[tokio::test]
async fn a_long_component_comes_by_way_of_the_disk_and_none_of_it_is_left_there() {
    let registry = ImageRegistry::start(None).await.unwrap();
    let long: Vec<u8> =
        b"\0asm".iter().copied().chain((0..3 << 20).map(|n: u32| n.to_le_bytes()[1])).collect();
    registry.push("plugin", "1", &long);
    let (name, folder) = (format!("{}/plugin:1", registry.name()), tempfile::tempdir().unwrap());
    let module: Value = json!({"oci": name});
    let of = |folder: &Path| {
        RemoteComponent::of(&serde_json::from_value(module.clone()).unwrap(), &plain(), folder).unwrap()
    };
    rustls::crypto::ring::default_provider().install_default().ok();
    assert_eq!(of(folder.path()).fetch_component().await.unwrap().0, long);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let error = of(&folder.path().join("gone")).fetch_component().await.unwrap_err().to_string();
    assert!(error.contains("gone while it comes"), "{error}");
}

#[tokio::test]
async fn the_time_of_a_fetch_begins_with_its_turn() {
    let registry = ImageRegistry::start(None).await.unwrap();
    registry.push("plugin", "1", COMPONENT);
    let (name, host) = (format!("{}/plugin:1", registry.name()), plain());
    let before = FetchTurn::await_turn(&registry.name(), "before".into()).await;
    assert!(is_fetching("before") && !is_fetching(&name));
    let mut waiting = std::pin::pin!(pull(&name, &host));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    tokio::time::pause();
    tokio::time::advance(2 * ALL).await;
    tokio::time::resume();
    assert!(futures::poll!(waiting.as_mut()).is_pending(), "it waits for its turn, however long that takes");
    drop(before);
    assert!(!is_fetching("before"));
    assert_eq!(&waiting.await.unwrap().0[..], COMPONENT);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drips_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = format!("{}/plugin:1", listener.local_addr().unwrap());
    let dripping = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        // A client discards an answer that comes before its request.
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            stream.write_all(b" ").await.unwrap();
        }
    };
    let host = plain();
    let error = tokio::select! {
        () = dripping => unreachable!("it goes on for ever"),
        pulled = pull(&name, &host) => pulled.unwrap_err().to_string(),
    };
    assert!(error.starts_with(&name) && error.contains("comes too slowly"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_silent_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = format!("{}/plugin:1", listener.local_addr().unwrap());
    let error = pull(&name, &plain()).await.unwrap_err().to_string();
    assert!(error.starts_with(&name) && error.contains("can't be asked"), "{error}");
}

/// Requests a module from an address of this machine, and returns the error.
async fn refused(module: Value, modules: Value) -> String {
    let host = HostSpec { modules: serde_json::from_value(modules).unwrap(), ..HostSpec::default() };
    remote(&module, &host).fetch_component().await.unwrap_err().to_string()
}

#[tokio::test]
async fn nothing_is_asked_at_an_address_that_the_settings_do_not_name_by_address_by_name_or_by_redirect() {
    let registry = ImageRegistry::start(None).await.unwrap();
    registry.push("plugin", "1", COMPONENT);
    let port = registry.name().rsplit(':').next().unwrap().to_owned();
    let digest = sha256(COMPONENT);
    let url = |host: &str| json!({"url": format!("http://{host}:{port}/v2/a"), "sha256": digest});
    for module in [
        url("127.0.0.1"),
        url("localhost"),
        json!({"oci": format!("127.0.0.1:{port}/plugin:1")}),
        json!({"oci": format!("localhost:{port}/plugin:1")}),
    ] {
        let error = refused(module.clone(), json!({})).await;
        assert!(error.contains("a loopback address") && error.contains("spec.modules.addresses"), "{error}");
    }
    for (host, kind) in [
        ("169.254.169.254", "the address of a cloud's metadata"),
        ("169.254.1.1", "a link-local address"),
        ("[::ffff:127.0.0.1]", "a loopback address"),
    ] {
        let module = json!({"url": format!("https://{host}/a"), "sha256": digest});
        let error = refused(module, json!({"addresses": ["public", "private"]})).await;
        assert!(error.contains(kind), "{error}");
    }
    assert_eq!(registry.asked(), Vec::<String>::new());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let leads = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        let answer = "HTTP/1.1 302 Found\r\nlocation: https://169.254.169.254/\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let module = json!({"url": format!("http://{}/a", listener.local_addr().unwrap()), "sha256": digest});
    let error = tokio::select! {
        () = leads => unreachable!("it waits for ever"),
        error = refused(module, json!({"addresses": ["loopback"]})) => error,
    };
    assert!(error.contains("cloud's metadata"), "{error}");
}

#[tokio::test]
async fn an_answer_that_announces_no_length_stays_within_what_is_allowed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = format!("{}/plugin:1", listener.local_addr().unwrap());
    let endless = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        let piece = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
        let mut sent = 0;
        // Sends until the client closes the connection.
        while stream.write_all(piece.as_bytes()).await.is_ok() {
            sent += 0x10000;
        }
        sent
    };
    let host = plain();
    let (sent, pulled) = tokio::join!(endless, pull(&name, &host));
    let error = pulled.unwrap_err().to_string();
    assert!(error.starts_with(&name) && error.contains("1048576 are allowed"), "{error}");
    // The buffers of both ends count as sent, too.
    assert!((1 << 20..32 << 20).contains(&sent), "{sent} bytes were sent");
}

//! Tests of forwarding to a pod, with a made-up API server, because the simulated one has no pods that
//! answer.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::{SinkExt, StreamExt};
use kubewitness_watch::{ConnectError, ForwardError, PodTrust, PortForward, SignedIn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::*;

const PORT: u16 = 9000;
const PROTOCOL: &str = "v4.channel.k8s.io";

/// A server that lists these pods, and forwards to an echo in capitals. Returns its address.
async fn server(list: (u16, Value), may_forward: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let list = list.clone();
            tokio::spawn(answer(socket, list, may_forward));
        }
    });
    format!("http://{address}")
}

async fn answer(mut socket: TcpStream, (code, list): (u16, Value), may_forward: bool) {
    let mut head = [0; 4096];
    let read = socket.peek(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..read]).into_owned();
    assert!(head.to_lowercase().contains("authorization: bearer t\r\n"), "{head}");
    if head.starts_with("POST /apis/authorization.k8s.io/v1/subjectaccessreviews ") {
        return review(socket).await;
    }
    let forwards = head.starts_with("GET /api/v1/namespaces/kubewitness/pods/kubewitness-0/portforward?");
    if forwards && may_forward {
        assert!(head.contains("ports=9000"), "{head}");
        return talk(socket).await;
    }
    let lists =
        "GET /api/v1/namespaces/kubewitness/pods?labelSelector=app.kubernetes.io%2Fname%3Dkubewitness";
    assert!(forwards || head.starts_with(lists), "{head}");
    let (code, body) = if forwards { (403, refusal()) } else { (code, list) };
    say(&mut socket, code, &body).await;
    // The peeked bytes are read, so that closing the connection does not discard the answer.
    drop(socket.read(&mut [0; 4096]).await);
}

async fn say(socket: &mut TcpStream, code: u16, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    socket.write_all(answer.as_bytes()).await.unwrap();
}

/// Lets the account `kubewitness` of the namespace create token reviews, and refuses all information about
/// `hidden`.
async fn review(mut socket: TcpStream) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"}") {
        let mut part = [0; 4096];
        let read = socket.read(&mut part).await.unwrap();
        assert!(read > 0, "a request without an end");
        asked.extend_from_slice(&part[..read]);
    }
    let asked = String::from_utf8(asked).unwrap();
    let mut review: Value = serde_json::from_str(asked.split_once("\r\n\r\n").unwrap().1).unwrap();
    let (user, right) = (review["spec"]["user"].clone(), &review["spec"]["resourceAttributes"]);
    assert_eq!((&right["verb"], &right["resource"]), (&json!("create"), &json!("tokenreviews")));
    if user == "system:serviceaccount:kubewitness:hidden" {
        return say(&mut socket, 403, &refusal()).await;
    }
    review["status"] = json!({"allowed": user == "system:serviceaccount:kubewitness:kubewitness"});
    say(&mut socket, 201, &review).await;
}

#[allow(clippy::result_large_err)] // The library wants it so.
async fn talk(socket: TcpStream) {
    let chooses = |_: &Request, mut response: Response| {
        response.headers_mut().insert("Sec-WebSocket-Protocol", PROTOCOL.parse().unwrap());
        Ok(response)
    };
    let mut way = tokio_tungstenite::accept_hdr_async(socket, chooses).await.unwrap();
    let [low, high] = PORT.to_le_bytes();
    for channel in [0, 1] {
        way.send(Message::binary(vec![channel, low, high])).await.unwrap();
    }
    while let Some(Ok(message)) = way.next().await {
        let Message::Binary(bytes) = message else { continue };
        let mut echo = bytes.to_vec();
        echo[1..].make_ascii_uppercase();
        way.send(Message::binary(echo)).await.unwrap();
    }
}

fn refusal() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": 403,
        "reason": "Forbidden", "message": "User \"ann\" cannot do that"})
}

fn pods(ready: &str) -> (u16, Value) {
    of_account(ready, &json!(null))
}

fn of_account(ready: &str, account: &Value) -> (u16, Value) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kubewitness-0"},
        "spec": {"serviceAccountName": account, "containers": [{"name": "kubewitness",
            "ports": [{"name": "health", "containerPort": 8788}, {"name": "portal", "containerPort": PORT}]}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}});
    (
        200,
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [pod]}),
    )
}

async fn signed_in(server: &str, user: Value) -> SignedIn {
    signing_in(server, user).await.unwrap()
}

async fn signing_in(server: &str, user: Value) -> Result<SignedIn, ConnectError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(&path, config.to_string()).unwrap();
    SignedIn::sign_in(&ConnectOptions { kubeconfig: Some(path), context: None }).await
}

async fn forward(server: &str) -> Result<PortForward, ForwardError> {
    forward_with(server, PodTrust::NamedNamespace).await
}

async fn forward_with(server: &str, trust: PodTrust) -> Result<PortForward, ForwardError> {
    PortForward::to_portal(&signed_in(server, json!({"token": "t"})).await, "kubewitness", trust).await
}

#[tokio::test]
async fn each_connection_has_a_way_of_its_own_into_the_pod() {
    let server = server(pods("True"), true).await;
    let forward = forward(&server).await.unwrap();
    let address = forward.url().strip_prefix("http://").unwrap().to_owned();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(forward.serve_until(stop.clone()));
    let mut sockets = Vec::new();
    for word in ["one", "two", "six"] {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        socket.write_all(word.as_bytes()).await.unwrap();
        sockets.push((word, socket));
    }
    for (word, socket) in &mut sockets {
        let mut answer = [0; 3];
        tokio::time::timeout(Duration::from_secs(10), socket.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, word.to_uppercase().as_bytes());
    }
    stop.cancel();
    serving.await.unwrap();
    assert!(TcpStream::connect(&address).await.is_err(), "the way is gone");
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let refused = |error: ForwardError, right: &str| {
        assert!(matches!(error, ForwardError::Forbidden { .. }), "{error}");
        assert!(error.to_string().contains(right) && error.to_string().contains("--server"), "{error}");
    };
    refused(forward(&server((403, refusal()), true).await).await.err().unwrap(), "list pods");
    refused(
        forward(&server(pods("True"), false).await).await.err().unwrap(),
        "get and create pods/portforward",
    );
}

/// A tenant may create a namespace and write labels, so these are not enough.
#[tokio::test]
async fn a_pod_of_a_namespace_that_nobody_named_proves_itself_by_its_account() {
    for (account, expected) in [
        (json!("tenant"), "its service account tenant may not create token reviews"),
        (json!(null), "its service account default may not create token reviews"),
        (json!("hidden"), "you may not ask what its service account may do"),
    ] {
        let server = server(of_account("True", &account), true).await;
        let error = forward_with(&server, PodTrust::ProvenAccount).await.err().unwrap();
        assert!(matches!(error, ForwardError::Unproven { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(expected) && error.contains("--kubewitness-namespace kubewitness"), "{error}");
        assert!(
            forward_with(&server, PodTrust::NamedNamespace).await.is_ok(),
            "a person named it: {account}"
        );
    }
    let server = server(of_account("True", &json!("kubewitness")), true).await;
    assert!(forward_with(&server, PodTrust::ProvenAccount).await.is_ok());
}

#[tokio::test]
async fn a_pod_that_proves_itself_is_chosen_before_one_that_does_not() {
    let mut list = of_account("True", &json!("tenant"));
    list.1["items"][0]["metadata"]["name"] = json!("a-tenants-pod");
    let proven = of_account("True", &json!("kubewitness")).1["items"][0].clone();
    list.1["items"].as_array_mut().unwrap().push(proven);
    assert!(forward_with(&server(list, true).await, PodTrust::ProvenAccount).await.is_ok());
}

#[tokio::test]
async fn without_a_pod_that_is_ready_there_is_no_way() {
    let error = forward(&server(pods("False"), true).await).await.err().unwrap();
    assert!(matches!(&error, ForwardError::NoPod { namespace, .. } if namespace == "kubewitness"), "{error}");
}

#[tokio::test]
async fn the_token_is_the_one_that_requests_carry() {
    let nowhere = "http://127.0.0.1:1";
    let token = async |user: Value| signed_in(nowhere, user).await.request_token().await.unwrap();
    assert_eq!(token(json!({"token": "t"})).await.as_deref(), Some("t"));
    assert_eq!(token(json!({"username": "ann", "password": "p"})).await, None);
    assert_eq!(token(json!({})).await, None);
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"made"}}"#;
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo",
        "args": [credential], "interactiveMode": "Never"}});
    assert_eq!(token(exec).await.as_deref(), Some("made"));
    let in_an_hour = id_token(3600);
    assert_eq!(token(oidc(&in_an_hour)).await, Some(in_an_hour));
}

/// A token that expires in this many seconds.
fn id_token(seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({"exp": now.checked_add_signed(seconds).unwrap()}).to_string();
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
}

fn oidc(token: &str) -> Value {
    json!({"auth-provider": {"name": "oidc", "config": {"id-token": token}}})
}

#[tokio::test]
async fn an_id_token_that_has_expired_is_refused_with_the_way_to_a_new_one() {
    let error = signing_in("http://127.0.0.1:1", oidc(&id_token(-60))).await.err().unwrap().to_string();
    assert!(error.contains("has expired") && error.contains("`kubectl auth whoami`"), "{error}");
}

#[tokio::test]
async fn a_token_or_a_password_comes_before_a_provider_whatever_that_has() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "of a file").unwrap();
    let old = oidc(&id_token(-60));
    let command = json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "touch"}}});
    for provider in [old, command] {
        let token = async |by: Value| {
            let mut user = provider.clone();
            user.as_object_mut().unwrap().extend(by.as_object().unwrap().clone());
            signed_in("http://127.0.0.1:1", user).await.request_token().await.unwrap()
        };
        assert_eq!(token(json!({"token": "t"})).await.as_deref(), Some("t"));
        assert_eq!(token(json!({"tokenFile": file})).await.as_deref(), Some("of a file"));
        assert_eq!(token(json!({"username": "ann", "password": "p"})).await, None);
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_after_its_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    // A busy machine may be slow before and after.
    let asked = tokio::time::timeout(Duration::from_secs(60), forward(&address)).await;
    let error = asked.expect("10 s are the bound").err().unwrap();
    assert!(matches!(error, ForwardError::Broken { .. }), "{error}");
}

#[tokio::test]
async fn a_list_of_pods_that_is_too_large_is_refused() {
    let mut list = pods("True");
    list.1["items"][0]["metadata"]["annotations"] = json!({"a": "x".repeat(5 << 20)});
    let error = forward(&server(list, true).await).await.err().unwrap();
    assert!(matches!(error, ForwardError::Broken { .. }), "{error}");
}

#[tokio::test]
async fn more_connections_than_the_bound_wait_until_one_ends() {
    let forward = forward(&server(pods("True"), true).await).await.unwrap();
    let address = forward.url().strip_prefix("http://").unwrap().to_owned();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(forward.serve_until(stop.clone()));
    let says = async |socket: &mut TcpStream, within: Duration| {
        let mut answer = [0; 3];
        tokio::time::timeout(within, socket.read_exact(&mut answer)).await.is_ok_and(|read| read.is_ok())
    };
    let mut sockets = Vec::new();
    for _ in 0..33 {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        socket.write_all(b"one").await.unwrap();
        sockets.push(socket);
    }
    let mut last = sockets.pop().unwrap();
    for socket in &mut sockets {
        assert!(says(socket, Duration::from_secs(20)).await, "32 are carried at once");
    }
    assert!(!says(&mut last, Duration::from_millis(300)).await, "the next one waits");
    sockets.pop();
    assert!(says(&mut last, Duration::from_secs(20)).await, "it has the place of the one that ended");
    stop.cancel();
    serving.await.unwrap();
}

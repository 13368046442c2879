//! A state and a controller for the tests of the commands. Each test sets what matters to it.

use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Status, Version};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::client::ApiClient;
use crate::cli::ReachArgs;
use crate::tasks::{TaskFate, TaskSupervisor};

/// A client of a controller with this answer for each path and query; `null` is an empty one.
pub async fn client(answer: impl Fn(&str) -> Value + Send + 'static) -> ApiClient {
    client_of_parts(move |asked| (answer(asked), None)).await
}

/// A client of a controller that is still opening its journal for the first `times` requests.
pub async fn client_that_opens(times: usize) -> ApiClient {
    let mut heads = vec!["503 Service Unavailable"; times];
    client_of(move |_| (heads.pop().unwrap_or("200 OK"), Value::Array(Vec::new()), String::new())).await
}

/// A client of a controller that answers with this status, these header lines and an empty list.
pub async fn client_that_answers(status: &'static str, headers: &'static str) -> ApiClient {
    client_of(move |_| (status, Value::Array(Vec::new()), headers.to_owned())).await
}

/// The same for a controller that names the query of the next part in each answer.
pub async fn client_of_parts(
    answer: impl Fn(&str) -> (Value, Option<&'static str>) + Send + 'static,
) -> ApiClient {
    client_of(move |asked| {
        let (body, next) = answer(asked);
        let link = next.map(|next| format!("Link: </x?{next}>; rel=\"next\"\r\n"));
        ("200 OK", body, link.unwrap_or_default())
    })
    .await
}

/// A client of a controller that has a document for each state but one.
pub async fn client_without(missing: Seq, document: impl Fn(Seq) -> Value + Send + 'static) -> ApiClient {
    client_of(move |asked| match asked_seq(asked) {
        seq if seq == missing => ("404 Not Found", Value::Null, String::new()),
        seq => ("200 OK", document(seq), String::new()),
    })
    .await
}

/// The state whose document a request asks for.
pub fn asked_seq(path: &str) -> Seq {
    path.split('/').nth(4).and_then(|seq| seq.parse().ok()).unwrap_or_default()
}

async fn client_of(
    mut answer: impl FnMut(&str) -> (&'static str, Value, String) + Send + 'static,
) -> ApiClient {
    rustls::crypto::ring::default_provider().install_default().ok();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Some(format!("http://{}", listener.local_addr().unwrap()));
    let tasks = TaskSupervisor::new(CancellationToken::new(), CancellationToken::new());
    tasks.spawn_task("a controller", TaskFate::Finite, async move {
        loop {
            let (mut stream, _) = listener.accept().await?;
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await?;
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let (status, body, headers) = answer(request.split(' ').nth(1).unwrap_or_default());
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
            let answer = format!("{head}{headers}Content-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await?;
        }
    });
    ApiClient::reach_controller(&ReachArgs { server, ..ReachArgs::default() }).await.unwrap()
}

/// A state of the running Job `a/x` with the uid `u`.
pub fn state(seq: Seq, change: Change) -> State {
    let object = ObjectRef {
        group: "batch".into(),
        kind: "Job".into(),
        namespace: "a".into(),
        name: "x".into(),
        uid: "u".into(),
        ..ObjectRef::default()
    };
    let version = Version::new(&seq.to_string());
    State {
        id: StateId::of("jobs", 0, &object, change, &version, None),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change,
        object: object.into(),
        owner: None,
        resource_version: version,
        status: Status { phase: "Running".into(), ..Status::default() }.into(),
        previous: None,
        observed_ms: 0,
        late: false,
        quotes_none_under: None,
    }
}

//! The whole way of a command: kubeconfig, API server, pod, portal. The API server that a person reaches is made for the
//! test, since the simulated one has nothing behind its pods. It carries bytes to a controller whose people the
//! simulated one knows.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use futures::{SinkExt, StreamExt};
use kubewitness_harness::{Scratch, command_in, in_scratch, tls};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::portal::access::{AccessWorld, CommandOutput, refused};

/// The port of the container, as its pod says.
const PORT: u16 = 8787;
const PODS: &str = "GET /api/v1/namespaces/kubewitness/pods?";
const WAY: &str = "GET /api/v1/namespaces/kubewitness/pods/kubewitness-0/portforward?";
const PROTOCOL: &str = "Sec-WebSocket-Protocol";
const NO_TOKEN: &str = "kubectl create token";

/// The target of each request, and who asked.
type SeenRequests = Arc<Mutex<Vec<(String, String)>>>;

/// Lists one pod that is ready, and carries bytes between whoever asks for a way to it and the portal.
struct ForwardServer {
    url: String,
    seen: SeenRequests,
}

impl ForwardServer {
    #[allow(clippy::disallowed_methods)] // Its tasks end with the runtime of the test.
    async fn start(portal: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (seen, portal) = (SeenRequests::default(), portal.to_owned());
        let noted = seen.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (noted, portal) = (noted.clone(), portal.clone());
                tokio::spawn(async move { answer(socket, &noted, &portal).await });
            }
        });
        Ok(Self { url, seen })
    }

    /// Each request had this, and both were made: the list, and the way.
    fn saw(&self, authorization: &str) -> Result<()> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(seen.iter().all(|(_, sent)| sent == authorization), "{authorization:?}: {seen:?}");
        let asked = |what: &str| seen.iter().any(|(line, _)| line.starts_with(what));
        ensure!(asked(PODS) && asked(WAY), "{seen:?}");
        Ok(())
    }

    /// A kubeconfig that signs this user in here.
    fn kubeconfig(&self, scratch: &Scratch, user: &Value) -> Result<PathBuf> {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        let path = scratch.path().join("person.kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

async fn answer(mut socket: TcpStream, seen: &SeenRequests, portal: &str) -> Result<()> {
    let mut head = vec![0; 16 * 1024];
    let read = socket.peek(&mut head).await?;
    let head = String::from_utf8_lossy(&head[..read]).into_owned();
    let line = head.lines().next().unwrap_or_default().to_owned();
    let sent = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
    });
    let forwards = line.starts_with(WAY);
    seen.lock().unwrap_or_else(PoisonError::into_inner).push((line, sent.unwrap_or_default()));
    if forwards {
        return carry(socket, portal).await;
    }
    let body = pods().to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    socket.write_all(answer.as_bytes()).await?;
    // What was peeked at is read, so that the end of the connection takes nothing from the answer.
    Ok(socket.read(&mut vec![0; 16 * 1024]).await.map(drop)?)
}

#[allow(clippy::result_large_err)] // The library wants it so.
async fn carry(socket: TcpStream, portal: &str) -> Result<()> {
    let chooses = |request: &Request, mut response: Response| {
        let offered = request.headers().get(PROTOCOL).and_then(|names| names.to_str().ok());
        if let Some(first) = offered.and_then(|names| names.split(',').next()?.trim().parse().ok()) {
            response.headers_mut().insert(PROTOCOL, first);
        }
        Ok(response)
    };
    let way = tokio_tungstenite::accept_hdr_async(socket, chooses).await?;
    let (mut to_person, mut from_person) = way.split();
    let [low, high] = PORT.to_le_bytes();
    for channel in [0, 1] {
        to_person.send(Message::binary(vec![channel, low, high])).await?;
    }
    let (mut from_portal, mut to_portal) = TcpStream::connect(portal).await?.into_split();
    let there = async {
        while let Some(Ok(message)) = from_person.next().await {
            if let Message::Binary(bytes) = message
                && bytes.first() == Some(&0)
            {
                to_portal.write_all(&bytes[1..]).await?;
            }
        }
        anyhow::Ok(())
    };
    let back = async {
        // The first byte is the channel's.
        let mut bytes = vec![0; 32 * 1024];
        loop {
            let read = from_portal.read(&mut bytes[1..]).await?;
            if read == 0 {
                return anyhow::Ok(to_person.close().await?);
            }
            to_person.send(Message::binary(bytes[..=read].to_vec())).await?;
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = back => ended,
    }
}

fn pods() -> Value {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kubewitness-0"},
        "spec": {"containers": [{"name": "kubewitness", "ports": [{"name": "portal", "containerPort": PORT}]}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [pod]})
}

/// The ways in which a kubeconfig gives a token.
fn logins(token: &str) -> [(&'static str, Value); 3] {
    let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": token}});
    [
        ("static", json!({"token": token})),
        (
            "exec",
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo",
                "args": [credential.to_string()], "interactiveMode": "Never"}}),
        ),
        ("oidc", json!({"auth-provider": {"name": "oidc", "config": {"id-token": token}}})),
    ]
}

#[tokio::test]
async fn a_command_finds_the_portal_by_a_kubeconfig_and_shows_what_its_person_may_see() {
    let test = "a_command_finds_the_portal_by_a_kubeconfig_and_shows_what_its_person_may_see";
    in_scratch("forwarding", async |scratch| {
        let Some(mut world) = AccessWorld::start(scratch, test).await? else { return Ok(()) };
        for (team, person) in [("team-a", "ann"), ("team-b", "bob")] {
            // Of the API server's own audience, as the tokens of kubeconfigs are.
            let token = world.lab.token_of(team, person, &[]).await?;
            world.sees(&token, &[&format!("train-{team}")]).await?;
            for (login, user) in logins(&token) {
                let server = ForwardServer::start(world.kubewitness.address()).await?;
                let kubeconfig = server.kubeconfig(scratch, &user)?;
                let jobs = async |of: &[&str]| names(&ask(&kubeconfig, of).await?);
                let own = [format!("train-{team}")];
                ensure!(jobs(&["-n", team]).await? == own, "{login} of {person}");
                ensure!(jobs(&["-A"]).await? == own, "{login} of {person} shows others'");
                server.saw(&format!("Bearer {token}")).with_context(|| format!("{login} of {person}"))?;
            }
        }
        world.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_kubeconfig_without_a_token_is_told_which_command_gives_one() {
    let test = "a_kubeconfig_without_a_token_is_told_which_command_gives_one";
    in_scratch("forwarding_none", async |scratch| {
        let Some(mut world) = AccessWorld::start(scratch, test).await? else { return Ok(()) };
        let token = world.lab.token_of("team-a", "ann", &[]).await?;
        world.sees(&token, &["train-team-a"]).await?;
        let mut logins = vec![(json!({"username": "ann", "password": "p"}), "Basic YW5uOnA=")];
        if tls::is_installed() {
            let made = tls::make(&scratch.folder("certificate")?)?;
            logins.push((json!({"client-certificate": made.certificate, "client-key": made.key}), ""));
        }
        for (user, authorization) in logins {
            let server = ForwardServer::start(world.kubewitness.address()).await?;
            let kubeconfig = server.kubeconfig(scratch, &user)?;
            refused(&ask(&kubeconfig, &["-n", "team-a"]).await?, NO_TOKEN)?;
            server.saw(authorization)?;
        }
        world.kubewitness.stop().await
    })
    .await;
}

async fn ask(kubeconfig: &Path, of: &[&str]) -> Result<CommandOutput> {
    let path = kubeconfig.to_string_lossy();
    let reach = ["jobs", "-o", "json", "--kubeconfig", &path, "--kubewitness-namespace", "kubewitness"];
    command_in(&[&reach, of].concat(), &[]).await
}

fn names((code, stdout, stderr): &CommandOutput) -> Result<Vec<String>> {
    ensure!(*code == Some(0), "{code:?}: {stdout}{stderr}");
    let jobs: Vec<Value> = serde_json::from_str(stdout).context("the jobs")?;
    Ok(jobs.iter().filter_map(|job| job["object"]["name"].as_str().map(str::to_owned)).collect())
}

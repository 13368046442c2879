//! The dashboards of Ray clusters, whose heads run no process here. KubeRay's operator asks the dashboard of a head what
//! became of an entrypoint, under the name of a Service, and no Service leads anywhere here. Go's library sends a request
//! to the proxy that the environment names, so this is that proxy. A case says what it answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::kubelet::now_ms;

/// From the operator's first question about an entrypoint until its submitter has submitted it.
const SUBMITTED_AFTER_MS: u64 = 2_500;
const JOBS: &str = "/api/jobs/";

#[derive(Clone, Copy, Debug)]
pub(super) enum EntrypointEnd {
    Succeeded,
    /// With the message of the dashboard.
    Failed(&'static str),
    /// The head was started again, and the new one knows nothing of it.
    Lost,
}

/// The fate of an entrypoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntrypointRun {
    is_submitted: bool,
    /// With how long it runs until then; `None`: until somebody ends it.
    end: Option<(Duration, EntrypointEnd)>,
}

impl EntrypointRun {
    pub(super) const fn endless() -> Self {
        Self { is_submitted: true, end: None }
    }

    pub(super) const fn ends(after_ms: u64, end: EntrypointEnd) -> Self {
        Self { is_submitted: true, end: Some((Duration::from_millis(after_ms), end)) }
    }

    /// No submitter reaches the dashboard.
    pub(super) const fn never_submitted() -> Self {
        Self { is_submitted: false, end: None }
    }

    /// As a dashboard tells it, some time after the first question; `None` if it does not know the entrypoint.
    fn told(&self, id: &str, asked_ms: u64, now: u64) -> Option<Value> {
        let begins = asked_ms + SUBMITTED_AFTER_MS;
        if !self.is_submitted || now < begins {
            return None;
        }
        let ended = self.end.map(|(after, end)| (begins + after.as_millis() as u64, end));
        let ended = ended.filter(|(at, _)| *at <= now);
        let (status, message) = match ended {
            None => ("RUNNING", "Job is currently running."),
            Some((_, EntrypointEnd::Succeeded)) => ("SUCCEEDED", "Job finished successfully."),
            Some((_, EntrypointEnd::Failed(message))) => ("FAILED", message),
            Some((_, EntrypointEnd::Lost)) => return None,
        };
        Some(json!({
            "type": "SUBMISSION", "submission_id": id, "status": status, "message": message,
            "start_time": begins, "end_time": ended.map(|(at, _)| at),
        }))
    }
}

type EntrypointDirector = Arc<dyn Fn(usize) -> EntrypointRun + Send + Sync>;

struct AskedEntrypoint {
    id: String,
    asked_ms: u64,
    run: EntrypointRun,
}

#[derive(Default)]
struct DashboardState {
    directors: HashMap<String, EntrypointDirector>,
    asked: HashMap<String, Vec<AskedEntrypoint>>,
}

impl DashboardState {
    fn told(&mut self, namespace: &str, id: &str, now: u64) -> Option<Value> {
        let asked = self.asked.entry(namespace.to_owned()).or_default();
        let known = asked.iter().position(|it| it.id == id);
        let at = known.unwrap_or_else(|| {
            let director = self.directors.get(namespace);
            let run = director.map_or(EntrypointRun::endless(), |director| director(asked.len()));
            asked.push(AskedEntrypoint { id: id.to_owned(), asked_ms: now, run });
            asked.len() - 1
        });
        asked[at].run.told(id, asked[at].asked_ms, now)
    }
}

pub(super) struct RayDashboards {
    /// The address of the proxy.
    pub(super) address: SocketAddr,
    state: Arc<Mutex<DashboardState>>,
    /// Ends with the dashboards.
    _serving: JoinSet<()>,
}

impl RayDashboards {
    pub(super) async fn start() -> Result<Self> {
        let state = Arc::new(Mutex::new(DashboardState::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.context("starting the dashboards")?;
        let address = listener.local_addr().context("the address of the dashboards")?;
        let router = Router::new().fallback(answer).with_state(state.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("real: the dashboards ended: {error}");
            }
        });
        Ok(Self { address, state, _serving: serving })
    }

    /// Says what becomes of the entrypoints of a namespace, counted from 0 in the order of their submissions.
    pub(super) fn direct(
        &self,
        namespace: &str,
        director: impl Fn(usize) -> EntrypointRun + Send + Sync + 'static,
    ) {
        lock(&self.state).directors.insert(namespace.to_owned(), Arc::new(director));
    }
}

fn lock(state: &Mutex<DashboardState>) -> MutexGuard<'_, DashboardState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(State(state): State<Arc<Mutex<DashboardState>>>, method: Method, uri: Uri) -> Response {
    let asked = uri.path().strip_prefix(JOBS);
    let (Some(namespace), Some(asked)) = (uri.host().and_then(namespace_of), asked) else {
        return (StatusCode::NOT_FOUND, format!("{uri} is not the job of a dashboard")).into_response();
    };
    if method == Method::POST && asked.ends_with("/stop") {
        return axum::Json(json!({"stopped": true})).into_response();
    }
    match lock(&state).told(namespace, asked, now_ms()) {
        Some(told) => axum::Json(told).into_response(),
        None => (StatusCode::NOT_FOUND, format!("Job {asked} does not exist")).into_response(),
    }
}

/// The namespace in the name of a Service: `train-x-head-svc.team-1.svc.cluster.local`.
fn namespace_of(host: &str) -> Option<&str> {
    host.split('.').nth(1)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    fn status(state: &mut DashboardState, id: &str, now: u64) -> Option<String> {
        state.told("team-1", id, now).map(|told| told["status"].as_str().expect("a status").to_owned())
    }

    #[test]
    fn an_entrypoint_is_unknown_until_it_is_submitted_then_runs_and_ends() {
        let mut state = DashboardState::default();
        let failed = EntrypointRun::ends(4_000, EntrypointEnd::Failed("exit code 1"));
        state.directors.insert("team-1".into(), Arc::new(move |_| failed));
        let told = [0, 2_600, 6_400, 6_600].map(|now| status(&mut state, "a", now));
        assert_eq!(told, [None, Some("RUNNING".into()), Some("RUNNING".into()), Some("FAILED".into())]);
        let told = state.told("team-1", "a", 9_000).expect("an end");
        assert_eq!((&told["end_time"], &told["message"]), (&6_500.into(), &"exit code 1".into()));
    }

    #[test]
    fn each_submission_of_a_namespace_has_a_run_of_its_own() {
        let mut state = DashboardState::default();
        let runs = [EntrypointRun::ends(0, EntrypointEnd::Lost), EntrypointRun::endless()];
        state.directors.insert("team-1".into(), Arc::new(move |ordinal| runs[ordinal]));
        for id in ["a", "b"] {
            assert_eq!(status(&mut state, id, 1_000), None);
        }
        assert_eq!(status(&mut state, "a", 9_000), None);
        assert_eq!(status(&mut state, "b", 9_000), Some("RUNNING".into()));
    }

    /// Asks as a client with a proxy does, and returns the whole answer.
    async fn ask(dashboards: &RayDashboards, method: &str, job: &str) -> String {
        let host = "train-x-head-svc.team-1.svc.cluster.local:8265";
        let asked = format!(
            "{method} http://{host}{JOBS}{job} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let mut stream = TcpStream::connect(dashboards.address).await.expect("a connection");
        stream.write_all(asked.as_bytes()).await.expect("a question");
        let mut told = String::new();
        stream.read_to_string(&mut told).await.expect("an answer");
        told
    }

    #[tokio::test]
    async fn a_request_to_the_name_of_a_service_is_answered_for_its_namespace() {
        let dashboards = RayDashboards::start().await.expect("dashboards");
        dashboards.direct("team-1", |_| EntrypointRun::never_submitted());
        let told = ask(&dashboards, "GET", "train-x").await;
        assert!(told.starts_with("HTTP/1.1 404 "), "{told}");
        let told = ask(&dashboards, "POST", "train-x/stop").await;
        assert!(told.ends_with(r#"{"stopped":true}"#), "{told}");
        assert_eq!(lock(&dashboards.state).asked["team-1"].len(), 1);
    }
}

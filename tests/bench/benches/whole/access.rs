//! The cost of asking who somebody is and what they may see: a list with `--auth kubernetes`, where the
//! decisions are kept for seconds, and the same list with `--auth none`. Both hosts are the real binary, and
//! take turns. The person may see one namespace.

#[path = "../fixtures/host.rs"]
mod host;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use host::{BenchHost, HostLab, settings};
use kubewitness_bench::{PATIENCE, wanted};
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions, TokenUser};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const OBJECTS: usize = 500;
const LIMIT: usize = 100;
const CLIENTS: usize = 8;
/// The best of them counts: nothing makes a machine faster than it is.
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
const PERSON: &str = "ada";
const TOKEN: &str = "a-token-of-ada";
const SETTINGS: &str = "sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]";

fn main() -> Result<()> {
    if !wanted("access") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run())
}

/// One of the two hosts, and what is asked of it.
struct AskedHost {
    name: &'static str,
    host: BenchHost,
    token: Option<&'static str>,
    best: AccessFigures,
}

#[derive(Clone, Copy, Default)]
struct AccessFigures {
    per_second: f64,
    p99: Duration,
}

#[allow(clippy::disallowed_methods)]
async fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut options = ApiServerOptions { enforce_rbac: true, ..ApiServerOptions::default() };
    options.tokens.push(TokenUser { token: TOKEN.into(), user: PERSON.into(), groups: Vec::new() });
    let (api, serving) = ApiServer::bind(options).await?;
    tokio::spawn(serving.serve(CancellationToken::new()));
    fill(&api).await?;
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, api.kubeconfig())?;
    let mut both = [
        start(folder.path(), &kubeconfig, "none", None).await?,
        start(folder.path(), &kubeconfig, "kubernetes", Some(TOKEN)).await?,
    ];
    println!("access: a list of {LIMIT} of {OBJECTS} jobs, {CLIENTS} clients, the best of {ROUNDS} rounds");
    for _ in 0..ROUNDS {
        for asked in &mut both {
            asked.host.runs()?;
            let figures = round(&asked.host.url(), asked.token).await?;
            if figures.per_second > asked.best.per_second {
                asked.best = figures;
            }
        }
    }
    let [none, kubernetes] = both;
    for AskedHost { name, best: AccessFigures { per_second, p99 }, .. } in [&none, &kubernetes] {
        println!(
            "  --auth {name:<10} {per_second:>8.0} requests/s   p99 {:>6.2} ms",
            p99.as_secs_f64() * 1000.0
        );
    }
    let share = 100.0 * kubernetes.best.per_second / none.best.per_second;
    println!("  --auth kubernetes has {share:.0} % of the requests of --auth none (goal: 80 %)");
    Ok(())
}

/// The jobs, and the right of a person to see them.
async fn fill(api: &ApiServer) -> Result<()> {
    let client = kubewitness_harness::http();
    let create = async |path: &str, object: Value| {
        let request = client.post(format!("{}{path}", api.url())).bearer_auth(api.admin_token());
        let answer = request.json(&object).send().await?;
        ensure!(answer.status() == 201, "creating in {path} answered {}", answer.status());
        Ok(())
    };
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]}]);
    let role = json!({"metadata": {"name": "viewer"}, "rules": rules});
    create(&format!("{rbac}/clusterroles"), role).await?;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": PERSON},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "viewer"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": PERSON}]});
    create(&format!("{rbac}/namespaces/default/rolebindings"), binding).await?;
    for number in 0..OBJECTS {
        let template =
            json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template},
            "metadata": {"name": format!("train-{number:05}"), "namespace": "default"}});
        create("/apis/batch/v1/namespaces/default/jobs", job).await?;
    }
    Ok(())
}

/// Ready once it lists as many as are measured.
async fn start(
    folder: &Path,
    kubeconfig: &Path,
    name: &'static str,
    token: Option<&'static str>,
) -> Result<AskedHost> {
    let lab = HostLab::new(&folder.join(name), &[settings(SETTINGS)])?;
    let mut host = lab.start_with(kubeconfig, &["--auth", name])?;
    let client = kubewitness_harness::http();
    let started = Instant::now();
    loop {
        host.runs()?;
        match list(&client, &host.url(), token).await {
            Ok(LIMIT) => return Ok(AskedHost { name, host, token, best: AccessFigures::default() }),
            answer => ensure!(started.elapsed() < PATIENCE, "--auth {name} is not ready: {answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How many jobs an answer has.
async fn list(client: &reqwest::Client, url: &str, token: Option<&str>) -> Result<usize> {
    let request = client.get(format!("{url}/api/v1/objects?kind=Job&namespace=default&limit={LIMIT}"));
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let body = request.send().await?.error_for_status()?.bytes().await?;
    let jobs: Vec<Value> = serde_json::from_slice(&body)?;
    Ok(jobs.len())
}

/// Each client asks again as soon as it has its answer. Answers are not read: that would be measured, too.
#[allow(clippy::disallowed_methods)]
async fn round(url: &str, token: Option<&'static str>) -> Result<AccessFigures> {
    let url: Arc<str> = format!("{url}/api/v1/objects?kind=Job&namespace=default&limit={LIMIT}").into();
    let started = Instant::now();
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| tokio::spawn(ask(Arc::clone(&url), token, started + ROUND))).collect();
    let mut taken = Vec::new();
    for client in clients {
        taken.extend(client.await??);
    }
    let elapsed = started.elapsed();
    taken.sort_unstable();
    let p99 = *taken.get(taken.len() * 99 / 100).context("no answer came")?;
    Ok(AccessFigures { per_second: taken.len() as f64 / elapsed.as_secs_f64(), p99 })
}

async fn ask(url: Arc<str>, token: Option<&str>, until: Instant) -> Result<Vec<Duration>> {
    let client = kubewitness_harness::http();
    let mut taken = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        let request = client.get(&*url);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().await?.error_for_status()?.bytes().await?;
        taken.push(began.elapsed());
    }
    Ok(taken)
}

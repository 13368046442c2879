//! Tests of what each person sees: two tenants, an operator, and an API server that decides about rights.

mod login;
mod memory;
mod operations;
mod order;
mod parts;
mod rights;
mod streams;
mod tenants;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use kubewitness_core::config::Credentials;
use kubewitness_core::ports::JobSubmitter;
use kubewitness_portal::{
    AccessControl, AccessOptions, AnswerTimes, EndedSessions, PortalAccess, PortalOptions, ProxySecret,
    TrustedProxy,
};

use crate::submitting::FakeJobs;
use crate::{PortalAnswer, ask, options, request};
use tenants::{TenantPortal, TenantServer};

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

pub struct GuardedPortal {
    pub views: Arc<TenantPortal>,
    pub server: Arc<TenantServer>,
    pub router: Router,
}

impl GuardedPortal {
    pub fn new() -> Self {
        Self::with(TenantServer::default(), |options| options)
    }

    pub fn with(server: TenantServer, change: impl FnOnce(PortalOptions) -> PortalOptions) -> Self {
        Self::of(TenantPortal::default(), server, change)
    }

    pub fn of(
        views: TenantPortal,
        server: TenantServer,
        change: impl FnOnce(PortalOptions) -> PortalOptions,
    ) -> Self {
        Self::that_remembers(EndedSessions::default(), views, server, change)
    }

    pub fn that_remembers(
        ended: EndedSessions,
        views: TenantPortal,
        server: TenantServer,
        change: impl FnOnce(PortalOptions) -> PortalOptions,
    ) -> Self {
        let (views, server) = (Arc::new(views), Arc::new(server));
        let access = AccessOptions {
            times: AnswerTimes::default(),
            session_key: [7; 32],
            ended,
            log_reads: true,
            trusted_proxy: Some(TrustedProxy {
                secret: ProxySecret::new(SECRET).unwrap(),
                names_groups: true,
            }),
        };
        let control = Arc::new(AccessControl::new(server.clone(), access));
        let submitter: Arc<dyn JobSubmitter> = Arc::new(FakeJobs::new(Credentials::Token));
        let access = PortalAccess::Kubernetes(control);
        let options = change(PortalOptions { access, submitter: Some(submitter), ..options() });
        let router = kubewitness_portal::router(views.clone(), &options);
        Self { views, server, router }
    }

    pub async fn as_token(&self, token: &str, path: &str) -> PortalAnswer {
        self.get(path, &[("authorization", &format!("Bearer {token}"))]).await
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> PortalAnswer {
        self.ask("GET", path, headers, "").await
    }

    /// The number of open live streams, from the metrics.
    pub async fn streams(&self) -> u64 {
        let page = self.as_token("boss", "/metrics").await.text;
        let value = page.lines().find_map(|line| line.strip_prefix("kubewitness_http_streams "));
        value.expect("the metric").parse().expect("a number")
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> PortalAnswer {
        let mut request = request(method, path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        ask(&self.router, request.body(Body::from(body.to_owned())).unwrap()).await
    }
}

/// Every readable address for one tenant's objects, according to the API's description and the pages.
pub fn addresses(tenant: &str) -> Vec<String> {
    let description: serde_json::Value =
        serde_json::from_str(include_str!("../../../src/api/openapi.json")).unwrap();
    let paths = description["paths"].as_object().unwrap().iter();
    let reads = paths.filter(|(path, methods)| methods.get("get").is_some() && *path != "/api/v1/events");
    let seq = tenants::first(tenant).to_string();
    let described = reads.map(|(path, _)| match path.as_str() {
        "/api/v1/timeline" => format!("/api/v1/timeline?uid=uid-{tenant}"),
        path => path.replace("{seq}", &seq).replace("{number}", "1"),
    });
    let pages = [
        "/".to_owned(),
        "/?kind=all".into(),
        format!("/?kind=Job&namespace={tenant}"),
        format!("/objects/uid-{tenant}"),
        format!("/objects/uid-{tenant}-worker"),
        format!("/states/{seq}"),
        format!("/states/{}?from={seq}", tenants::first(tenant) + 2),
        format!("/states/{}", tenants::first(tenant) + 3),
        "/plugins".into(),
        "/sources".into(),
        "/deadletters".into(),
        "/gaps".into(),
        "/health".into(),
        "/?gone=true&range=day".into(),
        "/?was=Running&range=day".into(),
        "/?cause=out-of-memory&range=day".into(),
        "/?at=2026-11-20".into(),
        "/api/v1/objects?gone=true&details=true&search=train".into(),
        "/api/v1/objects?was=Running&gone=true".into(),
        "/api/v1/objects?cause=out-of-memory&gone=true".into(),
        format!("/gaps?uid=uid-{tenant}"),
        format!("/api/v1/objects?namespace={tenant}"),
        format!("/api/v1/timeline?kind=Job&namespace={tenant}&name={tenant}-train"),
        format!("/api/v1/gaps?uid=uid-{tenant}"),
    ];
    let all: Vec<String> = described.chain(pages).collect();
    assert!(all.len() > 25, "{all:?}");
    all
}

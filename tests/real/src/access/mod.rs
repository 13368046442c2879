//! Access: what the shipped manifests give is exactly what the controller uses, and people see what a real API server lets
//! them see.
//!
//! The oracles are the API server's own. Its audit log says what the controller asked for, and whether it was allowed.
//! Its access reviews say what a person may get. `deploy/kustomize` is applied with kubectl, and the controller runs as the
//! service account of these manifests, with the arguments of its Deployment.

mod audit_log;
mod controller;
mod people;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kubewitness_harness::{Kubectl, Scratch, until_ok};
use serde::Serialize;

use crate::cluster::{RealCluster, ServerPrograms};
use audit_log::AuditLog;
use controller::ShippedController;

/// The longest wait until each right is used: missed states are read back within seconds.
const USED_WITHIN: Duration = Duration::from_secs(90);

/// The rights and answers that were shown.
#[derive(Debug, Serialize)]
pub struct AccessReport {
    pub minor: String,
    /// Requests that the controller made as its account.
    pub requests: usize,
    /// Rights of the shipped roles, each of which was used.
    pub rights: usize,
    /// Answers of the controller's API that were compared with the API server's reviews.
    pub answers: usize,
    pub people: usize,
    pub seconds: f64,
}

pub async fn access_holds(programs: &ServerPrograms, scratch: &Scratch) -> Result<AccessReport> {
    let begun = Instant::now();
    let log = AuditLog::prepare(scratch)?;
    let flags = log.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut cluster = RealCluster::start_with(programs, scratch, &flags).await?;
    let kubectl =
        Kubectl::find(cluster.kubeconfig(), scratch.path()).context("kubectl is not on the PATH")?;
    let mut controller = ShippedController::start(&kubectl, &cluster, scratch).await?;
    let seen = people::see_what_they_may(&kubectl, &cluster, scratch, &mut controller).await?;
    controller.use_each_right(&kubectl, &mut cluster).await?;
    let shipped = audit_log::shipped_rights(&kubectl).await?;
    let (requests, rights) = until_ok(USED_WITHIN, "each right to be used", async || {
        let used = log.of(controller::ACCOUNT)?;
        Ok((used.requests, used.require_exact_rights(&shipped)?))
    })
    .await?;
    controller.stop().await?;
    cluster.stop().await?;
    Ok(AccessReport {
        minor: programs.minor.clone(),
        requests,
        rights,
        answers: seen.answers,
        people: seen.people,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

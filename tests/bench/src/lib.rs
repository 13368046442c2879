//! The input and the measuring code that benchmarks share.
//!
//! A benchmark with tiny or identical objects would measure a better case than any cluster offers. So the
//! input is Jobs of about 2.2 KB, in the form in which a real API server writes them, and successive versions
//! differ as those of a real Job do.
//!
//! Times on a shared machine vary. A rate is therefore the best of several rounds, since noise only ever
//! makes a round slower, and many benchmarks measure a peer in the same run for comparison. Instruction
//! counts, which do not vary with load, are in `benches/parts/instructions`.

use std::fmt::Write;
use std::num::ParseIntError;
use std::time::{Duration, Instant};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Objects of the streams that pipelines are measured with, and how often one of them changes.
pub const JOBS: usize = 5_000;
const UPDATES: usize = 200_000;
/// Far more than the slowest machine needs; it only ends what hangs.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Fewer for a first look: `KUBEWITNESS_BENCH_UPDATES`.
pub fn updates() -> Result<usize, ParseIntError> {
    std::env::var("KUBEWITNESS_BENCH_UPDATES").map_or(Ok(UPDATES), |text| text.parse())
}

/// `cargo xtask bench NAME` runs the benchmarks whose names contain NAME, without one all.
pub fn wanted(name: &str) -> bool {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    filter.is_none_or(|filter| name.contains(&filter))
}

/// Whether exactly this benchmark was asked for.
pub fn is_named(name: &str) -> bool {
    std::env::args().skip(1).find(|arg| !arg.starts_with('-')).is_some_and(|asked| asked == name)
}

/// The value in the middle, and zero of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// How often `work` is done in a second: the best of a few rounds, since nothing makes a
/// machine faster than it is.
pub fn per_second(mut work: impl FnMut()) -> f64 {
    const ROUNDS: usize = 5;
    const ROUND: Duration = Duration::from_millis(300);
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        let (started, mut done) = (Instant::now(), 0_u32);
        while started.elapsed() < ROUND {
            // Asking the time is not what is measured.
            (0..100).for_each(|_| work());
            done += 100;
        }
        best = best.max(f64::from(done) / started.elapsed().as_secs_f64());
    }
    best
}

/// For people: how much faster than a peer.
pub fn ratio(ours: f64, peer: f64) -> String {
    format!("× {:.2}", ours / peer)
}

/// As many Jobs, each another one, as a cluster with that many has them.
pub fn jobs(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|index| job(index, index % 120, index as u64 + 1))
}

/// A Job as the server would send it: `job` says which, `step` which of its versions. Each version has another phase
/// than the one before, as when a scheduler suspends a Job and lets it go on: what a change of phase costs is measured
/// with each state. A message names the queue, so it is no text that all Jobs have alike: it is searched for secrets.
pub fn job(job: usize, step: usize, version: u64) -> String {
    let mut text = String::with_capacity(2400);
    let is_suspended = step % 2 == 1;
    let (active, ready) = if is_suspended { (0, 0) } else { (1 + step % 3, step % 3) };
    let (failed, minute, generation) = (step / 40, step % 60, step + 1);
    let (condition, reason, message) = match is_suspended {
        true => ("True", "JobSuspended", "suspended: the queue gpu has lent its quota"),
        false => ("False", "JobResumed", "resumed: the queue gpu has its quota back"),
    };
    write!(
        text,
        r#"{{"apiVersion":"batch/v1","kind":"Job","metadata":{{"name":"train-{job:05}","namespace":"team-{team}","uid":"{uid}","resourceVersion":"{version}","generation":{generation},"creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"batch.kubernetes.io/controller-uid":"{uid}","batch.kubernetes.io/job-name":"train-{job:05}","controller-uid":"{uid}","job-name":"train-{job:05}","kueue.x-k8s.io/queue-name":"gpu"}},"annotations":{{"kubewitness.dev/channel":"portal"}},"managedFields":[{managed}]}},"spec":{{"parallelism":3,"completions":3,"backoffLimit":6,"completionMode":"NonIndexed","suspend":{is_suspended},"selector":{{"matchLabels":{{"batch.kubernetes.io/controller-uid":"{uid}"}}}},"template":{{"metadata":{{"labels":{{"batch.kubernetes.io/controller-uid":"{uid}","job-name":"train-{job:05}"}}}},"spec":{{"containers":[{{"name":"train","image":"registry.example/train:1.4.2","command":["python","-m","train","--config","/etc/train/{job}.yaml"],"resources":{{"limits":{{"cpu":"8","memory":"64Gi","nvidia.com/gpu":"1"}}}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"restartPolicy":"Never","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{{}},"schedulerName":"default-scheduler"}}}}}},"status":{{"startTime":"2026-01-01T00:{minute:02}:00Z","active":{active},"ready":{ready},"failed":{failed},"terminating":0,"uncountedTerminatedPods":{{}},"conditions":[{{"type":"Suspended","status":"{condition}","lastProbeTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:{minute:02}:00Z","reason":"{reason}","message":"{message}"}}]}}}}"#,
        team = job % 20,
        uid = uid(job),
        managed = MANAGED,
    )
    .expect("writing to a string does not fail");
    text
}

pub fn uid(job: usize) -> String {
    // Spread like real uids, so that no index profits from their order.
    let mixed = (job as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        mixed >> 32,
        mixed & 0xffff,
        mixed >> 52,
        mixed >> 20 & 0xfff,
        job
    )
}

const MANAGED: &str = r#"{"manager":"portal","operation":"Update","apiVersion":"batch/v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:kubewitness.dev/channel":{}}},"f:spec":{"f:backoffLimit":{},"f:completions":{},"f:parallelism":{},"f:template":{"f:spec":{"f:containers":{}}}}}},{"manager":"kube-controller-manager","operation":"Update","apiVersion":"batch/v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:active":{},"f:ready":{},"f:startTime":{},"f:terminating":{}}},"subresource":"status"}"#;

#[cfg(test)]
mod tests {
    #[test]
    fn a_job_is_a_json_object_of_about_two_kilobytes() {
        let job = super::job(7, 3, 12_345);
        let value: serde_json::Value = serde_json::from_str(&job).unwrap();
        assert_eq!(value["metadata"]["resourceVersion"], "12345");
        assert!((2_000..2_800).contains(&job.len()), "{} bytes", job.len());
    }
}

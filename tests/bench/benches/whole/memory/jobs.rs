//! Distinct Jobs as a real API server keeps them (its transcript is `tests/transcripts`):
//! `managedFields` of two managers, the labels that the Job controller adds, and what people write
//! into theirs. A tenth has ended.

use kubewitness_bench::uid;

/// Cheap and the same in each run: the bits of a name's own number, mixed.
fn dice(job: usize, salt: u64) -> u64 {
    let mut bits =
        (job as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^= bits >> 32;
    bits = bits.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^ (bits >> 29)
}

fn time(job: usize, later: u64) -> String {
    let second = dice(job, 1) % 80_000 + later;
    let day = 1 + dice(job, 2) % 28;
    format!("2026-11-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The `job`th of a cluster, at the version `version`.
pub fn real_job(job: usize, version: u64) -> String {
    let pick = |salt: u64, among: u64| dice(job, salt) % among;
    let (uid, team) = (uid(job), pick(3, 40));
    let name = format!(
        "{}-{:04x}{job:05x}",
        ["train", "finetune", "eval", "preprocess", "embed"][pick(4, 5) as usize],
        dice(job, 5) % 0x1_0000
    );
    let (created, started, ended) = (time(job, 0), time(job, 2), time(job, 900 + pick(6, 3000)));
    let parallel = 1 + pick(7, 8);
    let is_done = pick(8, 10) == 0;
    let (fields, status) = match is_done {
        true => (
            r#""f:completionTime":{},"f:conditions":{},"f:ready":{},"f:startTime":{},"f:succeeded":{},"f:terminating":{},"f:uncountedTerminatedPods":{}"#,
            format!(
                r#"{{"conditions":[{{"type":"SuccessCriteriaMet","status":"True","lastProbeTime":"{ended}","lastTransitionTime":"{ended}","reason":"CompletionsReached","message":"Reached expected number of succeeded pods"}},{{"type":"Complete","status":"True","lastProbeTime":"{ended}","lastTransitionTime":"{ended}","reason":"CompletionsReached","message":"Reached expected number of succeeded pods"}}],"startTime":"{started}","completionTime":"{ended}","succeeded":{parallel},"terminating":0,"uncountedTerminatedPods":{{}},"ready":0}}"#
            ),
        ),
        false => (
            r#""f:active":{},"f:ready":{},"f:startTime":{},"f:terminating":{},"f:uncountedTerminatedPods":{}"#,
            format!(
                r#"{{"startTime":"{started}","active":{parallel},"terminating":0,"uncountedTerminatedPods":{{}},"ready":{parallel}}}"#
            ),
        ),
    };
    format!(
        r#"{{"kind":"Job","apiVersion":"batch/v1","metadata":{{"name":"{name}","namespace":"team-{team:02}","uid":"{uid}","resourceVersion":"{version}","generation":1,"creationTimestamp":"{created}","labels":{{"batch.kubernetes.io/controller-uid":"{uid}","batch.kubernetes.io/job-name":"{name}","controller-uid":"{uid}","job-name":"{name}","owner":"user-{user:03}"}},"managedFields":[{{"manager":"portal","operation":"Update","apiVersion":"batch/v1","time":"{created}","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:labels":{{".":{{}},"f:owner":{{}}}}}},"f:spec":{{"f:backoffLimit":{{}},"f:completionMode":{{}},"f:completions":{{}},"f:manualSelector":{{}},"f:parallelism":{{}},"f:podReplacementPolicy":{{}},"f:suspend":{{}},"f:template":{{"f:spec":{{"f:containers":{{"k:{{\"name\":\"main\"}}":{{".":{{}},"f:args":{{}},"f:image":{{}},"f:imagePullPolicy":{{}},"f:name":{{}},"f:resources":{{".":{{}},"f:limits":{{}}}},"f:terminationMessagePath":{{}},"f:terminationMessagePolicy":{{}}}}}},"f:dnsPolicy":{{}},"f:restartPolicy":{{}},"f:schedulerName":{{}},"f:securityContext":{{}},"f:terminationGracePeriodSeconds":{{}}}}}}}}}}}},{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"batch/v1","time":"{started}","fieldsType":"FieldsV1","fieldsV1":{{"f:status":{{{fields}}}}},"subresource":"status"}}]}},"spec":{{"parallelism":{parallel},"completions":{parallel},"backoffLimit":{retries},"selector":{{"matchLabels":{{"batch.kubernetes.io/controller-uid":"{uid}"}}}},"manualSelector":false,"template":{{"metadata":{{"labels":{{"batch.kubernetes.io/controller-uid":"{uid}","batch.kubernetes.io/job-name":"{name}","controller-uid":"{uid}","job-name":"{name}"}}}},"spec":{{"containers":[{{"name":"main","image":"registry.example/team-{team:02}/trainer:{major}.{minor}","args":["--data=sets/{set:06x}","--seed={seed}"],"resources":{{"limits":{{"nvidia.com/gpu":"{gpu}"}}}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"restartPolicy":"Never","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{{}},"schedulerName":"default-scheduler"}}}},"completionMode":"NonIndexed","suspend":false,"podReplacementPolicy":"TerminatingOrFailed"}},"status":{status}}}"#,
        user = pick(9, 400),
        retries = pick(10, 7),
        major = pick(11, 4),
        minor = pick(12, 30),
        set = pick(13, 0x100_0000),
        seed = pick(14, 100_000),
        gpu = 1 << pick(16, 4),
    )
}

//! Jobs in every phase, and the lists of them.

use kubewitness_core::kinds::{is_event, is_kind};
use kubewitness_core::views::*;

use super::story::{object, status};

pub fn jobs() -> Vec<ObjectView> {
    let phases = [
        ("Running", "", ""),
        ("Running", "", ""),
        ("Queued", "JobSuspended", "Job suspended"),
        ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"),
        ("Succeeded", "CompletionsReached", "Reached expected number of succeeded pods"),
        ("Restarting", "PodFailed", ""),
        (
            "Preempted",
            "Preempted",
            "Preempted to accommodate a workload of higher priority in the ClusterQueue",
        ),
        ("Starting", "", ""),
        ("Suspended", "JobSuspended", "Job suspended"),
        ("Cancelled", "Deleting", ""),
        ("Pending", "", ""),
        ("Admitted", "Resuming", ""),
        ("Unknown", "StatusIsBehind", ""),
    ];
    let names = ["llm-train-7", "resnet-sweep-12", "eval-nightly", "tokenizer-build", "<b>bold</b>"];
    (0..26)
        .map(|index| {
            let (phase, reason, message) = phases[index % phases.len()];
            let namespace = ["research", "platform", "vision"][index % 3];
            let (name, uid) = match index {
                0 => (names[0].to_owned(), "uid-train".to_owned()),
                _ => (format!("{}-{index}", names[index % names.len()]), format!("uid-{index}")),
            };
            ObjectView {
                source: "jobs".into(),
                object: object("Job", namespace, &name, &uid),
                owner: None,
                resource_version: (2000 + index).to_string(),
                status: status(phase, reason, message),
                seq: 100 - index as u64,
                observed_at: format!("2026-11-20T13:{:02}:11.250Z", 59 - index),
                ..ObjectView::default()
            }
        })
        .collect()
}

fn event(view: &ObjectView) -> EventView {
    EventView {
        object: view.object.clone(),
        about: object("Pod", "research", "llm-train-7-0", "uid-pod"),
        kind: "Warning".into(),
        reason: "BackOff".into(),
        message: "Back-off <b>restarting</b>".into(),
        count: 3,
        last_ms: 60_000,
        seq: view.seq,
        ..EventView::default()
    }
}

pub fn page(query: &ObjectQuery, is_empty: bool) -> Result<ObjectPage, ViewError> {
    let fits = |asked: &Option<String>, value: &str| {
        asked.as_ref().is_none_or(|asked| asked.eq_ignore_ascii_case(value))
    };
    let mut jobs = if is_empty { Vec::new() } else { jobs() };
    if query.kind.as_deref() == Some("Event") {
        let object = object("Event", "research", "llm-train-7-0.1", "uid-event");
        jobs.push(ObjectView { object, status: status("Unknown", "Event", ""), seq: 1, ..jobs[0].clone() });
    }
    if query.label_selector.as_deref().is_some_and(|text| text.contains("==="))
        || query.index.as_deref().is_some_and(|text| !text.contains('='))
    {
        return Err(ViewError::Invalid("this can't be looked up".into()));
    }
    // Only this label is known here: every third job belongs to team a.
    if query.label_selector.as_deref() == Some("team=a") {
        jobs = jobs.into_iter().step_by(3).collect();
    }
    let is = |view: &ObjectView, kind: &str| is_kind(&view.object.group, &view.object.kind, kind);
    jobs.retain(|view| {
        query.kind.as_ref().is_none_or(|kind| is(view, kind))
            && fits(&query.namespace, &view.object.namespace)
            && fits(&query.phase, &view.status.phase)
            && fits(&query.name, &view.object.name)
            && query.source.as_ref().is_none_or(|source| *source == view.source)
    });
    if query.gone != GoneFilter::No {
        let ended_at = Some("2026-11-20T12:00:00.000Z".into());
        let ended_reason = Some("DeadlineExceeded".into());
        let gone = ObjectView { ended_at, ended_reason, ..jobs[jobs.len() - 1].clone() };
        let object = object("Job", "research", "deleted-yesterday", "uid-deleted");
        jobs.push(ObjectView { object, status: status("Deleted", "Failed", ""), seq: 2, ..gone });
    }
    jobs.retain(|view| query.gone != GoneFilter::Only || view.ended_at.is_some());
    let mut page = ObjectPage { objects: jobs, ..ObjectPage::default() };
    if query.at.is_some() {
        page.notices.push("The journal begins at 2026-11-20T11:00:00.000Z.".into());
        let message = Some("Between 12:00 and 12:05 versions are missing.".into());
        let then = ThenView { known: "missing".into(), until: None, message };
        page.objects.iter_mut().for_each(|view| view.then = Some(then.clone()));
    }
    if query.details {
        let plugins = [("audit", "delivered"), ("notification", "dead")];
        let plugins = plugins.map(|(name, state)| (name.to_owned(), state.to_owned())).into();
        let details = DetailsView {
            created_at: Some("2026-11-20T11:30:00Z".into()),
            queued_ms: 240_000,
            running_ms: 7_800_000,
            restarts: 2,
            submitter: Some("ana@example.com".into()),
            cut: false,
            plugins,
            event: None,
        };
        for view in &mut page.objects {
            let event = is_event(&view.object.group, &view.object.kind).then(|| event(view));
            view.details = Some(DetailsView { event, ..details.clone() });
        }
    }
    if query.details || query.cause.is_some() {
        let failed = page.objects.iter_mut().filter(|view| view.status.phase == "Failed");
        failed.for_each(|view| view.cause = Some(CauseKind::OutOfMemory));
        page.objects.retain(|view| query.cause.is_none_or(|asked| view.cause == Some(asked)));
    }
    if query.was.is_some() {
        let was = WasView {
            from: Some("2026-11-20T12:00:00.000Z".into()),
            until: Some("2026-11-20T12:04:00.000Z".into()),
        };
        page.objects.iter_mut().for_each(|view| view.was = Some(was.clone()));
    }
    let limit = query.limit.unwrap_or(usize::MAX);
    if page.objects.len() > limit {
        page.objects.truncate(limit);
        page.next = page.objects.last().map(|view| view.seq.to_string());
    }
    Ok(page)
}

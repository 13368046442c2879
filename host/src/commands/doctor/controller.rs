//! Checks a running controller: its sources, plugins, journal, configuration, version, clock and certificate.

use kubewitness_core::views::{LedgerView, PausedView, PluginView, SourceView, StatusView};

use super::certificate;
use super::cluster::{certificate_of, ended_certificate};
use super::codes;
use super::findings::{DoctorFindings, FindingOutcome};
use crate::cli::{DoctorArgs, ZoneArg};
use crate::commands::api::{ApiClient, ControllerFacts, plural, why_blind};
use crate::commands::print::age_text;

/// A plugin with a greater lag does not keep up: batches and retries take only seconds.
const LAG_SECONDS: f64 = 60.0;
/// A closed file that waits longer is stuck: shipping one takes minutes at most.
const UNSHIPPED_SECONDS: f64 = 3600.0;

/// The status, and when the controller sent it by its own clock.
pub async fn examine_controller(
    args: &DoctorArgs,
    found: &mut DoctorFindings,
) -> Option<(StatusView, ControllerFacts)> {
    let asked = async {
        let client = ApiClient::reach_controller(&args.reach).await?;
        client.get_with_facts::<StatusView>("api/v1/status").await
    };
    let (status, seen) = match asked.await {
        Ok(answered) => answered,
        Err(error) => {
            let why = format!("{error:#}").replace('\n', " ");
            ended_certificate("the portal", &why, found);
            found.add(&codes::CONTROLLER, FindingOutcome::Failed, why);
            return None;
        }
    };
    found.add(&codes::CONTROLLER, FindingOutcome::Fine, seen.server.clone());
    if let Some(der) = &seen.certificate {
        certificate_of("the portal", certificate::certificate_end(der), found);
    }
    if status.restricted {
        let why = "you may not see the controller's figures: ask for the right to get `status` in `kubewitness.dev`";
        for code in [&codes::WATCH, &codes::PLUGIN, &codes::JOURNAL, &codes::LEDGERS] {
            found.add(code, FindingOutcome::NotChecked, why);
        }
        return Some((status, seen));
    }
    check_versions(&status.version, found);
    check_configuration(&status, found);
    status.sources.iter().for_each(|source| check_watch(source, found));
    status.plugins.iter().for_each(|plugin| check_plugin_progress(plugin, found));
    status.ledgers.iter().for_each(|ledger| check_shipping(ledger, found));
    check_journal(&status, found);
    Some((status, seen))
}

fn check_versions(controller: &str, found: &mut DoctorFindings) {
    let own = env!("CARGO_PKG_VERSION");
    let (outcome, detail) = match controller {
        "" => (
            FindingOutcome::Warning,
            format!("this is {own}, and the controller is older than 0.1.0 or does not tell"),
        ),
        same if same == own => (FindingOutcome::Fine, own.to_owned()),
        other => (FindingOutcome::Warning, format!("this is {own}, and the controller is {other}")),
    };
    found.add(&codes::VERSIONS, outcome, detail);
}

fn check_configuration(status: &StatusView, found: &mut DoctorFindings) {
    for problem in &status.problems {
        found.add(&codes::CONFIGURATION, FindingOutcome::Failed, problem.clone());
    }
    if status.problems.is_empty() {
        let (sources, plugins) = (status.sources.len() as u64, status.plugins.len() as u64);
        let outcome = if sources > 0 { FindingOutcome::Fine } else { FindingOutcome::Warning };
        let detail = format!(
            "{sources} {}, {plugins} {}",
            plural(sources, "source", "sources"),
            plural(plugins, "plugin", "plugins")
        );
        found.add(&codes::CONFIGURATION, outcome, detail);
    }
}

fn check_watch(source: &SourceView, found: &mut DoctorFindings) {
    let problem = source.condition.as_ref().map(|condition| (FindingOutcome::Failed, condition.clone()));
    let problem = problem.or_else(|| why_blind(source).map(|why| (FindingOutcome::Warning, why)));
    let problem = problem.or_else(|| source.doubt.clone().map(|doubt| (FindingOutcome::Warning, doubt)));
    let problem = problem.or_else(|| source.limitation.clone().map(|why| (FindingOutcome::Warning, why)));
    let (outcome, detail) = problem.unwrap_or_else(|| {
        let event = source
            .last_event_age_seconds
            .map_or("no event yet".into(), |seconds| format!("the last event was {} ago", age_text(seconds)));
        (
            FindingOutcome::Fine,
            format!("{} {}, {event}", source.objects, plural(source.objects, "object", "objects")),
        )
    });
    found.add(&codes::WATCH, outcome, format!("{}: {detail}", source.name));
}

fn check_plugin_progress(plugin: &PluginView, found: &mut DoctorFindings) {
    let why = plugin.message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    let behind = format!("{} behind, {} waiting", age_text(plugin.lag_seconds), plugin.waiting);
    let parked = plugin.dead.saturating_sub(plugin.dropped);
    let gaps = plugin.losses.iter().filter(|loss| loss.gap);
    let newest_gap = gaps.map(|loss| loss.message.as_str()).next_back();
    let paused = plugin.paused.as_ref().map(|paused| {
        let PausedView { who, why, since } = paused;
        format!(
            "{who} paused it at {}: {why}. `kubewitness resume {}` lets it go on",
            ZoneArg::local_zone().show_text(since),
            plugin.name
        )
    });
    let (outcome, detail) = match plugin.state.as_str() {
        "failed" => (FindingOutcome::Failed, format!("it failed{why}")),
        _ if paused.is_some() => (FindingOutcome::Warning, paused.unwrap_or_default()),
        "degraded" => (FindingOutcome::Warning, format!("it is degraded{why}")),
        _ if plugin.lag_seconds > LAG_SECONDS => (FindingOutcome::Warning, behind),
        _ if newest_gap.is_some() || parked > 0 => {
            let letters = || format!("{parked} {}", plural(parked, "dead letter", "dead letters"));
            let problems = (parked > 0).then(letters).into_iter().chain(newest_gap.map(str::to_owned));
            (FindingOutcome::Warning, problems.collect::<Vec<_>>().join(". "))
        }
        _ => (FindingOutcome::Fine, behind),
    };
    found.add(&codes::PLUGIN, outcome, format!("{}: {detail}", plugin.name));
}

fn check_shipping(ledger: &LedgerView, found: &mut DoctorFindings) {
    let waiting =
        format!("{} {}", ledger.waiting, plural(ledger.waiting, "closed file waits", "closed files wait"));
    let (outcome, detail) = match &ledger.condition {
        Some(condition) => (FindingOutcome::Failed, format!("{waiting}: {condition}")),
        None if ledger.waiting_seconds > UNSHIPPED_SECONDS => (
            FindingOutcome::Warning,
            format!("{waiting}, the oldest for {}", age_text(ledger.waiting_seconds)),
        ),
        None => (FindingOutcome::Fine, waiting),
    };
    found.add(&codes::LEDGERS, outcome, format!("{}: {detail}", ledger.name));
}

fn check_journal(status: &StatusView, found: &mut DoctorFindings) {
    let journal = &status.journal;
    let size = format!("{} states, {} MiB, {}", journal.states, journal.bytes >> 20, journal.place);
    found.add(&codes::JOURNAL, FindingOutcome::Fine, size);
    for held in &status.held {
        let detail = format!(
            "{} {} of {} held by {}: {}",
            held.states,
            plural(held.states, "state", "states"),
            held.source,
            held.holder,
            held.remedy
        );
        found.add(&codes::JOURNAL, FindingOutcome::Warning, detail);
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::DatabaseLossView;

    use super::*;

    fn one(examine: impl FnOnce(&mut DoctorFindings)) -> (FindingOutcome, String) {
        let mut found = DoctorFindings::default();
        examine(&mut found);
        let finding = found.0.pop().expect("a finding");
        (finding.outcome, finding.detail)
    }

    #[test]
    fn a_source_is_fine_only_while_it_sees_what_happens() {
        let seen = SourceView { name: "jobs".into(), synced: true, objects: 1, ..SourceView::default() };
        let finding_of = |source: &SourceView| one(|found| check_watch(source, found));
        assert_eq!(finding_of(&seen), (FindingOutcome::Fine, "jobs: 1 object, no event yet".into()));
        let held_up = SourceView { condition: Some("403: forbidden".into()), ..seen.clone() };
        assert_eq!(finding_of(&held_up), (FindingOutcome::Failed, "jobs: 403: forbidden".into()));
        let listing = SourceView { synced: false, ..seen.clone() };
        let doubted = SourceView { doubt: Some("an event was lost".into()), ..seen.clone() };
        for other in [listing, doubted, SourceView { walking: 2, ..seen }] {
            assert_eq!(finding_of(&other).0, FindingOutcome::Warning, "{other:?}");
        }
    }

    #[test]
    fn a_plugin_that_failed_is_behind_or_has_dead_letters_is_told() {
        let plugin = PluginView { name: "p".into(), state: "active".into(), ..PluginView::default() };
        let finding_of = |plugin: &PluginView| one(|found| check_plugin_progress(plugin, found));
        assert_eq!(finding_of(&plugin), (FindingOutcome::Fine, "p: 0 ms behind, 0 waiting".into()));
        let failed =
            PluginView { state: "failed".into(), message: Some("no module".into()), ..plugin.clone() };
        assert_eq!(finding_of(&failed), (FindingOutcome::Failed, "p: it failed: no module".into()));
        let behind = PluginView { lag_seconds: 300.0, waiting: 7, ..plugin.clone() };
        assert_eq!(finding_of(&behind), (FindingOutcome::Warning, "p: 5 m behind, 7 waiting".into()));
        let paused = PausedView { who: "ada".into(), why: "a move".into(), since: "2026".into() };
        let paused = PluginView { paused: Some(paused), lag_seconds: 300.0, ..plugin.clone() };
        let (outcome, detail) = finding_of(&paused);
        assert_eq!(outcome, FindingOutcome::Warning);
        assert!(detail.contains("ada paused it at 2026: a move") && detail.contains("resume p"), "{detail}");
        let dead = PluginView { dead: 3, dropped: 2, ..plugin.clone() };
        assert_eq!(finding_of(&dead), (FindingOutcome::Warning, "p: 1 dead letter".into()));
        let loss =
            |gap, message: &str| DatabaseLossView { gap, message: message.into(), ..Default::default() };
        let losses = vec![loss(true, "rows may be missing"), loss(false, "all came again")];
        let both = PluginView { losses: losses.clone(), ..dead };
        let expected = "p: 1 dead letter. rows may be missing".to_owned();
        assert_eq!(finding_of(&both), (FindingOutcome::Warning, expected));
        let lost = PluginView { losses, ..plugin.clone() };
        assert_eq!(finding_of(&lost), (FindingOutcome::Warning, "p: rows may be missing".into()));
        assert_eq!(finding_of(&PluginView { dead: 3, dropped: 3, ..plugin }).0, FindingOutcome::Fine);
    }

    #[test]
    fn a_ledger_whose_files_do_not_get_into_their_bucket_is_told() {
        let ledger =
            LedgerView { name: "trail".into(), waiting: 1, waiting_seconds: 20.0, ..LedgerView::default() };
        let finding_of = |ledger: &LedgerView| one(|found| check_shipping(ledger, found));
        assert_eq!(finding_of(&ledger), (FindingOutcome::Fine, "trail: 1 closed file waits".into()));
        let old = LedgerView { waiting: 2, waiting_seconds: 7200.0, ..ledger.clone() };
        assert_eq!(
            finding_of(&old),
            (FindingOutcome::Warning, "trail: 2 closed files wait, the oldest for 2 h".into())
        );
        let refused = LedgerView { condition: Some("403".into()), ..ledger };
        assert_eq!(finding_of(&refused), (FindingOutcome::Failed, "trail: 1 closed file waits: 403".into()));
    }

    #[test]
    fn another_version_is_a_warning() {
        assert_eq!(one(|found| check_versions(env!("CARGO_PKG_VERSION"), found)).0, FindingOutcome::Fine);
        for other in ["", "9.9.9"] {
            assert_eq!(one(|found| check_versions(other, found)).0, FindingOutcome::Warning);
        }
    }
}

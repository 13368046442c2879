//! Checks that a ledger is signed if the controller has a key that nothing else uses.

use kubewitness_core::config::{HostSpec, ManifestFault};

use super::codes;
use super::findings::{DoctorFindings, FindingOutcome};
use crate::cli::DoctorArgs;
use crate::commands::check::host_warnings;
use crate::commands::journal::host_of;
use crate::config::folder;
use crate::config::last_good::LastGood;
use crate::config::manifest::{parse_host, parse_plugin};

pub fn examine_signing(args: &DoctorArgs, found: &mut DoctorFindings) {
    match read_settings(args) {
        Some((host, warnings)) => report_signing(&host, warnings, found),
        None => {
            let why = match &args.config {
                Some(path) => {
                    let path = path.display();
                    format!("the settings of {path} can't be read: `kubewitness check {path}` says why")
                }
                None => {
                    "no settings were read: name them with --config, or the data folder with --data".into()
                }
            };
            found.add(&codes::SIGNING, FindingOutcome::NotChecked, why);
        }
    }
}

/// The settings that the command was given, and what is warned of in them.
pub(super) fn read_settings(args: &DoctorArgs) -> Option<(HostSpec, Vec<ManifestFault>)> {
    if let Some(path) = &args.config {
        let snapshot = folder::read(path).ok()?;
        let host = parse_host(snapshot.only_host().ok()?).ok()?.spec;
        let warnings = host_warnings(&host, &snapshot, true);
        return Some((host, warnings));
    }
    let data = args.data.as_ref()?;
    let host = host_of(data).ok()??;
    let kept = LastGood::open(data).and_then(|last_good| last_good.plugins()).ok()?;
    let plugins: Vec<_> =
        kept.values().map(|good| parse_plugin(&good.entry, &host)).collect::<Result<_, _>>().ok()?;
    let warnings = host.warnings(plugins.iter().map(|plugin| &plugin.spec));
    Some((host, warnings))
}

fn report_signing(host: &HostSpec, warnings: Vec<ManifestFault>, found: &mut DoctorFindings) {
    if warnings.is_empty() {
        let signed = host.ledgers.iter().filter(|ledger| ledger.signing.is_some()).count();
        let detail =
            format!("{} ledgers, {signed} of them signed, {} keys", host.ledgers.len(), host.keys.len());
        found.add(&codes::SIGNING, FindingOutcome::Fine, detail);
    }
    for ManifestFault { field, message } in warnings {
        found.add(&codes::SIGNING, FindingOutcome::Warning, format!("{field} {message}"));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_ledger_that_an_idle_key_could_sign_is_told() {
        let findings_for = |signing: serde_json::Value| {
            let ledger = json!({"name": "trail", "path": "t.jsonl", "signing": signing});
            let keys = json!([{"name": "seal", "valueFrom": {"env": "SEAL"}}]);
            let host = json!({"sources": [], "ledgers": [ledger], "keys": keys});
            let host: HostSpec = serde_json::from_value(host).unwrap();
            let mut found = DoctorFindings::default();
            report_signing(&host, host.warnings(std::iter::empty()), &mut found);
            let finding = found.0.remove(0);
            (finding.outcome, finding.detail)
        };
        let (outcome, detail) = findings_for(serde_json::Value::Null);
        assert_eq!(outcome, FindingOutcome::Warning);
        assert!(
            detail.contains("spec.ledgers[0].signing") && detail.contains("the ledger `trail`"),
            "{detail}"
        );
        assert_eq!(
            findings_for(json!({"key": "seal"})),
            (FindingOutcome::Fine, "1 ledgers, 1 of them signed, 1 keys".to_owned())
        );
    }

    #[test]
    fn settings_that_can_t_be_read_are_named_with_the_command_that_says_why() {
        let given = ["kubewitness", "doctor", "--config", "/nowhere"];
        let Command::Doctor(args) = Cli::try_parse_from(given).unwrap().command else { panic!("doctor") };
        let mut found = DoctorFindings::default();
        examine_signing(&args, &mut found);
        let finding = &found.0[0];
        assert_eq!(finding.outcome, FindingOutcome::NotChecked);
        assert_eq!(
            finding.detail,
            "the settings of /nowhere can't be read: `kubewitness check /nowhere` says why"
        );
    }
}

//! Checks that the users of granted databases may do no more than plugins need.

use kubewitness_capability::excess_rights;
use kubewitness_core::config::{DatabaseKind, DatabaseSpec};

use super::codes;
use super::findings::{DoctorFindings, FindingOutcome};
use super::signing::read_settings;
use crate::cli::DoctorArgs;

pub async fn examine_databases(args: &DoctorArgs, found: &mut DoctorFindings) {
    let Some((host, _)) = read_settings(args) else {
        let why = "no settings were read: name them with --config, or the data folder with --data";
        return found.add(&codes::DATABASES, FindingOutcome::NotChecked, why);
    };
    let is_server = |spec: &&DatabaseSpec| {
        matches!(spec.only_kind(), Some(DatabaseKind::Postgres(_) | DatabaseKind::Mysql(_)))
    };
    let servers: Vec<_> = host.databases.iter().filter(is_server).collect();
    if servers.is_empty() {
        found.add(&codes::DATABASES, FindingOutcome::Fine, "no granted database is on a server");
    }
    // One after the other: there are few, and each look is bounded.
    for spec in servers {
        let name = &spec.name;
        let (outcome, detail) = match excess_rights(spec).await {
            Ok(rights) => match rights.as_ref().and_then(|rights| rights.text()) {
                Some(text) => (FindingOutcome::Warning, text),
                None => {
                    let user = rights.map(|rights| rights.user).unwrap_or_default();
                    (FindingOutcome::Fine, format!("the user `{user}` may do what plugins need, and no more"))
                }
            },
            Err(why) => (FindingOutcome::NotChecked, format!("it can't be asked from here: {why}")),
        };
        found.add(&codes::DATABASES, outcome, format!("{name}: {detail}"));
    }
}

//! Checks the API server: whether it answers, its version, the rights of the sources, and its clock.

use std::path::Path;

use kubewitness_core::config::{HOST_KEY, HostSpec, SourceSpec};
use kubewitness_core::ports::AccessAttempt;
use kubewitness_core::views::StatusView;
use kubewitness_watch::{
    ApiServer, CheckupError, ConnectError, ConnectOptions, RightsCheckup, RightsOwner, SignedIn,
};

use super::certificate;
use super::codes;
use super::findings::{DoctorFindings, FindingOutcome};
use crate::cli::DoctorArgs;
use crate::commands::journal::host_of;
use crate::commands::reach::NAMESPACE;
use crate::config::folder;
use crate::config::manifest::{ManifestEntry, ManifestOrigin, parse_host};

const SHIPPED: &str = include_str!("../../../../deploy/kustomize/host.yaml");
const SHIPPED_AT: &str = "deploy/kustomize/host.yaml";

/// The oldest Kubernetes that can list an exact version.
const OLDEST: (u32, u32) = (1, 19);
/// The verbs that a source uses.
const VERBS: [&str; 2] = ["list", "watch"];

/// Verbs, group and resource, whether it is in the controller's own namespace, and what fails without it.
type OwnRight = (&'static [&'static str], &'static str, &'static str, bool, &'static str);

const OWN_RIGHTS: [OwnRight; 6] = [
    (
        &["get", "list", "watch", "create", "patch", "delete"],
        "",
        "configmaps",
        true,
        "the settings are not read, or no status is written",
    ),
    (&["create"], "", "events", true, "no event tells what became of a change"),
    (
        &["get", "create", "update"],
        "coordination.k8s.io",
        "leases",
        true,
        "several replicas, with --lease, do not run",
    ),
    (&["create"], "authentication.k8s.io", "tokenreviews", false, "nobody can sign in"),
    (&["create"], "authorization.k8s.io", "subjectaccessreviews", false, "nobody sees anything who signs in"),
    (&["get"], "", "namespaces", false, "people who sign in see nothing of a namespace"),
];

/// Facts about the API server that other checks need.
pub struct ClusterFacts {
    checkup: RightsCheckup,
    pub server: ApiServer,
}

/// `None` if no cluster is reachable.
pub async fn examine_cluster(args: &DoctorArgs, found: &mut DoctorFindings) -> Option<ClusterFacts> {
    let options =
        ConnectOptions { kubeconfig: args.reach.kubeconfig.clone(), context: args.reach.context.clone() };
    let signed_in = match SignedIn::sign_in(&options).await {
        Ok(signed_in) => signed_in,
        Err(ConnectError::NotConfigured(_)) if !args.pre => {
            let why = "no kubeconfig names a cluster, and this is no pod: name one with --kubeconfig";
            found.add(&codes::API_SERVER, FindingOutcome::NotChecked, why);
            return None;
        }
        Err(error) => {
            found.add(&codes::API_SERVER, FindingOutcome::Failed, error.to_string());
            return None;
        }
    };
    if let Some(pem) = &signed_in.certificate {
        certificate_of("the kubeconfig", certificate::end_of_pem(pem), found);
    }
    let checkup = RightsCheckup::new(&signed_in);
    match checkup.describe_server().await {
        Ok(server) => {
            found.add(&codes::API_SERVER, FindingOutcome::Fine, signed_in.server.clone());
            match signed_in.server_certificate().await {
                Ok(Some(der)) => certificate_of("the API server", certificate::certificate_end(&der), found),
                Ok(None) => {}
                Err(error) => found.add(&codes::CERTIFICATE, FindingOutcome::NotChecked, error.to_string()),
            }
            check_version(&server.version, found);
            Some(ClusterFacts { checkup, server })
        }
        Err(error) => {
            let why = format!("{}: {:#}", signed_in.server, anyhow::Error::from(error));
            ended_certificate("the API server", &why, found);
            found.add(&codes::API_SERVER, FindingOutcome::Failed, why);
            None
        }
    }
}

fn check_version(told: &str, found: &mut DoctorFindings) {
    let numbers = told.strip_prefix('v').unwrap_or(told);
    let mut numbers = numbers.split('.').map_while(|number| number.parse::<u32>().ok());
    let outcome = match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => FindingOutcome::Fine,
        (Some(_), Some(_)) => FindingOutcome::Failed,
        // Another kind of server may count otherwise.
        _ => FindingOutcome::Warning,
    };
    found.add(&codes::API_VERSION, outcome, told);
}

/// An expired certificate is known only by the refusal of its connection.
pub fn ended_certificate(whose: &str, refusal: &str, found: &mut DoctorFindings) {
    if refusal.contains("invalid peer certificate") && refusal.to_lowercase().contains("expired") {
        found.add(&codes::CERTIFICATE, FindingOutcome::Failed, format!("that of {whose} has ended"));
    }
}

pub fn certificate_of(whose: &str, end: Option<u64>, found: &mut DoctorFindings) {
    const DAY: u64 = 86_400_000;
    let now = super::now();
    let Some(end) = end else {
        return found.add(
            &codes::CERTIFICATE,
            FindingOutcome::Warning,
            format!("that of {whose} can't be read"),
        );
    };
    let shown = crate::cli::ZoneArg::local_zone().show_time(end);
    let (outcome, ends) = match end.saturating_sub(now) {
        0 => (FindingOutcome::Failed, "ended"),
        left if left < 30 * DAY => (FindingOutcome::Warning, "ends"),
        _ => (FindingOutcome::Fine, "ends"),
    };
    found.add(&codes::CERTIFICATE, outcome, format!("that of {whose} {ends} at {shown}"));
}

impl ClusterFacts {
    /// Asks for each right of each source.
    pub async fn check_rights(
        &self,
        args: &DoctorArgs,
        status: Option<&StatusView>,
        found: &mut DoctorFindings,
    ) {
        let whose = match args.account.as_deref().map(|account| account.split_once('/')) {
            None => RightsOwner::Own,
            Some(Some((namespace, name))) => {
                RightsOwner::Account { namespace: namespace.to_owned(), name: name.to_owned() }
            }
            // The command has refused any other form.
            Some(None) => return,
        };
        self.own_rights(args, &whose, found).await;
        let Some(sources) = self.sources_to_check(args, status, found).await else { return };
        for source in sources.iter().filter(|source| source.from.is_none()) {
            let (outcome, detail) = self.rights_of(&whose, source).await;
            found.add(&codes::RIGHTS, outcome, format!("{}: {detail}", source.name));
        }
    }

    /// Checks each right that the controller needs beside its sources.
    async fn own_rights(&self, args: &DoctorArgs, whose: &RightsOwner, found: &mut DoctorFindings) {
        let RightsOwner::Account { namespace: place, name } = whose else {
            let why = "the account of the controller is not known: name it with --account";
            return found.add(&codes::OWN_RIGHTS, FindingOutcome::NotChecked, why);
        };
        let own = args.reach.kubewitness_namespace.as_deref().unwrap_or(NAMESPACE);
        for (verbs, group, resource, namespaced, without) in OWN_RIGHTS {
            let namespace = if namespaced { own } else { "" };
            let missing = match self.missing_verbs(whose, verbs, (group, resource, namespace)).await {
                Ok(missing) => missing,
                Err((outcome, why)) => return found.add(&codes::OWN_RIGHTS, outcome, why),
            };
            let dot = if group.is_empty() { "" } else { "." };
            let of = if namespaced { format!(" in {own}") } else { String::new() };
            let object = format!("{resource}{dot}{group}{of}");
            match missing.is_empty() {
                true => {
                    let message = format!("{place}/{name} may {} {object}", verbs.join(", "));
                    found.add(&codes::OWN_RIGHTS, FindingOutcome::Fine, message);
                }
                false => {
                    let message =
                        format!("{place}/{name} may not {} {object}: {without}", missing.join(", "));
                    found.add(&codes::OWN_RIGHTS, FindingOutcome::Warning, message);
                }
            }
        }
    }

    /// The verbs that the account may not use, or why that is unknown.
    async fn missing_verbs(
        &self,
        whose: &RightsOwner,
        verbs: &[&'static str],
        (group, resource, namespace): (&str, &str, &str),
    ) -> Result<Vec<&'static str>, (FindingOutcome, String)> {
        let mut missing = Vec::new();
        for verb in verbs {
            let attempt = AccessAttempt {
                verb: (*verb).to_owned(),
                group: group.to_owned(),
                resource: resource.to_owned(),
                namespace: namespace.to_owned(),
                name: String::new(),
            };
            match self.checkup.has_right(whose, &attempt).await {
                Ok(true) => {}
                Ok(false) => missing.push(*verb),
                Err(error @ CheckupError::Forbidden(_)) => {
                    return Err((FindingOutcome::NotChecked, error.to_string()));
                }
                Err(error) => return Err((FindingOutcome::Failed, error.to_string())),
            }
        }
        Ok(missing)
    }

    async fn rights_of(&self, whose: &RightsOwner, source: &SourceSpec) -> (FindingOutcome, String) {
        let (group, resource) = match self.checkup.resource_of(source).await {
            Ok(found) => found,
            Err(error) => return (FindingOutcome::Failed, error.to_string()),
        };
        let place = source.namespace.as_ref().map(|place| format!(" in {place}")).unwrap_or_default();
        let dot = if group.is_empty() { "" } else { "." };
        let object = format!("{resource}{dot}{group}{place}");
        let namespace = source.namespace.as_deref().unwrap_or_default();
        let missing = match self.missing_verbs(whose, &VERBS, (&group, &resource, namespace)).await {
            Ok(missing) => missing,
            Err(why) => return why,
        };
        let who = match whose {
            RightsOwner::Own => "you".to_owned(),
            RightsOwner::Account { namespace, name } => format!("{namespace}/{name}"),
        };
        match missing.is_empty() {
            true => (FindingOutcome::Fine, format!("{who} may {} {object}", VERBS.join(", "))),
            false => (FindingOutcome::Failed, format!("{who} may not {} {object}", missing.join(", "))),
        }
    }

    /// The sources whose rights are checked: those of the settings that are or will be in force.
    async fn sources_to_check(
        &self,
        args: &DoctorArgs,
        status: Option<&StatusView>,
        found: &mut DoctorFindings,
    ) -> Option<Vec<SourceSpec>> {
        if let Some(path) = &args.config {
            let read = folder::read(path).and_then(|snapshot| snapshot.only_host().cloned());
            let place = path.display().to_string();
            let read = read.map_err(|problem| vec![problem.to_string()]);
            return take_settings(&place, read.and_then(|entry| parse_settings(&entry)), found);
        }
        if let Some(host) = args.data.as_ref().and_then(|data| host_of(data).ok().flatten()) {
            return Some(host.sources);
        }
        let namespace = args.reach.kubewitness_namespace.as_deref().unwrap_or(NAMESPACE);
        match self.checkup.settings_maps(namespace).await {
            Ok(maps) if !maps.is_empty() => {
                let (name, data) = maps.into_iter().next()?;
                let place = format!("configmap {namespace}/{name}");
                let text = data.get(HOST_KEY).cloned().unwrap_or_default();
                let origin = ManifestOrigin { place: place.clone(), first_line: 1, folder: None };
                let entry = ManifestEntry { config_map: name, origin, text, binary: Default::default() };
                take_settings(&place, parse_settings(&entry), found)
            }
            Ok(_) if args.pre => {
                found.add(
                    &codes::CONFIGURATION,
                    FindingOutcome::NotChecked,
                    format!("no settings yet: the sources of {SHIPPED_AT} are checked"),
                );
                take_settings(SHIPPED_AT, shipped_settings(), found)
            }
            _ => match status {
                Some(status) => Some(
                    status
                        .sources
                        .iter()
                        .map(|source| SourceSpec::of(&source.name, &source.api_version, &source.kind))
                        .collect(),
                ),
                None => {
                    let why = "which sources there are is not known: name the settings with --config";
                    found.add(&codes::RIGHTS, FindingOutcome::NotChecked, why);
                    None
                }
            },
        }
    }
}

/// The settings of a new installation.
fn shipped_settings() -> Result<HostSpec, Vec<String>> {
    let snapshot = folder::of_text(Path::new(SHIPPED_AT), SHIPPED);
    snapshot.only_host().map_err(|problem| vec![problem.to_string()]).and_then(parse_settings)
}

fn parse_settings(entry: &ManifestEntry) -> Result<HostSpec, Vec<String>> {
    let parsed =
        parse_host(entry).map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    Ok(parsed.spec)
}

fn take_settings(
    place: &str,
    read: Result<HostSpec, Vec<String>>,
    found: &mut DoctorFindings,
) -> Option<Vec<SourceSpec>> {
    match read {
        Ok(host) => {
            found.add(
                &codes::CONFIGURATION,
                FindingOutcome::Fine,
                format!("the settings of {place} can be taken"),
            );
            Some(host.sources)
        }
        Err(problems) => {
            problems.iter().for_each(|problem| {
                found.add(&codes::CONFIGURATION, FindingOutcome::Failed, problem.clone());
            });
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_held_against_the_oldest_that_lists_exactly() {
        let outcome = |version: &str| {
            let mut found = DoctorFindings::default();
            check_version(version, &mut found);
            found.0[0].outcome
        };
        for (expected, wanted) in [
            ("v1.36.0", FindingOutcome::Fine),
            ("v1.19.16-gke.1", FindingOutcome::Fine),
            ("v2.0.0", FindingOutcome::Fine),
            ("v1.18.9", FindingOutcome::Failed),
            ("unknown", FindingOutcome::Warning),
        ] {
            assert_eq!(outcome(expected), wanted, "{expected}");
        }
    }

    #[test]
    fn before_installing_every_shipped_source_is_checked() {
        let sources = shipped_settings().unwrap().sources;
        let kinds: Vec<_> = sources.iter().map(|it| (it.api_version.as_str(), it.kind.as_str())).collect();
        assert_eq!(kinds, [("batch/v1", "Job"), ("v1", "Pod"), ("v1", "Event")]);
    }

    #[test]
    fn a_certificate_is_told_of_before_it_ends() {
        let outcome = |end: Option<u64>| {
            let mut found = DoctorFindings::default();
            certificate_of("the portal", end, &mut found);
            found.0[0].outcome
        };
        let (now, day) = (crate::commands::doctor::now(), 86_400_000);
        assert_eq!(outcome(Some(now + 60 * day)), FindingOutcome::Fine);
        assert_eq!(outcome(Some(now + 20 * day)), FindingOutcome::Warning);
        assert_eq!(outcome(Some(now - day)), FindingOutcome::Failed);
        assert_eq!(outcome(None), FindingOutcome::Warning);
        let ended = |refusal: &str| {
            let mut found = DoctorFindings::default();
            ended_certificate("the portal", refusal, &mut found);
            found.0.first().map(|it| (it.code, it.outcome))
        };
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert_eq!(ended(&format!("connecting: {expired}")), Some(("KW-D011", FindingOutcome::Failed)));
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert_eq!(ended(&format!("connecting: {unknown}")), None);
    }
}

//! `kubewitness doctor`: checks what Kubewitness needs, before it is installed and while it runs.
//!
//! An error message shows a symptom, and an operator has to find the cause. So each check looks at one
//! precondition (rights, versions, clocks, disk, certificates), and has a stable code with a page about its
//! remedy. A check that could not be made says so: it counts neither as good nor as bad. The command changes
//! nothing, except for a small file that it writes to the data folder and removes.

mod certificate;
mod cluster;
pub mod codes;
mod controller;
mod databases;
mod findings;
mod folder;
mod signing;
mod streams;

use jiff::fmt::rfc2822;
use kubewitness_core::clock::{Clock, SystemClock};

use self::codes::DoctorCode;
use self::findings::{DoctorFindings, FindingOutcome};
use super::{CommandEnd, CommandResult, UsageError};
use crate::cli::DoctorArgs;
use crate::commands::print;

/// Times are in whole seconds, and an answer takes a moment.
const DRIFT_MS: u64 = 5_000;
const APART_MS: u64 = 60_000;

fn now() -> u64 {
    SystemClock::default().now_ms()
}

pub async fn run_doctor(args: DoctorArgs) -> CommandResult {
    if let Some(code) = &args.explain {
        return explain_code(code);
    }
    if args
        .account
        .as_ref()
        .is_some_and(|account| account.split('/').filter(|part| !part.is_empty()).count() != 2)
    {
        return Err(UsageError::error(
            "--account names no account: write NAMESPACE/NAME, such as kubewitness/kubewitness",
        ));
    }
    let mut found = DoctorFindings::default();
    let cluster = cluster::examine_cluster(&args, &mut found).await;
    let api_clock = cluster.as_ref().map(|cluster| clock_offset(cluster.server.date.as_deref()));
    let controller = if args.pre { None } else { controller::examine_controller(&args, &mut found).await };
    let its_clock = controller.as_ref().map(|(_, seen)| clock_offset(seen.date.as_deref()));
    if let Some(cluster) = &cluster {
        let status = controller.as_ref().map(|(status, _)| status).filter(|status| !status.restricted);
        cluster.check_rights(&args, status, &mut found).await;
    }
    match its_clock {
        Some(its) => check_clocks(api_clock.flatten(), its, "the controller", &mut found),
        None => check_clocks(api_clock.flatten(), Some(0), "this machine", &mut found),
    }
    folder::examine_folder(args.data.as_deref(), &mut found);
    signing::examine_signing(&args, &mut found);
    databases::examine_databases(&args, &mut found).await;
    streams::examine_streams(&args, controller.as_ref().map(|(status, _)| status), &mut found);
    found.0.sort_by_key(|finding| finding.code);
    print::print_value(args.output, &found.0, |found| findings::text(found))?;
    Ok(found.command_end())
}

/// How far a clock is ahead of this machine's, in milliseconds.
fn clock_offset(date: Option<&str>) -> Option<i64> {
    let server_ms = rfc2822::parse(date?).ok()?.timestamp().as_millisecond();
    i64::try_from(now()).ok().map(|now| server_ms.saturating_sub(now))
}

fn check_clocks(api: Option<i64>, other: Option<i64>, whose: &str, found: &mut DoctorFindings) {
    let (Some(api), Some(other)) = (api, other) else {
        return found.add(&codes::CLOCK, FindingOutcome::NotChecked, "one of the clocks is not known");
    };
    let apart = api.abs_diff(other);
    let outcome = match apart {
        apart if apart > APART_MS => FindingOutcome::Failed,
        apart if apart > DRIFT_MS => FindingOutcome::Warning,
        _ => FindingOutcome::Fine,
    };
    // Each is in whole seconds, and may be up to a second later.
    let message =
        if apart < 2_000 { "less than 2 s".to_owned() } else { print::age_text(apart as f64 / 1000.0) };
    found.add(&codes::CLOCK, outcome, format!("{whose} and the API server are {message} apart"));
}

fn explain_code(code: &str) -> CommandResult {
    let Some(code) = codes::ALL.iter().find(|known| known.code.eq_ignore_ascii_case(code)) else {
        return Err(UsageError::error(format!(
            "`{code}` is no code: they are {} to {}",
            codes::ALL[0].code,
            codes::ALL[codes::ALL.len() - 1].code
        )));
    };
    let DoctorCode { code, title, meaning, remedy } = code;
    print::text(&format!("{code}: {title}\n\n{meaning}\n\n{remedy}\n"))?;
    Ok(CommandEnd::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_whatever_this_machines_says() {
        let outcome = |api, other| {
            let mut found = DoctorFindings::default();
            check_clocks(api, other, "the controller", &mut found);
            found.0[0].outcome
        };
        assert_eq!(outcome(Some(500_000), Some(501_000)), FindingOutcome::Fine);
        assert_eq!(outcome(Some(-8_000), Some(0)), FindingOutcome::Warning);
        assert_eq!(outcome(Some(90_000), Some(0)), FindingOutcome::Failed);
        assert_eq!(outcome(None, Some(0)), FindingOutcome::NotChecked);
    }

    #[test]
    fn a_date_of_a_header_is_read() {
        let far = clock_offset(Some("Fri, 20 Nov 2020 13:45:11 GMT")).unwrap();
        assert!(far < -86_400_000, "{far}");
        assert_eq!(clock_offset(Some("yesterday")), None);
    }

    #[test]
    fn a_code_is_explained_and_an_unknown_one_is_named() {
        assert_eq!(explain_code("kw-d009").unwrap(), CommandEnd::Fine);
        assert!(explain_code("KW-D999").unwrap_err().to_string().contains("KW-D001 to KW-D018"));
    }
}

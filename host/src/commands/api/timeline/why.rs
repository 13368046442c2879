//! `kubewitness why`: the reason that an object failed or waits, with its evidence.

use anyhow::bail;
use kubewitness_core::shorten_text;
use kubewitness_core::story::duration_text;
use kubewitness_core::views::{
    Cause, ContainerRole, EventView, SentenceClaim, TimelineQuery, TimelineView, WhyView, signal_name,
};
use serde::Serialize;

use super::evidence::CauseEvidence;
use crate::cli::{Output, WhyArgs, ZoneArg};
use crate::commands::api::client::ApiClient;
use crate::commands::api::object_name::{
    ObjectName, fetch_story, namespace_or_context, nothing_witnessed_text,
};
use crate::commands::print::{self, TextTable};
use crate::commands::{CommandEnd, CommandResult};

/// How many states are read: those of a job with the pods of its attempts.
const STATES: usize = 2000;
/// The limit of one value, such as a container's message.
const VALUE_BYTES: usize = 1024;
/// The last Warnings and states are shown.
const SHOWN: usize = 5;

/// The output for scripts: the explanation, and its object.
#[derive(Serialize)]
struct ExplainedObject<'a> {
    object: &'a kubewitness_core::ObjectRef,
    #[serde(flatten)]
    why: &'a WhyView,
}

pub async fn run_why(args: WhyArgs) -> CommandResult {
    let named = ObjectName::parse_only(&args.object)?;
    let client = ApiClient::reach_controller(&args.query.reach).await?;
    let namespace = namespace_or_context(args.namespace.as_deref(), &args.query.reach).await?;
    let mut view = fetch_story(&client, &named, &namespace, STATES).await?;
    let Some(uid) = view.states.last().map(|last| last.object.uid.clone()) else {
        bail!(nothing_witnessed_text(&client, &named, &namespace).await?);
    };
    if view.why.is_none() {
        // Several objects had the name; the newest one counts.
        let query = TimelineQuery { uid: Some(uid), limit: Some(STATES), ..TimelineQuery::default() };
        view = client.get("api/v1/timeline", &query).await?;
    }
    let (Some(why), Some(last)) = (&view.why, view.states.last()) else {
        bail!("an Event has no cause; ask for the object that it is about");
    };
    let explained = ExplainedObject { object: &last.object, why };
    let evidence = match (&why.cause, args.query.output) {
        (Some(cause), Output::Table | Output::Wide) => CauseEvidence::read(&client, &view, cause).await,
        _ => CauseEvidence::default(),
    };
    print::print_wide(args.query.output, &explained, |_, wide| text(&view, why, &evidence, wide))?;
    Ok(CommandEnd::Fine)
}

fn text(view: &TimelineView, why: &WhyView, evidence: &CauseEvidence, wide: bool) -> String {
    let mut text = format!("{}.\n", print::clean_line(&why.sentence));
    if wide && !why.claims.is_empty() {
        text.push('\n');
        text.push_str(&claims_table(&why.claims));
    }
    if let Some(cause) = &why.cause {
        text.push('\n');
        text.push_str(&known_facts(cause));
        text.push_str(&states_before(view, cause, wide));
        text.push_str(&evidence.text(why.outcome, cause, wide));
    }
    if !why.also.is_empty() {
        text.push('\n');
        text.push_str(&others_table(&why.also, wide));
    }
    let warnings: Vec<_> = view.events.iter().filter(|event| event.kind == "Warning").collect();
    if !warnings.is_empty() {
        text.push('\n');
        text.push_str(&warnings_table(&warnings[warnings.len().saturating_sub(SHOWN)..], wide));
    }
    text
}

/// Each claim of the sentence, with the states that it rests on.
fn claims_table(claims: &[SentenceClaim]) -> String {
    let mut table = TextTable::new(&["CLAIM", "STATES"]).with_whole_cells(true);
    for claim in claims {
        let seqs: Vec<_> = claim.seqs.iter().map(ToString::to_string).collect();
        table.push_row(vec![claim.text.clone(), seqs.join(", ")]);
    }
    table.render()
}

/// One line for each known fact about the cause.
fn known_facts(cause: &Cause) -> String {
    let mut lines = vec![("Cause", cause.kind.as_str().to_owned())];
    if let Some(object) = &cause.object {
        lines.push(("Object", format!("{}/{}", object.kind.to_lowercase(), object.name)));
    }
    if let Some(container) = &cause.container {
        let exit = container.exit_code.map(|code| format!(", exit {code}")).unwrap_or_default();
        let signal = container.signal.map(|signal| format!(", {}", signal_name(signal))).unwrap_or_default();
        let role = match container.role {
            ContainerRole::Main => String::new(),
            role => format!(" ({})", role.words()),
        };
        lines.push(("Container", format!("{}{role}{exit}{signal}", container.name)));
    }
    if let Some(node) = &cause.node {
        lines.push(("Node", node.clone()));
    }
    for (name, value) in [("Reason", &cause.reason), ("Message", &cause.message), ("By", &cause.by)] {
        if !value.is_empty() {
            lines.push((name, value.replace(['\n', '\r'], " ")));
        }
    }
    lines.push(("When", ZoneArg::local_zone().show_time(cause.at_ms)));
    lines.push(("State", cause.seq.to_string()));
    lines
        .iter()
        .map(|(name, value)| {
            format!("{:<11}{}\n", format!("{name}:"), shorten_text(&print::clean_line(value), VALUE_BYTES))
        })
        .collect()
}

/// The last states of the failed object, up to the one on which the cause is based.
fn states_before(view: &TimelineView, cause: &Cause, wide: bool) -> String {
    let Some(object) = &cause.object else { return String::new() };
    let all = view.states.iter().chain(&view.related);
    let of_object: Vec<_> =
        all.filter(|state| state.object.uid == object.uid && state.seq <= cause.seq).collect();
    let mut table =
        TextTable::new(&["SEQ", "OBSERVED", "PHASE", "REASON", "BEFORE THE END"]).with_whole_cells(wide);
    for state in &of_object[of_object.len().saturating_sub(SHOWN)..] {
        table.push_row(vec![
            state.seq.to_string(),
            ZoneArg::local_zone().show_time(state.observed_ms),
            state.status.phase.clone(),
            state.status.reason.clone(),
            duration_text(cause.at_ms.saturating_sub(state.observed_ms)),
        ]);
    }
    if of_object.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

/// Other pods that failed, each with the state that says so.
fn others_table(others: &[Cause], wide: bool) -> String {
    let mut table = TextTable::new(&["ALSO", "OBJECT", "WHEN", "STATE"]).with_whole_cells(wide);
    for other in others {
        let object = other.object.as_ref();
        table.push_row(vec![
            other.kind.as_str().to_owned(),
            object.map(|it| format!("{}/{}", it.kind.to_lowercase(), it.name)).unwrap_or_default(),
            ZoneArg::local_zone().show_time(other.at_ms),
            other.seq.to_string(),
        ]);
    }
    table.render()
}

fn warnings_table(warnings: &[&EventView], wide: bool) -> String {
    let mut table = TextTable::new(&["WARNED AT", "REASON", "OBJECT", "MESSAGE"]).with_whole_cells(wide);
    for event in warnings {
        table.push_row(vec![
            ZoneArg::local_zone().show_time(event.last_ms),
            event.reason.clone(),
            format!("{}/{}", event.about.kind.to_lowercase(), event.about.name),
            event.message.replace('\n', " "),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use kubewitness_core::ObjectRef;
    use kubewitness_core::views::{CauseKind, FailedContainer};

    use super::*;

    #[test]
    fn other_pods_that_failed_are_told_with_their_states() {
        let pod = ObjectRef { kind: "Pod".into(), name: "train-1".into(), ..ObjectRef::default() };
        let other = Cause { kind: CauseKind::ExitCode, object: Some(pod), seq: 4711, ..Cause::default() };
        let why = WhyView { sentence: "Runs".into(), also: vec![other], ..WhyView::default() };
        let told = text(&TimelineView::default(), &why, &CauseEvidence::default(), false);
        let row = told.lines().find(|line| line.starts_with("exit-code")).unwrap_or_default();
        assert!(row.contains("pod/train-1") && row.ends_with("4711"), "{told}");
    }

    #[test]
    fn a_wide_answer_names_the_states_of_each_claim() {
        let claims = vec![SentenceClaim { text: "Ran 3 s".into(), seqs: vec![4711, 4713] }];
        let why = WhyView { sentence: "Ran 3 s".into(), claims, ..WhyView::default() };
        let text = |wide| text(&TimelineView::default(), &why, &CauseEvidence::default(), wide);
        assert!(text(true).contains("\nRan 3 s   4711, 4713\n"), "{}", text(true));
        assert!(!text(false).contains("4711"));
    }

    #[test]
    fn a_container_is_told_with_its_role_and_its_signal() {
        let container = FailedContainer {
            name: "fetch".into(),
            role: ContainerRole::Init,
            exit_code: Some(137),
            signal: Some(9),
        };
        let cause = Cause { container: Some(container), ..Cause::default() };
        let facts = known_facts(&cause);
        assert!(facts.contains("Container: fetch (init container), exit 137, SIGKILL\n"), "{facts}");
    }
}

//! `kubewitness gaps` and `kubewitness poison`: missing versions with their bounds, and bytes that are no
//! object of their source's kind. They use only the API.

mod poison;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use kubewitness_core::views::{ObjectView, SourceView, StatusView, TimelineView};
use kubewitness_core::{Gap, kinds};

pub use self::poison::run_poison;
use self::words::{gaps_table, no_gaps_text, other_blind_spots};
use super::client::ApiClient;
use super::live::poll;
use super::object_name::{ObjectName, is_uid, object_lines};
use crate::cli::GapsArgs;
use crate::commands::CommandResult;
use crate::commands::print::{self, clean_line, note};

type GapParameters = Vec<(&'static str, String)>;

/// The most objects that are looked up by their labels.
const MOST: usize = 10_000;
/// The most gaps that are searched: ten answers of the API.
const MOST_GAPS: usize = 100_000;

pub async fn run_gaps(args: GapsArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.query.reach).await?;
    poll(args.watch, async || gaps_shown(&client, &args).await).await
}

async fn gaps_shown(client: &ApiClient, args: &GapsArgs) -> Result<String> {
    let (parameters, about) = gap_parameters(args)?;
    let (gaps, cut) = find_gaps(client, &parameters, args).await?;
    if gaps.is_empty() && is_one_object(&parameters) {
        require_witnessed(client, &parameters, &about).await?;
    }
    let status: StatusView = client.get("api/v1/status", &GapParameters::new()).await?;
    let sources: Vec<_> = status.sources.iter().filter(|source| is_asked(&parameters, source)).collect();
    let narrowed = args.selector.is_some() || parameters.iter().any(|(name, _)| *name != "source");
    let (whole, sees_all) =
        if narrowed { gaps_of_whole_sources(client, &sources).await? } else { (Vec::new(), true) };
    let Some(output) = args.query.output.shape() else {
        return Ok(object_lines(gaps.iter().filter_map(|gap| gap.object.as_ref())));
    };
    print::render_output(output, &gaps, |gaps, wide| {
        let mut text = match (gaps.is_empty(), whole.is_empty()) {
            (true, true) => no_gaps_text(&about, narrowed, sees_all, &status, &sources),
            (true, false) => {
                format!("no gap {}, for itself{}\n", clean_line(&about), that_you_may_see(sees_all))
            }
            (false, _) => gaps_table(gaps, wide),
        };
        if cut {
            text.push_str(&only_newest(args.limit));
        }
        if !whole.is_empty() {
            text.push_str(&format!(
                "\nof the whole source, which may concern it:\n{}",
                gaps_table(&whole, wide)
            ));
        }
        if narrowed { text } else { text + &other_blind_spots(&sources) }
    })
}

/// Whether a source is relevant to the query.
fn is_asked(parameters: &GapParameters, source: &SourceView) -> bool {
    let group = source.api_version.split_once('/').map_or("", |(group, _)| group);
    parameters.iter().all(|(name, value)| match *name {
        "source" => *value == source.name,
        "kind" => kinds::is_kind(group, &source.kind, value),
        _ => true,
    })
}

/// The gaps of whole sources, each of which may affect every object, and whether all recorded gaps are
/// visible.
async fn gaps_of_whole_sources(client: &ApiClient, sources: &[&SourceView]) -> Result<(Vec<Gap>, bool)> {
    let none: [(&str, &str); 0] = [];
    let found = client.fetch_list::<Gap>("api/v1/gaps", &none, MOST_GAPS).await?;
    let (mut all, is_cut) = (found.rows, found.more);
    all.retain(|gap| sources.iter().any(|source| source.name == gap.source));
    let recorded: u64 = sources.iter().map(|source| source.gaps).sum();
    let sees_all = is_cut || all.len() as u64 >= recorded;
    all.retain(|gap| gap.object.is_none());
    Ok((all, sees_all))
}

fn that_you_may_see(sees_all: bool) -> &'static str {
    if sees_all { "" } else { ", as far as you may see" }
}

/// The parameters for the API, and the same in words.
fn gap_parameters(args: &GapsArgs) -> Result<(GapParameters, String)> {
    let mut parameters = GapParameters::new();
    let mut words = Vec::new();
    match &args.object[..] {
        [] => {}
        [kind] if !kind.is_empty() && !kind.contains('/') && !is_uid(kind) => {
            parameters.push(("kind", kind.clone()));
            words.push(format!("of any {kind}"));
        }
        object => match ObjectName::parse_only(object)? {
            ObjectName::Uid(uid) => {
                words.push(format!("of {uid}"));
                parameters.push(("uid", uid));
            }
            ObjectName::Object { kind, name } => {
                words.push(format!("of {kind}/{name}"));
                parameters.extend([("kind", kind), ("name", name)]);
            }
        },
    }
    if let Some(namespace) = &args.namespace {
        parameters.push(("namespace", namespace.clone()));
        words.push(format!("in namespace {namespace}"));
    }
    if let Some(source) = &args.source {
        parameters.push(("source", source.clone()));
        words.push(format!("of source {source}"));
    }
    if let Some(selector) = &args.selector {
        words.push(format!("with the labels {selector}"));
    }
    Ok((parameters, words.join(" ")))
}

fn only_newest(limit: usize) -> String {
    format!("only the newest {limit} are shown: --limit shows more\n")
}

/// The newest gaps, and whether more may exist. Labels belong to objects, so gaps of objects are selected by
/// uid.
async fn find_gaps(
    client: &ApiClient,
    parameters: &GapParameters,
    args: &GapsArgs,
) -> Result<(Vec<Gap>, bool)> {
    let Some(selector) = &args.selector else {
        let found = client.fetch_list::<Gap>("api/v1/gaps", parameters, args.limit).await?;
        return Ok((found.rows, found.more));
    };
    let uids = uids_with_labels(client, selector, parameters).await?;
    let found = client.fetch_list::<Gap>("api/v1/gaps", parameters, MOST_GAPS).await?;
    let (mut gaps, cut) = (found.rows, found.more);
    gaps.retain(|gap| gap.object.as_ref().is_some_and(|object| uids.contains(&object.uid)));
    let more = gaps.len() > args.limit;
    gaps.truncate(args.limit);
    Ok((gaps, cut || more))
}

/// The uids of the objects with these labels that match the parameters, ended ones included.
pub(super) async fn uids_with_labels(
    client: &ApiClient,
    selector: &str,
    parameters: &[(&'static str, String)],
) -> Result<BTreeSet<String>> {
    let of_object = |name: &'static str| if name == "uid" { "search" } else { name };
    let mut asked: GapParameters =
        parameters.iter().map(|(name, value)| (of_object(name), value.clone())).collect();
    asked.extend([("labelSelector", selector.to_owned()), ("gone", "true".to_owned())]);
    let objects = client.fetch_list::<ObjectView>("api/v1/objects", &asked, MOST).await?;
    if objects.more {
        note!(
            "kubewitness: more than {MOST} objects have these labels, and what is of others is not shown: name fewer labels"
        );
    }
    Ok(objects.rows.into_iter().map(|view| view.object.uid).collect())
}

fn is_one_object(parameters: &GapParameters) -> bool {
    parameters.iter().any(|(name, _)| matches!(*name, "uid" | "name"))
}

/// A statement that an object has no gap is valid only if the object was witnessed.
async fn require_witnessed(client: &ApiClient, parameters: &GapParameters, about: &str) -> Result<()> {
    let known = |name: &str| matches!(name, "uid" | "kind" | "namespace" | "name");
    let mut asked: GapParameters = parameters.iter().filter(|(name, _)| known(name)).cloned().collect();
    asked.push(("limit", "1".into()));
    let story: TimelineView = client.get("api/v1/timeline", &asked).await?;
    if story.states.is_empty() {
        bail!("nothing was witnessed {about}: `kubewitness get all` lists what is there now");
    }
    Ok(())
}

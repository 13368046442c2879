//! `kubewitness get` and `kubewitness jobs`: the objects of watched kinds, as they are, as they ended, or as
//! of a past moment. They change nothing.

pub(super) mod events;
mod follow;
mod query;

use anyhow::{Result, bail};
use kubewitness_core::kinds;
use kubewitness_core::views::{ObjectQuery, ObjectView, SourceView, StatusView};
use serde_json::Value;

use super::client::{ApiClient, ListedItems, query_parameters};
use super::object_name::{name, object_lines};
use super::status::why_blind;
use crate::cli::{GetArgs, GetOutput, JobsArgs, ZoneArg};
use crate::commands::print::{self, clean_line, escaped_json, note, remarks_text};
use crate::commands::{CommandEnd, CommandResult};
use query::{GetQuery, QueryTime};

pub async fn get(args: GetArgs) -> CommandResult {
    let asked = GetQuery::queries_of_words(&args.kind, &args.name, &args.list)?;
    show_answers(&ApiClient::reach_controller(&args.list.reach).await?, &asked).await
}

pub async fn run_jobs(args: JobsArgs) -> CommandResult {
    let asked = match args.name.split_first() {
        // `jobs job/train-7` means the same object as `get job/train-7`.
        Some((named, names)) if named.contains('/') => GetQuery::queries_of_words(named, names, &args.list)?,
        _ => GetQuery::queries_of_words(&args.kind, &args.name, &args.list)?,
    };
    show_answers(&ApiClient::reach_controller(&args.list.reach).await?, &asked).await
}

async fn show_answers(client: &ApiClient, questions: &[GetQuery]) -> CommandResult {
    match questions {
        [one] if one.watch => follow::follow_live(client, one).await,
        [one] => show_one(client, one).await,
        several => show_several(client, several).await,
    }
}

async fn show_one(client: &ApiClient, asked: &GetQuery) -> CommandResult {
    let objects = find_objects(client, asked).await?;
    if objects.is_empty() && asked.is_one() {
        bail!("{}", asked.nothing_found_text());
    }
    match asked.output {
        GetOutput::Json | GetOutput::Yaml if asked.is_one() => {
            let one =
                if asked.when == QueryTime::Gone { last_ended(&objects)? } else { expect_single(&objects)? };
            check_certainty(one)?;
            print::text(&render_document(client, one.seq, asked.output).await?)?;
        }
        _ => print_rows(&[(asked, objects)])?,
    }
    warn_of_blind_sources(client, asked).await;
    Ok(CommandEnd::Fine)
}

/// As in kubectl: found objects are printed, and missing ones are an error afterwards.
async fn show_several(client: &ApiClient, questions: &[GetQuery]) -> CommandResult {
    let (mut shown, mut missing) = (Vec::<(&GetQuery, Vec<ObjectView>)>::new(), Vec::new());
    for asked in questions {
        let mut objects = find_objects(client, asked).await?;
        if objects.is_empty() && asked.is_one() {
            missing.push(asked.nothing_found_text());
            continue;
        }
        match shown.last_mut().filter(|(last, _)| last.kind == asked.kind) {
            Some((_, rows)) => rows.append(&mut objects),
            None => shown.push((asked, objects)),
        }
    }
    print_rows(&shown)?;
    for (asked, _) in &shown {
        warn_of_blind_sources(client, asked).await;
    }
    anyhow::ensure!(missing.is_empty(), "{}", missing.join("\n"));
    Ok(CommandEnd::Fine)
}

/// The rows of each query: one table for each, or one list for programs.
fn print_rows(shown: &[(&GetQuery, Vec<ObjectView>)]) -> Result<()> {
    let Some((first, _)) = shown.first() else { return Ok(()) };
    let all: Vec<&ObjectView> = shown.iter().flat_map(|(_, objects)| objects).collect();
    match first.output {
        GetOutput::Json => print::text(&print::json(&all)?),
        GetOutput::Yaml => print::text(&print::yaml(&all)?),
        GetOutput::Name => print::text(&object_lines(all.iter().map(|view| &view.object))),
        GetOutput::Table | GetOutput::Wide => {
            if let QueryTime::At(ms) = first.when {
                note!("as of {}", ZoneArg::local_zone().show_time(ms));
            }
            let tables: Vec<_> = shown.iter().map(|(asked, objects)| asked.table_of(objects)).collect();
            print::text(&tables.join("\n"))?;
            print::text(&remarks_text(all.into_iter().filter_map(not_exact)))
        }
    }
}

/// The results of a query, in its order.
async fn find_objects(client: &ApiClient, asked: &GetQuery) -> Result<Vec<ObjectView>> {
    let mut query = asked.query.clone();
    if asked.when == QueryTime::Now && query.sort.is_none() && query.index.is_none() {
        // In the order of the output. Pages in the order of changes would miss objects that change between
        // two pages.
        query.sort = Some("namespace".into());
    }
    let ListedItems { rows: mut objects, more } = list_objects(client, &query, asked.limit).await?;
    if more {
        note!("kubewitness: only the first {} are shown; raise --limit to see more", asked.limit);
    }
    if !matches!(asked.when, QueryTime::Gone | QueryTime::InPhase | QueryTime::Outcome)
        && asked.query.sort.is_none()
    {
        objects.sort_by(|a, b| key(a).cmp(&key(b)));
    }
    Ok(objects)
}

async fn list_objects(
    client: &ApiClient,
    query: &ObjectQuery,
    most: usize,
) -> Result<ListedItems<ObjectView>> {
    let asks = query_parameters(query);
    match query.details {
        true => client.list_detailed("api/v1/objects", &asks, most).await,
        false => client.fetch_list("api/v1/objects", &asks, most).await,
    }
}

/// Warns that witnessed objects may not be up to date.
async fn warn_of_blind_sources(client: &ApiClient, asked: &GetQuery) {
    // A source's present problems say nothing about what it saw then.
    if matches!(asked.when, QueryTime::At(_)) {
        return;
    }
    let nothing: [(&str, &str); 0] = [];
    let status: StatusView = match client.get("api/v1/status", &nothing).await {
        Ok(status) => status,
        Err(error) => {
            return note!(
                "kubewitness: objects may be missing, since the state of the sources is not known: {error:#}"
            );
        }
    };
    for line in status.sources.iter().filter(|source| is_asked(&asked.query, source)).filter_map(why_blind) {
        note!("kubewitness: {line}");
    }
}

/// Whether a source is relevant to the query.
fn is_asked(query: &ObjectQuery, source: &SourceView) -> bool {
    let group = source.api_version.split_once('/').map_or("", |(group, _)| group);
    query.source.as_ref().is_none_or(|wanted| *wanted == source.name)
        && query.kind.as_ref().is_none_or(|kind| kinds::is_kind(group, &source.kind, kind))
}

/// Why a state may not be the one of the moment, and of which object it is.
fn not_exact(view: &ObjectView) -> Option<(String, &str)> {
    Some((name(&view.object), view.then.as_ref()?.message.as_deref()?))
}

/// Adds a sentence if the document may not be exact. A document that retention removed is not available.
fn check_certainty(view: &ObjectView) -> Result<()> {
    let Some((name, why)) = not_exact(view) else { return Ok(()) };
    if view.then.as_ref().is_some_and(|then| then.known == "taken") {
        bail!("{}: {}", clean_line(&name), clean_line(why));
    }
    note!("kubewitness: {}: {}", clean_line(&name), clean_line(why));
    Ok(())
}

fn key(view: &ObjectView) -> (&str, &str, &str, &str) {
    (&view.source, &view.object.kind, &view.object.namespace, &view.object.name)
}

fn expect_single(objects: &[ObjectView]) -> Result<&ObjectView> {
    match objects {
        [one] => Ok(one),
        many => {
            let places: Vec<_> = many
                .iter()
                .map(|view| {
                    format!(
                        "{} (source {}, namespace {})",
                        name(&view.object),
                        view.source,
                        view.object.namespace
                    )
                })
                .collect();
            bail!(
                "{} objects have this name: choose with -n, --source or the kind's group: {}",
                many.len(),
                places.join(", ")
            )
        }
    }
}

/// Several objects may have had the name one after the other. The one with the newest end comes first.
fn last_ended(objects: &[ObjectView]) -> Result<&ObjectView> {
    let Some((last, others)) = objects.split_first() else { bail!("no object of this name has ended") };
    if !others.is_empty() {
        let object = &last.object;
        note!(
            "kubewitness: {} objects of this name have ended; this one ended last: uid {}, in namespace {}",
            objects.len(),
            clean_line(&object.uid),
            clean_line(&object.namespace)
        );
    }
    Ok(last)
}

/// The document of a state: byte for byte as JSON, the same content as YAML.
pub(super) async fn render_document(client: &ApiClient, seq: u64, output: GetOutput) -> Result<String> {
    let bytes = client.fetch_bytes(&format!("api/v1/states/{seq}/document")).await?;
    if output == GetOutput::Yaml {
        return print::yaml(&serde_json::from_slice::<Value>(&bytes)?);
    }
    let json = String::from_utf8_lossy(&bytes);
    // A file or another program gets the witnessed bytes.
    let json = if print::is_on_terminal() { escaped_json(&json) } else { json };
    Ok(format!("{}\n", json.trim_end()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kubewitness_core::ObjectRef;
    use kubewitness_core::views::ThenView;

    use super::*;
    use crate::commands::api::testing;

    fn view(source: &str) -> ObjectView {
        let object = ObjectRef { kind: "Job".into(), name: "x".into(), ..ObjectRef::default() };
        ObjectView { source: source.into(), object, ..ObjectView::default() }
    }

    #[test]
    fn a_source_is_told_of_where_its_objects_were_asked_for() {
        let source = SourceView {
            name: "pods".into(),
            api_version: "v1".into(),
            kind: "Pod".into(),
            ..SourceView::default()
        };
        for (kind, is) in [(Some("po"), true), (None, true), (Some("jobs"), false)] {
            let query = ObjectQuery { kind: kind.map(str::to_owned), ..ObjectQuery::default() };
            assert_eq!(is_asked(&query, &source), is, "{kind:?}");
        }
    }

    #[test]
    fn one_document_is_of_one_object() {
        let (a, b) = (view("jobs"), view("other-jobs"));
        assert_eq!(expect_single(std::slice::from_ref(&a)).unwrap().source, "jobs");
        let text = expect_single(&[a, b]).unwrap_err().to_string();
        assert!(text.contains("2 objects") && text.contains("source other-jobs"), "{text}");
    }

    #[test]
    fn of_several_objects_of_a_name_that_have_ended_the_last_one_is_shown() {
        let (last, earlier) = (view("jobs"), view("other-jobs"));
        assert_eq!(last_ended(&[last, earlier]).unwrap().source, "jobs");
        assert!(last_ended(&[]).is_err());
    }

    #[test]
    fn a_document_that_retention_took_is_not_shown_as_another() {
        let known = |known: &str, message: Option<&str>| {
            let then = ThenView { known: known.into(), message: message.map(Into::into), until: None };
            check_certainty(&ObjectView { then: Some(then), ..view("jobs") })
        };
        assert!(known("exact", None).is_ok() && known("missing", Some("It may be another.")).is_ok());
        let error = known("taken", Some("Retention took its states.")).unwrap_err().to_string();
        assert_eq!(error, "job/x: Retention took its states.");
    }

    #[tokio::test]
    async fn what_is_there_is_asked_for_in_the_order_in_which_it_is_shown_unless_another_is_named() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = asked.clone();
        let client = testing::client(move |path| {
            heard.lock().unwrap().push(path.to_owned());
            serde_json::json!([])
        });
        let client = client.await;
        for line in [
            &["jobs"][..],
            &["jobs", "--sort", "-restarts"],
            &["jobs", "--index", "node=a"],
            &["jobs", "--gone"],
        ] {
            find_objects(&client, &query::tests::asked(line).unwrap()).await.unwrap();
        }
        let asked = asked.lock().unwrap();
        let sorted =
            asked.iter().map(|path| path.split("sort=").nth(1).and_then(|sort| sort.split('&').next()));
        assert_eq!(sorted.collect::<Vec<_>>(), [Some("namespace"), Some("-restarts"), None, None]);
    }
}

//! `kubewitness get` and `kubewitness jobs`: the objects of watched kinds that exist now.

use anyhow::{Result, bail};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::views::{ObjectQuery, ObjectView, SourceView, StatusView};
use kubewitness_core::{Change, ObjectRef, Status, calendar, kinds};
use serde_json::Value;

use super::client::Client;
use super::follow;
use super::status::blind;
use crate::cli::{GetArgs, GetOutput, JobsArgs};
use crate::commands::print::{self, Table, age, clean};
use crate::commands::{End, Ended, Usage};

pub async fn get(args: GetArgs) -> Ended {
    let client = Client::reach(&args.reach).await?;
    let asked = Asked::new(&args)?;
    if args.watch {
        return follow::follow(&client, &asked).await;
    }
    let mut objects: Vec<ObjectView> = client.get("api/v1/objects", &parameters(&asked.query)).await?;
    if objects.len() >= args.limit {
        eprintln!("kubewitness: only the {} that changed last are shown; --limit shows more", args.limit);
    }
    objects.sort_by(|a, b| key(a).cmp(&key(b)));
    if objects.is_empty() && asked.query.name.is_some() {
        bail!("{}", asked.nobody());
    }
    match (asked.output, asked.is_one()) {
        (GetOutput::Json | GetOutput::Yaml, true) => {
            let one = single(&objects)?;
            print::text(&document(&client, one.seq, asked.output).await?)?;
        }
        (GetOutput::Json, false) => print::text(&format!("{}\n", serde_json::to_string_pretty(&objects)?))?,
        (GetOutput::Yaml, false) => print::text(&print::yaml(&objects)?)?,
        (GetOutput::Name, _) => {
            let names: String =
                objects.iter().map(|view| format!("{}\n", clean(&name(&view.object)))).collect();
            print::text(&names)?;
        }
        (GetOutput::Table | GetOutput::Wide, _) => print::text(&asked.table_of(&objects))?,
    }
    tell_blind(&client, &asked.query).await;
    Ok(End::Fine)
}

/// What is shown is what was witnessed, which may not be what is there now.
pub(super) async fn tell_blind(client: &Client, query: &ObjectQuery) {
    let nothing: [(&str, &str); 0] = [];
    let status: StatusView = match client.get("api/v1/status", &nothing).await {
        Ok(status) => status,
        Err(error) => {
            return eprintln!(
                "kubewitness: objects may be missing, since the state of the sources is not known: {error:#}"
            );
        }
    };
    for line in status.sources.iter().filter(|source| is_asked(query, source)).filter_map(blind) {
        eprintln!("kubewitness: {line}");
    }
}

/// Whether a source has anything to do with the question.
fn is_asked(query: &ObjectQuery, source: &SourceView) -> bool {
    let group = source.api_version.split_once('/').map_or("", |(group, _)| group);
    query.source.as_ref().is_none_or(|wanted| *wanted == source.name)
        && query.kind.as_ref().is_none_or(|kind| kinds::is_kind(group, &source.kind, kind))
}

pub async fn jobs(args: JobsArgs) -> Ended {
    let query = ObjectQuery {
        kind: (args.kind != "all").then_some(args.kind),
        namespace: args.namespace,
        phase: args.phase,
        label_selector: args.selector,
        limit: Some(args.limit),
        ..ObjectQuery::default()
    };
    let client = Client::reach(&args.query.reach).await?;
    let objects: Vec<ObjectView> = client.get("api/v1/objects", &parameters(&query)).await?;
    print::value(args.query.output, &objects, |objects| {
        let mut table =
            Table::new(&["NAMESPACE", "KIND", "NAME", "PHASE", "REASON", "READY", "ATTEMPT", "SINCE"]);
        for view in objects {
            table.row([
                view.object.namespace.clone(),
                view.object.kind.clone(),
                view.object.name.clone(),
                view.status.phase.clone(),
                view.status.reason.clone(),
                format!("{}/{}", view.status.ready, view.status.total),
                view.status.attempt.to_string(),
                view.observed_at.clone(),
            ]);
        }
        if table.is_empty() { "nothing matches\n".into() } else { table.render() }
    })?;
    tell_blind(&client, &query).await;
    Ok(End::Fine)
}

/// What a question comes to, and how its answer is laid out.
pub(super) struct Asked {
    pub query: ObjectQuery,
    pub output: GetOutput,
    /// As it was typed.
    kind: String,
    every_kind: bool,
}

impl Asked {
    fn new(args: &GetArgs) -> Result<Self> {
        let (kind, name) = match (args.kind.split_once('/'), &args.name) {
            (Some((kind, name)), None) if !kind.is_empty() && !name.is_empty() => {
                (kind, Some(name.to_owned()))
            }
            (Some(_), _) => {
                return Err(Usage::error(format!(
                    "`{}` names no object: write KIND, KIND NAME or KIND/NAME, such as job/train-7",
                    args.kind
                )));
            }
            (None, name) => (args.kind.as_str(), name.clone()),
        };
        let every_kind = kind.eq_ignore_ascii_case("all");
        if kind.is_empty() {
            return Err(Usage::error("no kind was named: write one such as jobs, or all"));
        }
        let query = ObjectQuery {
            source: args.source.clone(),
            kind: (!every_kind).then(|| kind.to_owned()),
            namespace: args.namespace.clone(),
            name,
            label_selector: args.selector.clone(),
            index: args.index.clone(),
            phase: args.phase.clone(),
            limit: Some(args.limit),
            ..ObjectQuery::default()
        };
        Ok(Self { query, output: args.output, kind: kind.to_owned(), every_kind })
    }

    /// Whether its answer is one document rather than a list.
    pub fn is_one(&self) -> bool {
        self.query.name.is_some()
    }

    fn nobody(&self) -> String {
        let name = self.query.name.as_deref().unwrap_or_default();
        let place = self.query.namespace.as_ref().map(|place| format!(" in namespace {place}"));
        let (kind, place) = (&self.kind, place.unwrap_or_default());
        let namespace = self.query.namespace.as_deref().unwrap_or("NAMESPACE");
        format!(
            "{kind}/{name} is not there{place}, or does not match: `kubewitness timeline {kind}/{name} -n {namespace}` \
             tells whether it was"
        )
    }

    pub fn table(&self) -> Table {
        let mut header = vec!["NAMESPACE", "NAME", "PHASE", "READY", "ATTEMPT", "REASON", "CHANGED"];
        if self.every_kind {
            header.insert(0, "KIND");
        }
        if self.output == GetOutput::Wide {
            header.extend(["SOURCE", "VERSION", "EXIT", "OWNER", "UID", "MESSAGE"]);
        }
        Table::new(&header)
    }

    pub fn row(&self, table: &mut Table, view: &ObjectView, change: Change) {
        let (object, status) = (&view.object, &view.status);
        let phase = match change {
            Change::Present | Change::Gone => status.phase.clone(),
            other => format!("{} ({})", status.phase, other.as_str()),
        };
        let ready =
            if status.total > 0 { format!("{}/{}", status.ready, status.total) } else { String::new() };
        let attempt = if status.attempt > 0 { status.attempt.to_string() } else { String::new() };
        let mut row = vec![
            object.namespace.clone(),
            object.name.clone(),
            phase,
            ready,
            attempt,
            reason(status, change),
            since(&view.observed_at),
        ];
        if self.every_kind {
            row.insert(0, object.kind.clone());
        }
        if self.output == GetOutput::Wide {
            row.push(view.source.clone());
            row.push(view.resource_version.clone());
            row.push(status.exit_code.map(|code| code.to_string()).unwrap_or_default());
            row.push(
                view.owner.as_ref().map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default(),
            );
            row.push(object.uid.clone());
            row.push(status.message.clone());
        }
        table.row(row);
    }

    fn table_of(&self, objects: &[ObjectView]) -> String {
        let mut table = self.table();
        for view in objects {
            self.row(&mut table, view, Change::Present);
        }
        if table.is_empty() { "nothing matches\n".into() } else { table.render() }
    }
}

/// The parameters of the API, whose names are those of kubectl and Kubernetes.
pub(super) fn parameters(query: &ObjectQuery) -> Vec<(&'static str, String)> {
    let limit = query.limit.map(|limit| limit.to_string());
    let all = [
        ("source", &query.source),
        ("kind", &query.kind),
        ("namespace", &query.namespace),
        ("name", &query.name),
        ("labelSelector", &query.label_selector),
        ("index", &query.index),
        ("phase", &query.phase),
        ("limit", &limit),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
}

fn key(view: &ObjectView) -> (&str, &str, &str, &str) {
    (&view.source, &view.object.kind, &view.object.namespace, &view.object.name)
}

fn single(objects: &[ObjectView]) -> Result<&ObjectView> {
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

/// The document of a state: byte for byte as JSON, the same content as YAML.
pub(super) async fn document(client: &Client, seq: u64, output: GetOutput) -> Result<String> {
    let bytes = client.bytes(&format!("api/v1/states/{seq}/document")).await?;
    if output == GetOutput::Yaml {
        return print::yaml(&serde_json::from_slice::<Value>(&bytes)?);
    }
    Ok(format!("{}\n", String::from_utf8_lossy(&bytes).trim_end()))
}

/// As kubectl writes it and takes it.
pub(super) fn name(object: &ObjectRef) -> String {
    let (kind, dot) = (object.kind.to_lowercase(), if object.group.is_empty() { "" } else { "." });
    format!("{kind}{dot}{}/{}", object.group, object.name)
}

/// The reason of what is gone is the phase in which it went, which is not what it is in.
fn reason(status: &Status, change: Change) -> String {
    match change {
        Change::Gone if !status.reason.is_empty() => format!("was {}", status.reason),
        _ => status.reason.clone(),
    }
}

/// How long ago a time was; the time itself where it is not known.
fn since(at: &str) -> String {
    match calendar::parse(at) {
        Some(ms) => age(SystemClock::default().now_ms().saturating_sub(ms) as f64 / 1000.0),
        None => at.to_owned(),
    }
}

/// Whether a state of the live stream is about what was asked for, as far as the stream can tell.
pub(super) fn concerns(query: &ObjectQuery, source: &str, object: &ObjectRef) -> bool {
    let kind = |wanted: &String| kinds::is_kind(&object.group, &object.kind, wanted);
    query.source.as_ref().is_none_or(|wanted| wanted == source)
        && query.kind.as_ref().is_none_or(kind)
        && query.namespace.as_ref().is_none_or(|wanted| *wanted == object.namespace)
        && query.name.as_ref().is_none_or(|wanted| *wanted == object.name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn asked(arguments: &[&str]) -> Result<Asked> {
        let line = ["kubewitness", "get"].iter().chain(arguments);
        let Command::Get(args) = Cli::parse_from(line).command else { unreachable!("the command is `get`") };
        Asked::new(&args)
    }

    #[test]
    fn a_question_is_put_as_to_kubectl() {
        let asked_for =
            asked(&["po", "-n", "a", "-l", "team=a,!old", "--index", "node=w1", "--phase", "Running"]);
        let told = parameters(&asked_for.unwrap().query);
        let told: Vec<_> = told.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            told,
            [
                "kind=po",
                "namespace=a",
                "labelSelector=team=a,!old",
                "index=node=w1",
                "phase=Running",
                "limit=10000"
            ]
        );
        for arguments in [&["job", "x"][..], &["job/x"], &["job/x", "-A"]] {
            let query = asked(arguments).unwrap().query;
            assert_eq!((query.kind.as_deref(), query.name.as_deref()), (Some("job"), Some("x")));
        }
        assert_eq!(asked(&["all"]).unwrap().query.kind, None);
        for wrong in [&["job/"][..], &["/x"], &["job/x", "y"], &[""]] {
            assert!(asked(wrong).is_err(), "{wrong:?}");
        }
        assert!(Cli::try_parse_from(["kubewitness", "get", "jobs", "-A", "-n", "x"]).is_err());
    }

    fn view(source: &str, name: &str) -> ObjectView {
        ObjectView {
            source: source.into(),
            object: ObjectRef {
                group: "batch".into(),
                kind: "Job".into(),
                namespace: "a".into(),
                name: name.into(),
                uid: "u".into(),
                ..ObjectRef::default()
            },
            owner: None,
            resource_version: "7".into(),
            status: Status { phase: "Running".into(), ready: 1, total: 2, ..Status::default() },
            seq: 1,
            observed_at: "not a time".into(),
            ..ObjectView::default()
        }
    }

    #[test]
    fn a_row_says_no_more_than_is_known() {
        let text = asked(&["jobs"]).unwrap().table_of(&[view("jobs", "x\u{1b}")]);
        assert_eq!(
            text,
            "NAMESPACE   NAME   PHASE     READY   ATTEMPT   REASON   CHANGED\n\
             a           x·     Running   1/2                        not a time\n"
        );
        let text = asked(&["all", "-o", "wide"]).unwrap().table_of(&[view("jobs", "x")]);
        assert!(text.starts_with("KIND   NAMESPACE") && text.contains("UID"), "{text}");
        assert_eq!(asked(&["jobs"]).unwrap().table_of(&[]), "nothing matches\n");
    }

    #[test]
    fn what_is_gone_is_not_in_the_phase_in_which_it_went() {
        let mut gone = view("jobs", "x");
        gone.status =
            kubewitness_core::status::Rules::deleted(&Status { phase: "Pending".into(), ..gone.status });
        let asked = asked(&["jobs"]).unwrap();
        let mut table = asked.table();
        asked.row(&mut table, &gone, Change::Gone);
        let text = table.render();
        assert!(text.contains("Deleted") && text.contains("was Pending"), "{text}");
    }

    #[test]
    fn a_source_is_told_of_where_its_objects_were_asked_for() {
        let source = SourceView {
            name: "pods".into(),
            api_version: "v1".into(),
            kind: "Pod".into(),
            ..SourceView::default()
        };
        for (arguments, is) in
            [(&["po"][..], true), (&["all"], true), (&["jobs"], false), (&["po", "--source", "x"], false)]
        {
            assert_eq!(is_asked(&asked(arguments).unwrap().query, &source), is, "{arguments:?}");
        }
    }

    #[test]
    fn names_are_those_that_kubectl_takes() {
        assert_eq!(name(&view("jobs", "x").object), "job.batch/x");
        let pod = ObjectRef { kind: "Pod".into(), name: "p".into(), ..ObjectRef::default() };
        assert_eq!(name(&pod), "pod/p");
    }

    #[test]
    fn one_document_is_of_one_object() {
        let (a, b) = (view("jobs", "x"), view("other-jobs", "x"));
        assert_eq!(single(std::slice::from_ref(&a)).unwrap().source, "jobs");
        let text = single(&[a, b]).unwrap_err().to_string();
        assert!(text.contains("2 objects") && text.contains("source other-jobs"), "{text}");
        assert!(asked(&["job", "x"]).unwrap().nobody().contains("timeline job/x -n NAMESPACE"));
    }

    #[test]
    fn a_state_of_the_stream_is_chosen_by_what_it_is_about() {
        let object = view("jobs", "x").object;
        for (arguments, fits) in [
            (&["jobs"][..], true),
            (&["jobs.batch", "x", "-n", "a", "--source", "jobs"], true),
            (&["all"], true),
            (&["pods"], false),
            (&["jobs", "y"], false),
            (&["jobs", "-n", "b"], false),
            (&["jobs", "--source", "other"], false),
        ] {
            assert_eq!(concerns(&asked(arguments).unwrap().query, "jobs", &object), fits, "{arguments:?}");
        }
    }
}

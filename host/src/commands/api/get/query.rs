//! The query of `get`, and the layout of its output.

use anyhow::Result;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::status::phase;
use kubewitness_core::story::outcomes;
use kubewitness_core::views::{CauseKind, GoneFilter, ObjectQuery, ObjectView};
use kubewitness_core::{Change, ObjectRef, calendar, kinds};

use super::events;
use crate::cli::{GetOutput, ListArgs, MomentArg, WhichGone, ZoneArg};
use crate::commands::UsageError;
use crate::commands::api::client::PAGE;
use crate::commands::print::{TextTable, age_text};

/// The time at which the objects are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryTime {
    Now,
    /// Ended objects.
    Gone,
    /// Objects that were in a phase.
    InPhase,
    /// Objects that ended badly for a cause.
    Outcome,
    At(u64),
}

/// A query to the API, and the layout of its answer.
pub(super) struct GetQuery {
    pub query: ObjectQuery,
    pub output: GetOutput,
    pub when: QueryTime,
    pub limit: usize,
    pub watch: bool,
    /// As typed.
    pub kind: String,
    every_kind: bool,
}

impl GetQuery {
    /// One query for each kind and each name. The words are those after `get`.
    pub fn queries_of_words(kind: &str, names: &[String], list: &ListArgs) -> Result<Vec<Self>> {
        let questions: Vec<_> = if kind.contains('/') {
            let words = std::iter::once(kind).chain(names.iter().map(String::as_str));
            words.map(|word| Self::of_named(word, list)).collect::<Result<_>>()?
        } else if let Some(named) = names.iter().find(|name| name.contains('/')) {
            return Err(UsageError::error(format!(
                "`{named}` has a kind of its own after the kind `{kind}`: write KIND NAME NAME or KIND/NAME KIND/NAME"
            )));
        } else {
            let of_kind = |kind: &str| match names {
                [] => vec![Self::of_kind(kind, None, list)],
                names => names.iter().map(|name| Self::of_kind(kind, Some(name), list)).collect(),
            };
            kind.split(',').flat_map(of_kind).collect::<Result<_>>()?
        };
        if list.watch && questions.len() > 1 {
            return Err(UsageError::error(
                "-w shows one kind or one object: name one, or `all` for every kind",
            ));
        }
        Ok(questions)
    }

    fn of_named(word: &str, list: &ListArgs) -> Result<Self> {
        match word.split_once('/') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() && !name.contains('/') => {
                Self::of_kind(kind, Some(name), list)
            }
            _ => Err(UsageError::error(format!(
                "`{word}` is not KIND/NAME: write objects such as job/train-7 pod/train-7-x, or KIND NAME NAME"
            ))),
        }
    }

    fn of_kind(kind: &str, name: Option<&str>, list: &ListArgs) -> Result<Self> {
        let every_kind = kind.eq_ignore_ascii_case("all");
        if kind.is_empty() {
            return Err(UsageError::error("no kind was named: write one such as jobs, or all"));
        }
        let time =
            |moment: Option<MomentArg>| moment.map(|moment| calendar::format_rfc3339(moment.as_unix_ms()));
        let at = list.at.map(MomentArg::as_unix_ms);
        if let (Some(since), Some(until)) = (list.since, list.until)
            && since.as_unix_ms() > until.as_unix_ms()
        {
            return Err(UsageError::error(
                "--since is later than --until, so that no time is between them: exchange the two",
            ));
        }
        let query = ObjectQuery {
            source: list.source.clone(),
            kind: Some(kind.to_owned()),
            namespace: list.namespace.clone(),
            name: name.map(str::to_owned),
            label_selector: list.selector.clone(),
            search: list.search.clone(),
            index: list.index.clone(),
            phase: list.phase.clone(),
            was: list.was.clone(),
            cause: list.cause.as_deref().and_then(CauseKind::parse),
            gone: match list.gone {
                None if list.was.is_some() || list.cause.is_some() => GoneFilter::Too,
                None => GoneFilter::No,
                Some(WhichGone::Only) => GoneFilter::Only,
                Some(WhichGone::Too) => GoneFilter::Too,
            },
            since: time(list.since),
            until: time(list.until),
            at: at.map(calendar::format_rfc3339),
            sort: list.sort.clone(),
            details: list.output == GetOutput::Wide || is_of_events(kind),
            ..ObjectQuery::default()
        };
        let when = match (at, list.gone) {
            (Some(ms), _) => QueryTime::At(ms),
            _ if list.was.is_some() => QueryTime::InPhase,
            _ if list.cause.is_some() => QueryTime::Outcome,
            (None, Some(_)) => QueryTime::Gone,
            (None, None) => QueryTime::Now,
        };
        let (output, limit, watch) = (list.output, list.limit, list.watch);
        Ok(Self { query, output, when, limit, watch, kind: kind.to_owned(), every_kind })
    }

    /// As many as a stream begins with.
    pub fn first_page(&self) -> usize {
        self.limit.min(PAGE)
    }

    /// Whether its output is one document instead of a list.
    pub fn is_one(&self) -> bool {
        self.query.name.is_some()
    }

    pub fn nothing_found_text(&self) -> String {
        let name = self.query.name.as_deref().unwrap_or_default();
        let place = self.query.namespace.as_ref().map(|place| format!(" in namespace {place}"));
        let (kind, place) = (&self.kind, place.unwrap_or_default());
        let is = match self.when {
            QueryTime::Now => "is not there".to_owned(),
            QueryTime::Gone => "did not end".to_owned(),
            QueryTime::InPhase => {
                format!("was not {} in this time", self.query.was.as_deref().unwrap_or_default())
            }
            QueryTime::Outcome => {
                format!("did not end by {} in this time", self.query.cause.unwrap_or_default().words())
            }
            QueryTime::At(ms) => format!("was not there at {}", ZoneArg::local_zone().show_time(ms)),
        };
        let namespace = self.query.namespace.as_deref().unwrap_or("NAMESPACE");
        format!(
            "{kind}/{name} {is}{place}, or the filter excludes it, or you may not list it: \
             `kubewitness timeline {kind}/{name} -n {namespace}` shows whether it ever existed"
        )
    }

    pub fn empty_table(&self) -> TextTable {
        if is_of_events(&self.kind) {
            let header = events::table_header(self.when, self.is_wide());
            return events::fit_to_terminal(TextTable::new(&header)).with_whole_cells(self.is_wide());
        }
        let mut header = vec!["NAMESPACE", "NAME", "PHASE", "READY", "ATTEMPT", "REASON"];
        header.extend(match self.when {
            QueryTime::Now => &["CHANGED"][..],
            QueryTime::Gone => &["DELETED"],
            QueryTime::InPhase => &["SINCE", "UNTIL"],
            QueryTime::Outcome => &["CAUSE", "CHANGED"],
            QueryTime::At(_) => &["OBSERVED", "KNOWN"],
        });
        if self.every_kind {
            header.insert(0, "KIND");
        }
        if self.is_wide() {
            if self.shows_causes() {
                header.push("CAUSE");
            }
            header.extend(["AGE", "QUEUED", "RUNNING", "RESTARTS", "SUBMITTER", "PLUGINS"]);
            header.extend(["SOURCE", "VERSION", "EXIT", "OWNER", "UID", "MESSAGE"]);
        }
        TextTable::new(&header).with_spare_columns(&["READY", "ATTEMPT"]).with_whole_cells(self.is_wide())
    }

    /// Whether causes get their own column. They don't if one exists already or if all would be empty. A past
    /// moment has none.
    fn shows_causes(&self) -> bool {
        outcomes::may_have_causes(&self.kind) && !matches!(self.when, QueryTime::Outcome | QueryTime::At(_))
    }

    /// Whether rows have causes: a column of the wide table, or a field of details.
    pub fn has_causes(&self) -> bool {
        self.query.details && self.shows_causes()
    }

    fn is_wide(&self) -> bool {
        self.output == GetOutput::Wide
    }

    pub fn add_row(&self, table: &mut TextTable, view: &ObjectView, change: Change) {
        if is_of_events(&self.kind) {
            return table.push_row(events::table_row(view, self.when, self.is_wide()));
        }
        let (object, status) = (&view.object, &view.status);
        let shown = match change {
            Change::Present | Change::Gone => status.phase.clone(),
            other => format!("{} ({})", status.phase, other.as_str()),
        };
        let ready =
            if status.total > 0 { format!("{}/{}", status.ready, status.total) } else { String::new() };
        let attempt = if status.attempt > 0 { status.attempt.to_string() } else { String::new() };
        let mut row = vec![
            object.namespace.clone(),
            object.name.clone(),
            shown,
            ready,
            attempt,
            shown_reason(view, change),
        ];
        match self.when {
            QueryTime::Now => row.push(age_of_time(&view.observed_at)),
            QueryTime::Gone => {
                row.push(
                    view.ended_at
                        .as_deref()
                        .map(|at| ZoneArg::local_zone().show_text(at))
                        .unwrap_or_default(),
                );
            }
            QueryTime::InPhase => row.extend(in_phase(view)),
            QueryTime::Outcome => row.extend([cause_word(view), age_of_time(&view.observed_at)]),
            QueryTime::At(_) => {
                row.push(ZoneArg::local_zone().show_text(&view.observed_at));
                row.push(view.then.as_ref().map(|then| then.known.clone()).unwrap_or_default());
            }
        }
        if self.every_kind {
            row.insert(0, object.kind.clone());
        }
        if self.is_wide() {
            if self.shows_causes() {
                row.push(cause_word(view));
            }
            row.extend(detail_columns(view));
            row.push(view.source.clone());
            row.push(view.resource_version.clone());
            row.push(status.exit_code.map(|code| code.to_string()).unwrap_or_default());
            row.push(
                view.owner.as_ref().map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default(),
            );
            row.push(object.uid.clone());
            row.push(status.message.clone());
        }
        table.push_row(row);
    }

    pub fn table_of(&self, objects: &[ObjectView]) -> String {
        let mut table = self.empty_table();
        for view in objects {
            let is_deleted = view.ended_at.is_some() && view.status.phase == phase::DELETED;
            self.add_row(&mut table, view, if is_deleted { Change::Gone } else { Change::Present });
        }
        if table.is_empty() { "nothing matches\n".into() } else { table.render() }
    }
}

fn cause_word(view: &ObjectView) -> String {
    view.cause.map(|kind| kind.as_str().to_owned()).unwrap_or_default()
}

/// Since when an object was in the requested phase, and until when.
pub(super) fn in_phase(view: &ObjectView) -> [String; 2] {
    let was = view.was.clone().unwrap_or_default();
    [was.from, was.until].map(|at| at.map(|at| ZoneArg::local_zone().show_text(&at)).unwrap_or_default())
}

/// Columns from the states of an object. A `>` precedes a value for which the known states only give a lower
/// limit.
fn detail_columns(view: &ObjectView) -> [String; 6] {
    let Some(details) = &view.details else { return Default::default() };
    let more = if details.cut { ">" } else { "" };
    let stages = details.plugins.iter().map(|(plugin, how)| format!("{plugin}:{how}"));
    let time =
        |ms: u64| if ms > 0 { format!("{more}{}", age_text(ms as f64 / 1000.0)) } else { String::new() };
    [
        details.created_at.as_deref().map(age_of_time).unwrap_or_default(),
        time(details.queued_ms),
        time(details.running_ms),
        format!("{more}{}", details.restarts),
        details.submitter.clone().unwrap_or_default(),
        stages.collect::<Vec<_>>().join(" "),
    ]
}

fn is_of_events(kind: &str) -> bool {
    kinds::is_kind("", "Event", kind)
}

/// For an ended object, the phase in which it ended and its reason there.
fn shown_reason(view: &ObjectView, change: Change) -> String {
    let reason = &view.status.reason;
    match &view.ended_reason {
        _ if change != Change::Gone || reason.is_empty() => reason.clone(),
        Some(before) if before != reason => format!("was {reason}: {before}"),
        _ => format!("was {reason}"),
    }
}

/// The age of a time; the text itself if it is not a time.
fn age_of_time(at: &str) -> String {
    match calendar::parse_rfc3339_ms(at) {
        Some(ms) => age_text(SystemClock::default().now_ms().saturating_sub(ms) as f64 / 1000.0),
        None => at.to_owned(),
    }
}

/// Whether a state of the live stream matches the query, as far as the stream can tell.
pub(super) fn concerns_query(query: &ObjectQuery, source: &str, object: &ObjectRef) -> bool {
    let kind = |wanted: &String| kinds::is_kind(&object.group, &object.kind, wanted);
    query.source.as_ref().is_none_or(|wanted| wanted == source)
        && query.kind.as_ref().is_none_or(kind)
        && query.namespace.as_ref().is_none_or(|wanted| *wanted == object.namespace)
        && query.name.as_ref().is_none_or(|wanted| *wanted == object.name)
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;
    use kubewitness_core::Status;
    use kubewitness_core::status::StatusRules;
    use kubewitness_core::views::{DetailsView, EventView, ThenView, WasView};

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::api::client::query_parameters;

    pub fn asked(arguments: &[&str]) -> Result<GetQuery> {
        Ok(all_asked(arguments)?.remove(0))
    }

    fn all_asked(arguments: &[&str]) -> Result<Vec<GetQuery>> {
        let line = ["kubewitness", "get"].iter().chain(arguments);
        let Command::Get(args) = Cli::parse_from(line).command else { unreachable!("the command is `get`") };
        GetQuery::queries_of_words(&args.kind, &args.name, &args.list)
    }

    #[test]
    fn several_kinds_and_names_are_several_questions() {
        let queried = |arguments: &[&str]| -> Vec<(String, Option<String>)> {
            let all = all_asked(arguments).unwrap().into_iter();
            all.map(|asked| (asked.query.kind.unwrap(), asked.query.name)).collect()
        };
        let of =
            |kind: &str, name: &str| (kind.to_owned(), Some(name.to_owned()).filter(|it| !it.is_empty()));
        assert_eq!(queried(&["job", "a", "b"]), [of("job", "a"), of("job", "b")]);
        assert_eq!(queried(&["pods,jobs"]), [of("pods", ""), of("jobs", "")]);
        assert_eq!(queried(&["job/a", "pod/b"]), [of("job", "a"), of("pod", "b")]);
        for (wrong, said) in [
            (&["job/a", "b"][..], "`b` is not KIND/NAME"),
            (&["job", "job/a"], "`job/a` has a kind of its own"),
            (&["job", "a", "b", "-w"], "-w shows one"),
            (&["pods,"], "no kind"),
        ] {
            let error = all_asked(wrong).err().expect("it is refused");
            assert!(error.is::<UsageError>() && error.to_string().contains(said), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn a_question_is_put_as_to_kubectl() {
        let asked_for =
            asked(&["po", "-n", "a", "-l", "team=a,!old", "--index", "node=w1", "--phase", "Running"]);
        let parameters = query_parameters(&asked_for.unwrap().query);
        let parameters: Vec<_> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            parameters,
            ["kind=po", "namespace=a", "labelSelector=team=a,!old", "index=node=w1", "phase=Running"]
        );
        for arguments in [&["job", "x"][..], &["job/x"], &["job/x", "-A"]] {
            let query = asked(arguments).unwrap().query;
            assert_eq!((query.kind.as_deref(), query.name.as_deref()), (Some("job"), Some("x")));
        }
        assert_eq!(asked(&["all"]).unwrap().query.kind.as_deref(), Some("all"));
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
    fn a_question_about_another_time_names_it() {
        let asked_for = asked(&["jobs", "--at", "2026-11-24T03:00:00Z", "--search", "llama"]).unwrap();
        assert_eq!(asked_for.when, QueryTime::At(1_795_489_200_000));
        let parameters = query_parameters(&asked_for.query);
        assert_eq!(
            parameters[1..],
            [("search", "llama".to_owned()), ("at", "2026-11-24T03:00:00.000Z".to_owned())],
            "{parameters:?}"
        );
        for (which, value) in [("--gone", "only"), ("--gone=only", "only"), ("--gone=too", "true")] {
            let asked_for = asked(&["jobs", which, "--since", "2026-11-20T00:00:00Z"]).unwrap();
            let parameters = query_parameters(&asked_for.query);
            assert!(
                parameters.contains(&("gone", value.to_owned())) && asked_for.when == QueryTime::Gone,
                "{parameters:?}"
            );
        }
        for wrong in [
            &["--since", "2h"][..],
            &["--gone", "-w"],
            &["--gone", "--at", "2h"],
            &["--at", "2h", "-w"],
            &["--at", "noon"],
            &["--gone=maybe"],
        ] {
            let line = ["kubewitness", "get", "jobs"].iter().chain(wrong);
            assert!(Cli::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_question_about_a_phase_is_of_what_is_gone_too() {
        let asked_for = asked(&["jobs", "--was", "preempted", "--since", "2026-11-20T00:00:00Z"]).unwrap();
        let parameters = query_parameters(&asked_for.query);
        for pair in [("was", "preempted"), ("gone", "true"), ("since", "2026-11-20T00:00:00.000Z")] {
            assert!(parameters.contains(&(pair.0, pair.1.to_owned())), "{pair:?}: {parameters:?}");
        }
        let only = asked(&["jobs", "--was", "Failed", "--gone"]).unwrap();
        assert!(query_parameters(&only.query).contains(&("gone", "only".to_owned())));
        let was = WasView { from: Some("not a time".into()), until: None };
        let text = asked_for.table_of(&[ObjectView { was: Some(was), ..view("jobs", "x") }]);
        assert!(text.contains("SINCE        UNTIL\n") && text.contains("not a time"), "{text}");
        for wrong in [
            &["--was", "Asleep"][..],
            &["--was", "Failed", "-w"],
            &["--was", "Failed", "--at", "2h"],
            &["--was", "Failed", "--sort", "name"],
            &["--was", "Failed", "--index", "node=a"],
        ] {
            let line = ["kubewitness", "get", "jobs"].iter().chain(wrong);
            assert!(Cli::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_question_for_a_cause_is_of_what_is_gone_too_and_each_row_says_it() {
        let asked_for =
            asked(&["jobs", "--cause", "out-of-memory", "--since", "2026-11-20T00:00:00Z"]).unwrap();
        let parameters = query_parameters(&asked_for.query);
        for pair in [("cause", "out-of-memory"), ("gone", "true"), ("since", "2026-11-20T00:00:00.000Z")] {
            assert!(parameters.contains(&(pair.0, pair.1.to_owned())), "{pair:?}: {parameters:?}");
        }
        let ended = ObjectView { cause: Some(CauseKind::OutOfMemory), ..view("jobs", "x") };
        let text = asked_for.table_of(std::slice::from_ref(&ended));
        assert!(
            text.contains("CAUSE           CHANGED\n") && text.contains("out-of-memory   not a time"),
            "{text}"
        );
        let wide = asked(&["jobs", "-o", "wide"]).unwrap().table_of(std::slice::from_ref(&ended));
        assert!(wide.contains(" CAUSE ") && wide.contains(" out-of-memory "), "{wide}");
        let deployments = asked(&["deploy", "-o", "wide"]).unwrap().table_of(&[ended]);
        assert!(!deployments.contains(" CAUSE "), "a column that would be empty: {deployments}");
        for wrong in [
            &["--cause", "oom"][..],
            &["--cause", "signal", "-w"],
            &["--cause", "signal", "--was", "Failed"],
            &["--cause", "signal", "--sort", "name"],
        ] {
            let line = ["kubewitness", "get", "jobs"].iter().chain(wrong);
            assert!(Cli::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_row_of_another_time_says_when_and_how_well_it_is_known() {
        let then = ThenView { known: "missing".into(), ..ThenView::default() };
        let seen = ObjectView { then: Some(then), ..view("jobs", "x") };
        let text = asked(&["jobs", "--at", "2h"]).unwrap().table_of(&[seen]);
        assert!(text.contains("OBSERVED     KNOWN\n") && text.contains("not a time   missing\n"), "{text}");
        let ended = ObjectView {
            ended_at: Some("not a time either".into()),
            status: StatusRules::deleted_status(&view("jobs", "x").status),
            ..view("jobs", "x")
        };
        let failed = ObjectView { ended_reason: Some("BackoffLimitExceeded".into()), ..ended.clone() };
        let text = asked(&["jobs", "--gone"]).unwrap().table_of(&[failed]);
        assert!(text.contains("was Running: BackoffLimitExceeded"), "{text}");
        let text = asked(&["jobs", "--gone"]).unwrap().table_of(&[ended, view("jobs", "y")]);
        assert!(text.contains("was Running   not a time either\n") && text.contains("Running"), "{text}");
        assert!(
            asked(&["job/x", "--at", "2h"]).unwrap().nothing_found_text().contains("was not there at 20")
        );
        assert!(asked(&["job", "x"]).unwrap().nothing_found_text().contains("timeline job/x -n NAMESPACE"));
        assert!(asked(&["job/x", "--gone"]).unwrap().is_one());
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
        let details = DetailsView {
            created_at: Some("not a time".into()),
            queued_ms: 240_000,
            running_ms: 7_800_000,
            restarts: 2,
            submitter: Some("ada@example.com".into()),
            cut: true,
            plugins: [("audit".to_owned(), "delivered".to_owned()), ("sql".into(), "dead".into())].into(),
            event: None,
        };
        let detailed = ObjectView { details: Some(details), ..view("jobs", "x") };
        let text = asked(&["jobs", "-o", "wide"]).unwrap().table_of(&[detailed]);
        let columns = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(columns.contains("AGE QUEUED RUNNING RESTARTS SUBMITTER PLUGINS"), "{text}");
        assert!(
            columns.contains("not a time >4 m >2 h >2 ada@example.com audit:delivered sql:dead"),
            "{text}"
        );
        assert_eq!(asked(&["jobs"]).unwrap().table_of(&[]), "nothing matches\n");
        let event = EventView {
            kind: "Warning".into(),
            reason: "BackOff".into(),
            message: "out of tea".into(),
            count: 3,
            about: ObjectRef { kind: "Pod".into(), name: "p".into(), ..ObjectRef::default() },
            ..EventView::default()
        };
        let details = Some(DetailsView { event: Some(event), ..DetailsView::default() });
        let text = asked(&["ev"]).unwrap();
        assert!(text.query.details, "what an Event tells is a detail");
        let text = text.table_of(&[ObjectView { details, ..view("events", "x") }]);
        let columns = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(columns.starts_with("NAMESPACE LAST SEEN TYPE REASON OBJECT MESSAGE a "), "{text}");
        assert!(
            columns.contains("Warning BackOff x3 over") && columns.ends_with("pod/p out of tea"),
            "{text}"
        );
        let unknown = asked(&["ev", "-w"]).unwrap();
        assert!(unknown.query.details && unknown.table_of(&[view("events", "x")]).contains("event/x"));
        let event =
            EventView { kind: "Warning".into(), message: "out of tea".into(), ..EventView::default() };
        let details = Some(DetailsView { event: Some(event), ..DetailsView::default() });
        let wide = asked(&["ev", "-o", "wide"]).unwrap();
        let text = wide.table_of(&[ObjectView { details, ..view("events", "x") }]);
        assert!(text.contains("out of tea") && text.contains("FROM"), "{text}");
    }

    #[test]
    fn what_is_gone_is_not_in_the_phase_in_which_it_went() {
        let mut gone = view("jobs", "x");
        gone.status = StatusRules::deleted_status(&Status { phase: "Pending".into(), ..gone.status });
        let asked = asked(&["jobs"]).unwrap();
        let mut table = asked.empty_table();
        asked.add_row(&mut table, &gone, Change::Gone);
        let text = table.render();
        assert!(text.contains("Deleted") && text.contains("was Pending"), "{text}");
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
            assert_eq!(
                concerns_query(&asked(arguments).unwrap().query, "jobs", &object),
                fits,
                "{arguments:?}"
            );
        }
    }
}

//! `get -w`: prints the present objects, then each change, until Ctrl-C or until its reader leaves.
//!
//! The stream opens before the list is requested, so no change falls between them. A change that the list has
//! already shown is recognized by its position. The stream neither evaluates selectors and indexes nor has
//! details: if one of these is requested, each changed object is looked up again.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Result;
use kubewitness_core::story::outcomes;
use kubewitness_core::views::{GoneFilter, ObjectQuery, ObjectView};
use kubewitness_core::{Change, ObjectRef, Seq, State};
use serde::Serialize;

use super::query::{GetQuery, concerns_query};
use super::{list_objects, render_document, warn_of_blind_sources};
use crate::cli::GetOutput;
use crate::commands::CommandResult;
use crate::commands::api::client::{ApiClient, is_forbidden, query_parameters};
use crate::commands::api::live::{LiveStates, StreamEvent, once_open};
use crate::commands::api::object_name::name;
use crate::commands::print::{self, TextTable, clean_line, escaped_json, note};

/// How many rows determine the widths of the next ones' columns; a watch may run for days.
const LAID_OUT_BY: usize = 200;

/// The most objects with one name that are searched for the one of a state.
const OF_A_NAME: usize = 100;

/// The most ended objects that are looked up again for their causes: the newest ones.
const UNEXPLAINED: usize = 32;

/// How often each of them is looked up. An object that has changed since, or whose cause the person may not
/// see, never gets an answer.
const TRIES: u32 = 5;

/// The shortest time between two lookups. In a burst of failures the stream announces causes again and again.
const TRY_EVERY: Duration = Duration::from_millis(outcomes::SETTLE_MS);

/// One change for programs: the object as a list shows it, and the change.
#[derive(Serialize)]
struct FollowEvent<'a> {
    change: Change,
    #[serde(flatten)]
    view: &'a ObjectView,
}

pub(super) async fn follow_live(client: &ApiClient, asked: &GetQuery) -> CommandResult {
    print::until_reader_leaves(follow_stream(client, asked)).await
}

async fn follow_stream(client: &ApiClient, asked: &GetQuery) -> CommandResult {
    let mut live = once_open(async || LiveStates::open(client, None).await).await?;
    let mut shown = ShownObject::new(client, asked);
    shown.show_first().await?;
    warn_of_blind_sources(client, asked).await;
    loop {
        match live.next().await? {
            StreamEvent::State(state, _) => shown.show_changed(&state).await?,
            StreamEvent::Causes => shown.show_explained().await?,
            // The rows belong to another history, and the stream lacks everything before its position.
            StreamEvent::Replaced(_) => {
                note!("kubewitness: the journal was replaced: what it has now is shown");
                shown.rows.clear();
                shown.unexplained.clear();
                once_open(async || shown.show_first().await).await?;
            }
        }
    }
}

// ---- the rows on the screen ------------------------------------------------------------

struct ShownObject<'a> {
    client: &'a ApiClient,
    asked: &'a GetQuery,
    table: TextTable,
    /// By uid, the position of the state that is shown.
    rows: HashMap<String, Seq>,
    /// Shown ends whose causes are unknown, oldest first.
    unexplained: VecDeque<UnexplainedEnd>,
    /// Whether more ends than that lack a cause. This is reported once.
    has_left_out: bool,
}

/// A shown end whose cause is unknown.
struct UnexplainedEnd {
    source: String,
    object: ObjectRef,
    seq: Seq,
    change: Change,
    tries: u32,
    tried: Option<Instant>,
}

impl UnexplainedEnd {
    fn new(view: &ObjectView, change: Change) -> Self {
        let (source, object) = (view.source.clone(), view.object.clone());
        Self { source, object, seq: view.seq, change, tries: 0, tried: None }
    }

    /// Whether it may be looked up again after a lookup without a cause.
    fn may_try_again(&mut self) -> bool {
        if self.tried.is_none_or(|tried| tried.elapsed() >= TRY_EVERY) {
            self.tried = Some(Instant::now());
            self.tries += 1;
        }
        self.tries < TRIES
    }
}

impl<'a> ShownObject<'a> {
    fn new(client: &'a ApiClient, asked: &'a GetQuery) -> Self {
        Self {
            client,
            asked,
            table: asked.empty_table(),
            rows: HashMap::new(),
            unexplained: VecDeque::new(),
            has_left_out: false,
        }
    }

    async fn show_first(&mut self) -> Result<()> {
        let mut objects = match list_objects(self.client, &self.asked.query, self.asked.first_page()).await {
            // The person may have rights in the namespace, but nothing was witnessed there yet.
            Err(error) if is_forbidden(&error) && self.asked.query.namespace.is_none() => Vec::new(),
            first => first?.rows,
        };
        objects.sort_by_key(|view| view.seq);
        for view in objects.iter().filter(|view| has_ended_badly(view)) {
            self.await_cause(view, Change::Present);
        }
        if matches!(self.asked.output, GetOutput::Table | GetOutput::Wide) {
            for view in &objects {
                self.asked.add_row(&mut self.table, view, Change::Present);
                self.rows.insert(view.object.uid.clone(), view.seq);
            }
            return print::line_of_many(&self.table.render());
        }
        for view in &objects {
            self.show_object(view, Change::Present).await?;
        }
        Ok(())
    }

    async fn show_changed(&mut self, state: &State) -> Result<()> {
        let (query, uid) = (&self.asked.query, state.object.uid.as_str());
        let known = self.rows.get(uid).copied();
        if known.is_some_and(|seq| seq >= state.seq) || !concerns_query(query, &state.source, &state.object) {
            return Ok(());
        }
        let over = matches!(state.change, Change::Gone | Change::Left);
        let (phase, selects) = (query.phase.as_deref(), needs_lookup(query));
        let fits = phase.is_none_or(|phase| state.status.phase.eq_ignore_ascii_case(phase));
        // The end of an object that was not shown here is printed only if nothing is filtered.
        let is_shown = !over || known.is_some() || !selects && phase.is_none();
        let found = match is_shown && query.details || selects && !over {
            true => self.look_up_object(&state.source, &state.object, over).await?,
            false => None,
        };
        let matches = match over {
            // Its end matters if it was shown before. The labels of other ended objects can't be looked up
            // any more.
            true => known.is_some() || !selects && phase.is_none(),
            false => fits && (!selects || found.is_some()),
        };
        // An object that no longer matches is shown once more in its new form.
        if !matches && known.is_none() {
            return Ok(());
        }
        let (details, cause) = found.map_or((None, None), |view| (view.details, view.cause));
        let view = ObjectView { details, cause, ..ObjectView::from(state) };
        self.show_object(&view, state.change).await?;
        let known = self.unexplained.len();
        self.unexplained.retain(|other| other.object.uid != uid);
        let was_open = self.unexplained.len() < known;
        if outcomes::is_bad_end(state) || (over && was_open) {
            self.await_cause(&view, state.change);
        }
        if over || !matches {
            self.rows.remove(uid);
        }
        Ok(())
    }

    /// Remembers a shown end until its cause is found.
    fn await_cause(&mut self, view: &ObjectView, change: Change) {
        if view.cause.is_some() || !self.asked.has_causes() {
            return;
        }
        self.unexplained.push_back(UnexplainedEnd::new(view, change));
        if self.unexplained.len() <= UNEXPLAINED {
            return;
        }
        self.unexplained.pop_front();
        if !std::mem::replace(&mut self.has_left_out, true) {
            note!(
                "kubewitness: more than {UNEXPLAINED} rows wait for their causes: those of older rows are not \
                 shown, and `kubewitness get` without `-w` shows them"
            );
        }
    }

    /// Shows ended objects again whose causes were found meanwhile.
    async fn show_explained(&mut self) -> Result<()> {
        for mut end in std::mem::take(&mut self.unexplained) {
            let over = end.change == Change::Gone;
            let found = self.look_up_object(&end.source, &end.object, over).await?;
            match found.filter(|view| view.cause.is_some() && view.seq == end.seq) {
                Some(view) => {
                    // An object that no longer matches the filter is not shown again.
                    let was_shown = self.rows.contains_key(&view.object.uid);
                    self.show_object(&view, end.change).await?;
                    if !was_shown {
                        self.rows.remove(&view.object.uid);
                    }
                }
                None if end.may_try_again() => self.unexplained.push_back(end),
                None => {}
            }
        }
        Ok(())
    }

    /// The object of a state, if it matches, with the details that the stream lacks.
    async fn look_up_object(
        &self,
        source: &str,
        object: &ObjectRef,
        over: bool,
    ) -> Result<Option<ObjectView>> {
        let asked = ObjectQuery {
            source: Some(source.to_owned()),
            namespace: Some(object.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(object.name.clone()),
            // It may be in another phase by now.
            phase: None,
            gone: if over { GoneFilter::Only } else { GoneFilter::No },
            // Ended objects have no index, and the newest end is the relevant one.
            index: self.asked.query.index.clone().filter(|_| !over),
            limit: Some(if over { 1 } else { OF_A_NAME }),
            ..self.asked.query.clone()
        };
        match self.client.get::<Vec<ObjectView>>("api/v1/objects", &query_parameters(&asked)).await {
            Ok(found) => Ok(found.into_iter().find(|view| view.object.uid == object.uid)),
            // Without details the row is still correct, and the stream survives a restart of the controller.
            Err(error) if !needs_lookup(&self.asked.query) => {
                note!("kubewitness: details of {} are not known: {error:#}", clean_line(&name(object)));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn show_object(&mut self, view: &ObjectView, change: Change) -> Result<()> {
        self.rows.insert(view.object.uid.clone(), view.seq);
        let text = match self.asked.output {
            GetOutput::Table | GetOutput::Wide => {
                let shown = self.table.len();
                self.asked.add_row(&mut self.table, view, change);
                let text = self.table.render_from(shown);
                self.table.keep_newest(LAID_OUT_BY);
                text
            }
            GetOutput::Name => format!("{}\n", clean_line(&name(&view.object))),
            GetOutput::Json | GetOutput::Yaml if self.asked.is_one() && change == Change::Present => {
                let document = render_document(self.client, view.seq, self.asked.output).await?;
                if self.asked.output == GetOutput::Yaml { format!("---\n{document}") } else { document }
            }
            GetOutput::Json => {
                format!("{}\n", escaped_json(&serde_json::to_string(&FollowEvent { change, view })?))
            }
            GetOutput::Yaml => format!("---\n{}", print::yaml(&FollowEvent { change, view })?),
        };
        print::line_of_many(&text)
    }
}

/// Whether the object of a row has failed, so that it has a cause or will get one.
fn has_ended_badly(view: &ObjectView) -> bool {
    let status = &view.status;
    view.ended_at.is_none()
        && status.terminal
        && outcomes::is_bad_phase(&status.phase)
        && !outcomes::is_part(&view.object)
}

/// Whether only a lookup shows if an object matches.
fn needs_lookup(query: &ObjectQuery) -> bool {
    query.label_selector.is_some() || query.index.is_some() || query.search.is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use clap::Parser;
    use kubewitness_core::Status;
    use kubewitness_core::views::{CauseKind, DetailsView};

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::api::testing;

    #[tokio::test]
    async fn the_row_of_a_failed_job_is_shown_once_more_when_its_cause_is_found() {
        let is_found = Arc::new(AtomicBool::new(false));
        let answer = is_found.clone();
        let client = testing::client(move |_| {
            let cause = answer.load(Ordering::Relaxed).then_some(CauseKind::OutOfMemory);
            let object = ObjectRef { uid: "u".into(), ..ObjectRef::default() };
            let details = Some(DetailsView::default());
            serde_json::to_value([ObjectView { object, seq: 7, cause, details, ..ObjectView::default() }])
                .unwrap()
        })
        .await;
        let line = ["kubewitness", "get", "jobs", "-w", "-o", "wide"];
        let Command::Get(args) = Cli::parse_from(line).command else { unreachable!("the command is `get`") };
        let asked = GetQuery::queries_of_words(&args.kind, &[], &args.list).unwrap().remove(0);
        let mut shown = ShownObject::new(&client, &asked);
        let status = Status { phase: "Failed".into(), terminal: true, ..Status::default() };
        let failed = State { status: Arc::new(status), ..testing::state(7, Change::Present) };
        shown.show_changed(&failed).await.unwrap();
        shown.show_explained().await.unwrap();
        // With the header.
        assert_eq!(
            (shown.table.len(), shown.unexplained.len()),
            (2, 1),
            "the cause of another one was found"
        );
        is_found.store(true, Ordering::Relaxed);
        shown.show_explained().await.unwrap();
        assert_eq!((shown.table.len(), shown.unexplained.len()), (3, 0));
        assert!(shown.table.render().contains("out-of-memory"), "{}", shown.table.render());
        shown.show_explained().await.unwrap();
        assert_eq!(shown.table.len(), 3, "once");
    }

    #[tokio::test]
    async fn a_row_of_the_first_list_waits_for_its_cause_as_others_do_and_not_for_ever() {
        let client = testing::client(|_| {
            let object = ObjectRef {
                group: "batch".into(),
                kind: "Job".into(),
                uid: "u".into(),
                ..ObjectRef::default()
            };
            let status = Status { phase: "Failed".into(), terminal: true, ..Status::default() };
            let source = "jobs".to_owned();
            serde_json::to_value([ObjectView { source, object, status, seq: 7, ..ObjectView::default() }])
                .unwrap()
        })
        .await;
        let line = ["kubewitness", "get", "jobs", "-w", "-o", "wide"];
        let Command::Get(args) = Cli::parse_from(line).command else { unreachable!("the command is `get`") };
        let asked = GetQuery::queries_of_words(&args.kind, &[], &args.list).unwrap().remove(0);
        let mut shown = ShownObject::new(&client, &asked);
        shown.show_first().await.unwrap();
        assert_eq!(shown.unexplained.len(), 1);
        for _ in 0..TRIES * 2 {
            shown.show_explained().await.unwrap();
        }
        assert_eq!(shown.unexplained.len(), 1, "a burst of news counts once");
        for _ in 1..TRIES {
            assert_eq!(shown.unexplained.len(), 1);
            shown.unexplained[0].tried = None;
            shown.show_explained().await.unwrap();
        }
        assert!(shown.unexplained.is_empty());
        assert_eq!(shown.rows.get("u"), Some(&7));
    }

    #[tokio::test]
    async fn a_wide_row_of_a_change_has_its_details() {
        let client = testing::client(|asked| {
            let all = ["details=true", "name=x", "namespace=a", "gone=only"];
            assert!(all.iter().all(|part| asked.contains(part)) && !asked.contains("phase"), "{asked}");
            let view = |uid: &str, restarts| ObjectView {
                object: ObjectRef { uid: uid.into(), ..ObjectRef::default() },
                details: Some(DetailsView { restarts, ..DetailsView::default() }),
                ..ObjectView::default()
            };
            serde_json::to_value([view("earlier", 1), view("u", 2)]).unwrap()
        });
        let line = ["kubewitness", "get", "jobs", "-w", "-o", "wide", "--phase", "Running"];
        let Command::Get(args) = Cli::parse_from(line).command else { unreachable!("the command is `get`") };
        let asked = GetQuery::queries_of_words(&args.kind, &[], &args.list).unwrap().remove(0);
        let client = client.await;
        let shown = ShownObject::new(&client, &asked);
        let state = testing::state(7, Change::Gone);
        let found = shown.look_up_object(&state.source, &state.object, true).await.unwrap();
        assert_eq!(found.and_then(|view| view.details).map(|details| details.restarts), Some(2));
    }
}

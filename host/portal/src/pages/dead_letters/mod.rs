//! The page of dead letters, with the form that replays or drops them. It shows no document, and changes only
//! dead letters.

mod changed_choice;
mod confirmation;
mod filter;
mod section;

use std::collections::BTreeSet;

use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::views::{LetterRecordView, RecordQuery, ReplayRequest, ViewError};
use maud::{Markup, html};

use self::changed_choice::ChangedChoice;
use self::confirmation::DropConfirmation;
use self::filter::LetterFilter;
use self::section::{LetterBudget, LetterRights, LetterSection};
use super::parts::{at_text, expect_own_page, grouped_figure, plural_word, render_empty};
use crate::access::{GuardedAct, PortalViewer};
use crate::answer::frame::PageContent;
use crate::answer::params::{self, QueryParams};
use crate::answer::{Problem, ProblemPage, codes};
use crate::api::authorise_replay;
use crate::app::PortalApp;
use crate::scope::ViewerVisibility;

/// How many plugins a page shows by default.
const PLUGINS: usize = 20;
/// How many records a page shows: each has the positions of its letters.
const RECORDS: usize = 100;

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    const PARAMETERS: [&str; 9] =
        ["plugin", "namespace", "error", "since", "until", "replayed", "dropped", "tried", "cursor"];
    let params = QueryParams::read(&uri, &PARAMETERS)?;
    let asked = LetterFilter::read(&params);
    let plugin = asked.plugin_name();
    let done = outcome_of_form(&params)?;
    let from: Option<LetterCursor> = params.parse_cursor("cursor")?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let is_operators = visible.is_operators().await?;
    let names = match plugin {
        Some(name) => vec![name.to_owned()],
        None => visible.plugins_with_letters(PLUGINS + 1).await?,
    };
    let (mut sections, mut untold) = (Vec::new(), names.len() > PLUGINS);
    let mut budget = LetterBudget::of(&visible);
    for name in names.into_iter().take(PLUGINS) {
        if budget.is_spent() {
            untold = true;
            break;
        }
        let section = LetterSection::read(&visible, &asked, name, from.as_ref(), &mut budget).await?;
        // The name of a plugin is shown to operators, and to people who see a letter of it.
        match section.seen > 0 || is_operators || plugin.is_some() {
            true => sections.push(section),
            false => untold |= section.is_cut,
        }
    }
    let seen: u64 = sections.iter().map(|section| section.seen).sum();
    let unseen = match is_operators && !visible.is_whole() {
        true => {
            let all = visible.recent_status().await?.plugins;
            let of_those = all.iter().filter(|view| plugin.is_none_or(|name| name == view.name));
            of_those.map(|view| view.dead).sum::<u64>().saturating_sub(seen)
        }
        false => 0,
    };
    let records = match is_operators {
        true => {
            let query = RecordQuery { plugin: plugin.map(str::to_owned), before: None, limit: RECORDS };
            app.views.letter_records(&query).await?
        }
        false => Vec::new(),
    };
    let plugins: BTreeSet<_> = sections.iter().map(|section| section.name.clone()).collect();
    let is_cut = untold || sections.iter().any(|section| section.is_cut);
    let (replaying, dropped) = sections
        .iter()
        .fold((0, 0), |(replaying, dropped), one| (replaying + one.replaying, dropped + one.dropped));
    let mut shown = Vec::new();
    for section in sections.iter().filter(|section| section.has_something()) {
        shown.push(section.render_section(LetterRights::of(&viewer, &section.name).await?, &asked));
    }
    let content = html! {
        div.head { h1 { "Dead letters" } (asked.render_form(&plugins)) }
        @if let Some(text) = done { p.done role="status" { (text) } }
        // The script says there which of the chosen letters are gone.
        div #gone-letters role="status" data-own {}
        (render_replays_under_way(replaying, is_cut))
        @if shown.is_empty() { (render_nothing(&asked, is_operators, unseen)) }
        @for section in &shown { (section) }
        @if untold {
            p.hint {
                "Not every dead letter was looked at for this page. " code { "kubewitness deadletters list" } " looks at all."
            }
        }
        @if dropped > 0 {
            p.hint {
                @if sections.iter().any(|section| section.has_more_dropped) { "At least " } (grouped_figure(dropped)) " " (plural_word(dropped, "state was", "states were"))
                " dropped: " (plural_word(dropped, "it stays", "they stay")) " counted as dead."
            }
        }
        @if !records.is_empty() { (done_before(&records)) }
    };
    Ok(PageContent::new("Dead letters", "/deadletters", content).with_live_figures())
}

/// The result of the form before this page, from its redirect.
fn outcome_of_form(params: &QueryParams) -> Result<Option<String>, Problem> {
    if let Some(count) = params.optional_number("replayed")? {
        let noun = plural_word(count, "state", "states");
        return Ok(Some(format!("The replay of {} {noun} has begun.", grouped_figure(count))));
    }
    if let Some(count) = params.optional_number("dropped")? {
        let noun = plural_word(count, "state was", "states were");
        return Ok(Some(format!("{} {noun} dropped, for good.", grouped_figure(count))));
    }
    let tried = params.optional_number("tried")?;
    Ok(tried
        .map(|count| format!("{} would be replayed or dropped; nothing was changed.", grouped_figure(count))))
}

/// The progress of replays: letters that are being replayed and not finished. Its number falls every second, so
/// no screen reader is made to read each.
fn render_replays_under_way(count: u64, is_cut: bool) -> Markup {
    html! {
        @if count > 0 {
            p.notice data-key="replaying" {
                @if is_cut { "At least " } (grouped_figure(count)) " " (plural_word(count, "state is", "states are")) " being replayed. What fails again is parked again."
            }
        }
    }
}

/// Lists the acts of people on letters that may not exist any more.
fn done_before(records: &[LetterRecordView]) -> Markup {
    html! {
        section data-key="records" aria-labelledby="records" {
            h2 id="records" { "What was done" }
            div.scroll tabindex="0" role="group" aria-label="What was done" { table.dense.folds {
                caption { @if records.len() < RECORDS { "The newest first" } @else { "The newest " (grouped_figure(RECORDS as u64)) } }
                thead { tr {
                    th scope="col" { "When" }
                    th scope="col" { "What" }
                    th scope="col" { "Plugin" }
                    th.num scope="col" { "States" }
                    th scope="col" { "Who" }
                    th.wide scope="col" { "Why" }
                } }
                tbody { @for record in records { tr data-key={ "record-" (record.number) } {
                    td.when data-label="When" { (at_text(&record.at)) }
                    td.keep data-label="What" { (record.what) }
                    td.keep data-label="Plugin" { (record.plugin) }
                    // A pause and a resume concern no states.
                    td.num data-label="States" { @if !record.seqs.is_empty() { (grouped_figure(record.seqs.len() as u64)) } }
                    td.keep data-label="Who" { (record.who) }
                    td.wide data-label="Why" { span.message title=(record.why) { (record.why) } }
                } } }
            } }
        }
    }
}

fn render_nothing(asked: &LetterFilter, is_operators: bool, unseen: u64) -> Markup {
    let none_to_see = |title: &str| {
        render_empty(title, &html! { "A dead letter is shown to people who may list its object." })
    };
    match asked.plugin_name() {
        _ if unseen > 0 && !asked.narrows_letters() => none_to_see(&format!(
            "{} {} that you may not see",
            grouped_figure(unseen),
            plural_word(unseen, "dead letter", "dead letters")
        )),
        _ if !is_operators || unseen > 0 => none_to_see("No dead letters that you may see"),
        _ if asked.narrows_letters() => render_empty(
            "Nothing matches",
            &html! { "No dead letter fits the filter. " a href="/deadletters" { "Show all" } "." },
        ),
        Some(name) => render_empty(
            "Nothing matches",
            &html! {
                "The plugin " b { (name) } " has no dead letters. " a href="/deadletters" { "Show those of all plugins" } "."
            },
        ),
        None => render_empty(
            "No dead letters",
            &html! {
                "A state that a plugin rejects, or that fails after its last try, is kept here until it is replayed."
            },
        ),
    }
}

pub(super) async fn post_replay(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    headers: HeaderMap,
    form: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    expect_own_page(&headers)?;
    let Form(fields) = form?;
    let FormRequest { mut request, drops, asked, on_page } = form_request(fields)?;
    let act = if drops { GuardedAct::Drop } else { GuardedAct::Replay };
    // Without a selection all of them are affected: they are counted, and the person confirms the number.
    let is_unconfirmed = request.is_unconfirmed();
    request.dry_run |= is_unconfirmed;
    let request = authorise_replay(&viewer, act, request).await?;
    let done = match drops {
        true => app.views.drop_letters(&request).await.map(|view| ("dropped", view.dropped)),
        false => app.views.replay_letters(&request).await.map(|view| ("replayed", view.replayed)),
    };
    let (word, count) = match done {
        Err(error @ (ViewError::Changed { .. } | ViewError::NotFound { .. })) if !request.seqs.is_empty() => {
            let visible = ViewerVisibility::new(&app, &viewer);
            let choice = ChangedChoice::read(&visible, &request, drops, &asked).await?;
            // If nothing is gone, the request was refused for another reason: the plugin may be gone.
            return if choice.has_changed() { Ok(choice.refusal()) } else { Err(error.into()) };
        }
        done => done?,
    };
    if is_unconfirmed && count > 0 {
        let signs = viewer.name().is_none();
        return Ok(DropConfirmation { request: &request, drops, asked: &asked, count, on_page, signs }
            .confirmation_page()
            .into_response());
    }
    let word = if request.dry_run { "tried" } else { word };
    Ok(Redirect::to(&asked.address_with(word, count)).into_response())
}

/// A choice is for as many letters as the person saw chosen. If the script's count is not that of the
/// positions, then positions got lost, and without one the request would be for all letters of the plugin.
fn confirm_choice(request: &mut ReplayRequest, seen: Option<u64>) -> Result<(), Problem> {
    request.seqs.sort_unstable();
    request.seqs.dedup();
    let count = request.seqs.len() as u64;
    if let Some(seen) = seen.filter(|seen| *seen != count) {
        let message = format!(
            "Nothing was changed: the page showed {seen} chosen dead letters, and its form names {count}."
        );
        let hint = "Go back to the dead letters, and choose them again.";
        return Err(Problem::with_code(codes::CHANGED, message, hint));
    }
    if count > 0 {
        request.exactly = Some(count);
    }
    Ok(())
}

/// The request of a form of the page.
struct FormRequest {
    request: ReplayRequest,
    drops: bool,
    /// The filter of the page from which it was sent.
    asked: LetterFilter,
    /// The letters on the page from which it was sent.
    on_page: u64,
}

fn form_request(fields: Vec<(String, String)>) -> Result<FormRequest, Problem> {
    let (mut request, mut drops) = (ReplayRequest { who: "portal".into(), ..Default::default() }, false);
    let (mut asked, mut on_page, mut chosen) = (LetterFilter::default(), 0, None);
    for (name, value) in fields {
        match name.as_str() {
            name if asked.take(name, &value) => {}
            "reason" => request.reason = value.trim().to_owned(),
            "who" if value.trim().is_empty() => {}
            "who" => request.who = value.trim().to_owned(),
            "dry_run" => request.dry_run = value == "true",
            "drop" => drops = value == "true",
            "seq" => request.seqs.push(params::parse_number("seq", &value)?),
            "exactly" => request.exactly = Some(params::parse_number("exactly", value.trim())?),
            "chosen" => chosen = Some(params::parse_number("chosen", &value)?),
            "on_page" => on_page = params::parse_number("on_page", &value)?,
            _ => {
                let hint = "It has plugin, namespace, error, since, until, seq, chosen, exactly, on_page, reason, who, \
                            dry_run and drop.";
                return Err(Problem::invalid_request(format!("`{name}` is no field of this form."), hint));
            }
        }
    }
    confirm_choice(&mut request, chosen)?;
    let of = asked.replay_request();
    let request = ReplayRequest {
        plugin: of.plugin,
        namespace: of.namespace,
        error: of.error,
        since: of.since,
        until: of.until,
        ..request
    };
    Ok(FormRequest { request, drops, asked, on_page })
}

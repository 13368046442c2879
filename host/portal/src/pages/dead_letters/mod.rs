//! The page of dead letters, with the form that replays or drops them. It shows no document, and changes nothing
//! but dead letters.

mod filter;

use std::collections::{BTreeMap, BTreeSet};

use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use kubewitness_core::Seq;
use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::views::{DeadLetterView, LetterRecordView, ReplayRequest};
use maud::{Markup, html};

use self::filter::LetterFilter;
use super::parts::{ROWS, at, at_text, badge, empty, expect_own_page, figure, object_link, pages, plural};
use crate::access::{Act, Viewer};
use crate::answer::frame::Page;
use crate::answer::params::{self, Params};
use crate::answer::{Problem, Shown};
use crate::api::{REASON_BYTES, WHO_BYTES, authorised};
use crate::app::App;
use crate::scope::Visibility;

pub(super) async fn page(State(app): State<App>, viewer: Viewer, uri: Uri) -> Result<Page, Shown> {
    const PARAMETERS: [&str; 9] =
        ["plugin", "namespace", "error", "since", "until", "replayed", "dropped", "tried", "cursor"];
    let params = Params::read(&uri, &PARAMETERS)?;
    let asked = LetterFilter::read(&params);
    let plugin = asked.plugin();
    let done = outcome(&params)?;
    let from: Option<LetterCursor> = params.cursor("cursor")?;
    let visible = Visibility::new(&app, &viewer);
    let mut letters = visible.all_letters(plugin).await?;
    let plugins: BTreeSet<_> = letters.iter().map(|view| view.letter.plugin.clone()).collect();
    let is_operators = visible.is_operators().await?;
    let unseen = match is_operators && !visible.is_whole() {
        true => {
            let all = visible.status().await?.plugins;
            let of_those = all.iter().filter(|view| plugin.is_none_or(|name| name == view.name));
            of_those.map(|view| view.dead).sum::<u64>().saturating_sub(letters.len() as u64)
        }
        false => 0,
    };
    asked.keep(&mut letters)?;
    let records = match is_operators {
        true => app.views.letter_records(plugin).await?,
        false => Vec::new(),
    };
    let (dropped, letters): (Vec<_>, Vec<_>) = letters.into_iter().partition(|view| view.letter.dropped);
    let mut by_plugin: BTreeMap<&str, Vec<&DeadLetterView>> = BTreeMap::new();
    for view in &letters {
        by_plugin.entry(&view.letter.plugin).or_default().push(view);
    }
    let mut sections = Vec::new();
    for (name, letters) in by_plugin {
        let may = May {
            replay: viewer.may(Act::Replay, name).await?,
            drop: viewer.may(Act::Drop, name).await?,
            signs: viewer.name().is_none(),
        };
        let behind = from.as_ref().filter(|from| from.plugin == name).map(|from| from.seq);
        sections.push(of_plugin(name, &letters, may, &asked, behind));
    }
    let content = html! {
        div.head { h1 { "Dead letters" } (asked.form(&plugins)) }
        @if let Some(text) = done { p.done role="status" { (text) } }
        (on_their_way(&letters))
        @if letters.is_empty() { (nothing(&asked, is_operators, unseen)) }
        @for section in &sections { (section) }
        @if !dropped.is_empty() {
            p.hint {
                (figure(dropped.len() as u64)) " " (plural(dropped.len() as u64, "state was", "states were"))
                " dropped: " (plural(dropped.len() as u64, "it stays", "they stay")) " counted as dead."
            }
        }
        @if !records.is_empty() { (done_before(&records)) }
    };
    Ok(Page::new("Dead letters", "/deadletters", content))
}

/// What the form before this page did, as its redirect says.
fn outcome(params: &Params) -> Result<Option<String>, Problem> {
    if let Some(count) = params.number("replayed")? {
        let noun = plural(count, "state was", "states were");
        return Ok(Some(format!("{} {noun} replayed.", figure(count))));
    }
    if let Some(count) = params.number("dropped")? {
        let noun = plural(count, "state was", "states were");
        return Ok(Some(format!("{} {noun} dropped, for good.", figure(count))));
    }
    let tried = params.number("tried")?;
    Ok(tried.map(|count| format!("{} would be replayed or dropped; nothing was changed.", figure(count))))
}

/// How far replays are: what was taken back and is not finished. The script looks again.
fn on_their_way(letters: &[DeadLetterView]) -> Markup {
    let count = letters.iter().filter(|view| view.letter.replaying).count() as u64;
    html! {
        div #figures data-refresh="2" {
            @if count > 0 {
                p.notice role="status" {
                    (figure(count)) " " (plural(count, "state is", "states are")) " being replayed. What fails again is parked again."
                }
            }
        }
    }
}

/// What somebody did with letters that may not be there any more.
fn done_before(records: &[LetterRecordView]) -> Markup {
    html! {
        section aria-labelledby="records" {
            h2 id="records" { "What was done" }
            div.scroll tabindex="0" role="group" aria-label="What was done" { table.dense {
                caption { "The newest first" }
                thead { tr {
                    th scope="col" { "When" }
                    th scope="col" { "What" }
                    th scope="col" { "Plugin" }
                    th.num scope="col" { "States" }
                    th scope="col" { "Who" }
                    th.wide scope="col" { "Why" }
                } }
                tbody { @for record in records.iter().take(ROWS) { tr {
                    td.when { (at_text(&record.at)) }
                    td.keep { (record.what) }
                    td.keep { (record.plugin) }
                    // A pause and a resume are about no states.
                    td.num { @if !record.seqs.is_empty() { (figure(record.seqs.len() as u64)) } }
                    td.keep { (record.who) }
                    td.wide { span.message title=(record.why) { (record.why) } }
                } } }
            } }
        }
    }
}

fn nothing(asked: &LetterFilter, is_operators: bool, unseen: u64) -> Markup {
    let none_to_see =
        |title: &str| empty(title, &html! { "A dead letter is shown to people who may list its object." });
    match asked.plugin() {
        _ if unseen > 0 && !asked.narrows() => none_to_see(&format!(
            "{} {} that you may not see",
            figure(unseen),
            plural(unseen, "dead letter", "dead letters")
        )),
        _ if !is_operators || unseen > 0 => none_to_see("No dead letters that you may see"),
        _ if asked.narrows() => empty(
            "Nothing matches",
            &html! { "No dead letter fits the filter. " a href="/deadletters" { "Show all" } "." },
        ),
        Some(name) => empty(
            "Nothing matches",
            &html! {
                "The plugin " b { (name) } " has no dead letters. " a href="/deadletters" { "Show those of all plugins" } "."
            },
        ),
        None => empty(
            "No dead letters",
            &html! {
                "A state that a plugin rejects, or that fails after its last try, is kept here until it is replayed."
            },
        ),
    }
}

/// What the reader may do with the dead letters of a plugin.
#[derive(Clone, Copy)]
struct May {
    replay: bool,
    drop: bool,
    /// Nobody knows who it is, so they say so themselves.
    signs: bool,
}

/// `behind`: the page has the letters behind this position.
fn of_plugin(
    name: &str,
    letters: &[&DeadLetterView],
    may: May,
    asked: &LetterFilter,
    behind: Option<Seq>,
) -> Markup {
    let count = letters.len() as u64;
    let rest = letters.iter().skip_while(|view| behind.is_some_and(|behind| view.letter.seq <= behind));
    let listed: Vec<_> = rest.take(ROWS).collect();
    let next =
        listed.last().filter(|view| letters.last().is_some_and(|last| last.letter.seq > view.letter.seq));
    let next = next.map(|view| LetterCursor::from(&view.letter).to_string());
    let first = behind.map(|_| asked.page(name, None));
    html! {
        section aria-labelledby={ "plugin-" (name) } {
            h2 id={ "plugin-" (name) } { (name) }
            form.replay method="post" action="/deadletters/replay" {
                (asked.hidden(name))
                div.scroll { table.dense {
                    caption {
                        (figure(count)) " " (plural(count, "dead letter", "dead letters")) @if asked.narrows() { " that fit the filter" }
                        @if listed.len() < letters.len() { ", " (figure(listed.len() as u64)) " of them on this page" }
                    }
                    thead { tr {
                        th scope="col" { span.unseen { "Choose" } }
                        th.num scope="col" { "Position" }
                        th scope="col" { "Object" }
                        th scope="col" { "Phase" }
                        th.num scope="col" { "Tries" }
                        th.wide scope="col" { "Last error" }
                        th scope="col" { "Parked" }
                    } }
                    tbody { @for view in &listed { (row(view)) } }
                } }
                (pages(&format!("Pages of {name}"), first, next.map(|next| asked.page(name, Some(&next)))))
                @if may.replay || may.drop { (tools(may, asked)) }
                @else { p.hint { "You do not have the right to replay or drop them." } }
            }
        }
    }
}

fn tools(may: May, asked: &LetterFilter) -> Markup {
    html! {
        div.replay-tools {
            label.grow { span { "Reason" } input name="reason" required maxlength=(REASON_BYTES) placeholder="The database is back" autocomplete="off"; }
            @if may.signs { label { span { "Your name" } input name="who" maxlength=(WHO_BYTES) autocomplete="name"; } }
            @if may.replay {
                button name="dry_run" value="true" { "Try without changing" }
                button.strong { "Replay" }
            }
            @if may.drop { button name="drop" value="true" { "Drop for good" } }
            p.hint {
                "The buttons take the dead letters that you choose. If you choose none, they take all of this plugin"
                @if asked.narrows() { " that fit the filter" }
                ". The reason and your name are kept."
            }
        }
    }
}

fn row(view: &DeadLetterView) -> Markup {
    let letter = &view.letter;
    let choose = format!("Choose position {}", letter.seq);
    html! {
        tr {
            td { input type="checkbox" name="seq" value=(letter.seq) aria-label=(choose) disabled[letter.replaying]; }
            td.num { a href={ "/states/" (letter.seq) } { (letter.seq) } }
            td.object { (object_link(&view.object)) }
            td.keep { (badge(&view.phase)) @if letter.replaying { " " span.mark { "replaying" } } }
            td.num { (letter.attempts) }
            td.wide {
                span.message title=(letter.error) { (letter.error) }
                @if letter.tries.len() > 1 {
                    details {
                        summary { "each try" }
                        ol { @for tried in &letter.tries {
                            li value=(tried.attempt) { (at(tried.at_ms)) " after " (tried.took_ms) " ms: " (tried.error) }
                        } }
                    }
                }
            }
            td.when { (at(letter.last_ms)) }
        }
    }
}

pub(super) async fn replay(
    State(app): State<App>,
    viewer: Viewer,
    headers: HeaderMap,
    form: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, Shown> {
    expect_own_page(&headers)?;
    let Form(fields) = form?;
    let (request, drops, asked) = request(fields)?;
    let act = if drops { Act::Drop } else { Act::Replay };
    let request = authorised(&viewer, act, request).await?;
    let (word, count) = if drops {
        ("dropped", app.views.drop_letters(&request).await?.dropped)
    } else {
        ("replayed", app.views.replay(&request).await?.replayed)
    };
    let word = if request.dry_run { "tried" } else { word };
    Ok(Redirect::to(&asked.address(word, count)).into_response())
}

/// What the form asks for, whether the letters are to be dropped, and the filter that it was sent from.
fn request(fields: Vec<(String, String)>) -> Result<(ReplayRequest, bool, LetterFilter), Problem> {
    let (mut request, mut drops) = (ReplayRequest { who: "portal".into(), ..Default::default() }, false);
    let mut asked = LetterFilter::default();
    for (name, value) in fields {
        match name.as_str() {
            name if asked.take(name, &value) => {}
            "reason" => request.reason = value.trim().to_owned(),
            "who" if value.trim().is_empty() => {}
            "who" => request.who = value.trim().to_owned(),
            "dry_run" => request.dry_run = value == "true",
            "drop" => drops = value == "true",
            "seq" => request.seqs.push(params::number("seq", &value)?),
            _ => {
                let hint =
                    "It has plugin, namespace, error, since, until, seq, reason, who, dry_run and drop.";
                return Err(Problem::invalid(format!("`{name}` is no field of this form."), hint));
            }
        }
    }
    let of = asked.request();
    let request = ReplayRequest {
        plugin: of.plugin,
        namespace: of.namespace,
        error: of.error,
        since: of.since,
        until: of.until,
        ..request
    };
    Ok((request, drops, asked))
}

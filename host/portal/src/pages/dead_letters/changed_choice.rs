//! The page for a person some of whose chosen dead letters are gone: a colleague replayed or dropped them
//! while the page was open. Nothing was changed, and the person confirms the rest.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kubewitness_core::Seq;
use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::views::{LetterChoice, LetterQuery, ReplayRequest};
use maud::{Markup, html};

use super::filter::LetterFilter;
use super::section::LOOKED;
use crate::answer::Problem;
use crate::answer::frame::PageContent;
use crate::pages::parts::{grouped_figure, plural_word};
use crate::scope::ViewerVisibility;

/// How many positions a sentence names.
const NAMED: usize = 50;

pub(super) struct ChangedChoice<'a> {
    request: &'a ReplayRequest,
    drops: bool,
    asked: &'a LetterFilter,
    /// The person is unknown, so they enter their name themselves.
    signs: bool,
    gone: Vec<Seq>,
    rest: Vec<Seq>,
}

impl<'a> ChangedChoice<'a> {
    /// Finds which of the chosen letters can still be replayed or dropped. All are on one page, so no more are
    /// read than for a page.
    pub async fn read(
        visible: &ViewerVisibility,
        request: &'a ReplayRequest,
        drops: bool,
        asked: &'a LetterFilter,
    ) -> Result<Self, Problem> {
        let plugin = request.plugin.clone();
        let before = request.seqs.iter().min().map_or(0, |first| first.saturating_sub(1));
        let cursor = Some(LetterCursor { plugin: plugin.clone(), seq: before });
        let which = LetterChoice::NotDropped;
        let query = LetterQuery { plugin: Some(plugin), cursor, which, ..LetterQuery::default() };
        let mut letters = visible.visible_letters(query, LOOKED).await?.rows;
        asked.retain_matching(&mut letters)?;
        let is_left =
            |seq: &Seq| letters.iter().any(|view| view.letter.seq == *seq && !view.letter.replaying);
        let (rest, gone) = request.seqs.iter().copied().partition(is_left);
        Ok(Self { request, drops, asked, signs: !visible.knows_person(), gone, rest })
    }

    pub fn has_changed(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Refuses the request, and offers the rest.
    pub fn refusal(&self) -> Response {
        let title = if self.rest.is_empty() { "All of them are gone" } else { "Some of them are gone" };
        let content = html! {
            div.head { h1 { (title) } }
            p.notice role="status" { "Nothing was changed. " (self.render_gone()) }
            @if self.rest.is_empty() {
                p { a.button href=(self.asked.page_of_plugin(&self.request.plugin, None)) { "Back" } }
            } @else { (self.render_form()) }
        };
        (StatusCode::CONFLICT, PageContent::new(title, "/deadletters", content)).into_response()
    }

    fn render_gone(&self) -> Markup {
        let (gone, all) = (self.gone.len() as u64, self.request.seqs.len() as u64);
        html! {
            "Of the " (grouped_figure(all)) " " (plural_word(all, "dead letter", "dead letters")) " of the plugin "
            b { (self.request.plugin) } " that you chose, " (grouped_figure(gone)) " "
            (plural_word(gone, "is no longer parked or does", "are no longer parked or do")) " not fit the filter any more: "
            (positions_text(&self.gone)) ". Somebody may have replayed or dropped "
            (plural_word(gone, "it", "them")) " meanwhile."
        }
    }

    fn render_form(&self) -> Markup {
        let ReplayRequest { plugin, reason, who, dry_run, .. } = self.request;
        let count = grouped_figure(self.rest.len() as u64);
        let others =
            if self.rest.len() == 1 { "the other one".to_owned() } else { format!("the other {count}") };
        html! {
            p { "Left of your choice: " (positions_text(&self.rest)) "." }
            @if self.drops { p.notice { "A dropped state is never handed to the plugin again." } }
            form.replay method="post" action="/deadletters/replay" {
                (self.asked.hidden_fields(plugin))
                input type="hidden" name="reason" value=(reason);
                @if self.signs { input type="hidden" name="who" value=(who); }
                @if *dry_run { input type="hidden" name="dry_run" value="true"; }
                @for seq in &self.rest { input type="hidden" name="seq" value=(seq); }
                input type="hidden" name="chosen" value=(self.rest.len());
                div.replay-tools.above {
                    @if self.drops { button name="drop" value="true" { "Drop " (others) " for good" } }
                    @else { button.strong { @if *dry_run { "Try " } @else { "Replay " } (others) } }
                    a.button href=(self.asked.page_of_plugin(plugin, None)) { "Back" }
                }
            }
        }
    }
}

/// Some of these positions, in words.
fn positions_text(seqs: &[Seq]) -> String {
    let named: Vec<_> = seqs.iter().take(NAMED).map(Seq::to_string).collect();
    let word = plural_word(seqs.len() as u64, "position", "positions");
    match seqs.len().saturating_sub(NAMED) {
        0 => format!("{word} {}", named.join(", ")),
        more => format!("{word} {}, and {more} more", named.join(", ")),
    }
}

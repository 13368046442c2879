//! Renders the section of one plugin on the page of dead letters. The number of examined letters is limited,
//! so a page costs the same however many exist.

use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::views::{DeadLetterView, LetterChoice, LetterQuery};
use maud::{Markup, html};

use super::filter::LetterFilter;
use crate::access::{GuardedAct, PortalViewer};
use crate::answer::Problem;
use crate::api::{REASON_BYTES, WHO_BYTES};
use crate::pages::parts::{
    ROWS, grouped_figure, object_link, plural_word, render_page_links, render_phase_badge, render_time,
};
use crate::scope::{MOST_READ, ViewerVisibility};

/// How many letters of one plugin a page counts and filters.
pub(super) const LOOKED: usize = 5_000;
/// The same on a page of all plugins, with the number of shown rows.
const LOOKED_OF_EACH: usize = 500;
const ROWS_OF_EACH: usize = 100;

/// The reader's rights to the dead letters of a plugin.
#[derive(Clone, Copy)]
pub(super) struct LetterRights {
    replay: bool,
    drop: bool,
    /// The person is unknown, so they enter their name themselves.
    signs: bool,
}

impl LetterRights {
    pub async fn of(viewer: &PortalViewer, plugin: &str) -> Result<Self, Problem> {
        Ok(Self {
            replay: viewer.has_right(GuardedAct::Replay, plugin).await?,
            drop: viewer.has_right(GuardedAct::Drop, plugin).await?,
            signs: viewer.name().is_none(),
        })
    }
}

/// How many letters a page may still read, kept and dropped ones. For a person who may not see all of them,
/// the limit does not grow.
pub(super) struct LetterBudget {
    kept: usize,
    dropped: usize,
}

impl LetterBudget {
    pub fn of(visible: &ViewerVisibility) -> Self {
        let most = if visible.is_whole() { usize::MAX } else { MOST_READ };
        Self { kept: most, dropped: most }
    }

    pub fn is_spent(&self) -> bool {
        self.kept == 0
    }
}

pub(super) struct LetterSection {
    pub name: String,
    /// Letters that the reader may see, among the examined ones.
    pub seen: u64,
    pub replaying: u64,
    pub dropped: u64,
    /// Whether more were dropped than were examined.
    pub has_more_dropped: bool,
    /// Whether more exist than were examined.
    pub is_cut: bool,
    /// Visible letters that are not dropped.
    looked: u64,
    /// Matching letters that are not dropped.
    fit: u64,
    rows: Vec<DeadLetterView>,
    next: Option<LetterCursor>,
    /// Whether it is not the first page.
    is_behind: bool,
}

impl LetterSection {
    pub async fn read(
        visible: &ViewerVisibility,
        asked: &LetterFilter,
        name: String,
        from: Option<&LetterCursor>,
        budget: &mut LetterBudget,
    ) -> Result<Self, Problem> {
        let (looked, most) = match asked.plugin_name() {
            Some(_) => (LOOKED, ROWS),
            None => (LOOKED_OF_EACH, ROWS_OF_EACH),
        };
        let cursor = from.filter(|from| from.plugin == name).cloned();
        let is_behind = cursor.is_some();
        let query = LetterQuery { plugin: Some(name.clone()), cursor, ..LetterQuery::default() };
        let of = |which| LetterQuery { which, ..query.clone() };
        let _turn = visible.enter_for_two(looked).await;
        let kept = visible.letters_within(of(LetterChoice::NotDropped), looked, &mut budget.kept).await?;
        // Dropped letters are counted separately, so that they don't crowd out the others.
        let mut gone = visible.letters_within(of(LetterChoice::Dropped), looked, &mut budget.dropped).await?;
        let (mut rows, mut next) = (kept.rows, kept.next);
        let looked = rows.len() as u64;
        let seen = (rows.len() + gone.rows.len()) as u64;
        let (is_cut, has_more_dropped) = (next.is_some(), gone.next.is_some());
        asked.retain_matching(&mut rows)?;
        asked.retain_matching(&mut gone.rows)?;
        let (dropped, fit) = (gone.rows.len() as u64, rows.len() as u64);
        let replaying = rows.iter().filter(|view| view.letter.replaying).count() as u64;
        if rows.len() > most {
            rows.truncate(most);
            next = rows.last().map(|view| LetterCursor::from(&view.letter));
        }
        Ok(Self {
            name,
            seen,
            replaying,
            dropped,
            has_more_dropped,
            is_cut,
            looked,
            fit,
            rows,
            next,
            is_behind,
        })
    }

    pub fn has_something(&self) -> bool {
        !self.rows.is_empty() || self.next.is_some()
    }

    /// How many letters of this page a replay or a drop affects.
    fn count_affected(&self) -> usize {
        self.rows.iter().filter(|view| !view.letter.replaying).count()
    }

    fn render_caption(&self, narrows: bool) -> Markup {
        let shown = self.rows.len() as u64;
        let count = if self.is_behind { shown } else { self.fit };
        html! {
            @if self.is_cut && !self.is_behind && !narrows && count > 0 { "More than " }
            @if self.is_cut && !self.is_behind && !narrows && count == 0 { "So far " }
            (grouped_figure(count)) " " (plural_word(count, "dead letter", "dead letters"))
            @if narrows { (plural_word(count, " that fits the filter", " that fit the filter")) }
            @if self.is_cut && !self.is_behind && narrows { ", of the first " (grouped_figure(self.looked)) }
            @if self.is_behind { " on this page" }
            @else if shown < count { ", " (grouped_figure(shown)) " of them on this page" }
        }
    }

    pub fn render_section(&self, may: LetterRights, asked: &LetterFilter) -> Markup {
        let name = &self.name;
        let first = self.is_behind.then(|| asked.page_of_plugin(name, None));
        let next = self.next.as_ref().map(|next| asked.page_of_plugin(name, Some(&next.to_string())));
        html! {
            section data-key={ "letters-" (name) } aria-labelledby={ "plugin-" (name) } {
                h2 id={ "plugin-" (name) } { (name) }
                form.replay method="post" action="/deadletters/replay" {
                    (asked.hidden_fields(name))
                    input type="hidden" name="on_page" value=(self.count_affected());
                    @if may.replay || may.drop { (render_tools(may, asked)) }
                    @else { p.hint { "You do not have the right to replay or drop them." } }
                    div.scroll { table.dense.folds {
                        caption { (self.render_caption(asked.narrows_letters())) }
                        thead { tr {
                            th scope="col" { span.unseen { "Choose" } }
                            th.num scope="col" { "Position" }
                            th scope="col" { "Object" }
                            th scope="col" { "Phase" }
                            th.num scope="col" { "Tries" }
                            th.wide scope="col" { "Last error" }
                            th scope="col" { "Parked" }
                        } }
                        tbody { @for view in &self.rows { (render_row(view)) } }
                    } }
                    (render_page_links(&format!("Pages of {name}"), first, next))
                }
            }
        }
    }
}

fn render_tools(may: LetterRights, asked: &LetterFilter) -> Markup {
    // The script writes there how many are chosen.
    let count = html! { span.count data-own { " " } };
    html! {
        div.replay-tools.above {
            label.grow { span { "Reason" } input name="reason" required maxlength=(REASON_BYTES) placeholder="The database is back" autocomplete="off"; }
            @if may.signs { label { span { "Your name" } input name="who" maxlength=(WHO_BYTES) autocomplete="name"; } }
            @if may.replay {
                button name="dry_run" value="true" { "Try" (count) "without changing" }
                button.strong { "Replay" (count) }
            }
            @if may.drop { button name="drop" value="true" { "Drop" (count) "for good" } }
            p.hint {
                "The buttons take the dead letters that you choose. If you choose none, the next page asks whether you mean all of this plugin"
                @if asked.narrows_letters() { " that fit the filter" }
                ", also those on other pages. The reason and your name are kept."
            }
        }
    }
}

fn render_row(view: &DeadLetterView) -> Markup {
    let letter = &view.letter;
    let choose = format!("Choose position {}", letter.seq);
    html! {
        tr data-key={ "letter-" (letter.seq) } {
            td data-label="Choose" { input type="checkbox" name="seq" value=(letter.seq) aria-label=(choose) disabled[letter.replaying]; }
            td.num data-label="Position" { a href={ "/states/" (letter.seq) } { (letter.seq) } }
            td.object data-label="Object" { (object_link(&view.object)) }
            td.keep data-label="Phase" { (render_phase_badge(&view.phase)) @if letter.replaying { " " span.mark { "replaying" } } }
            td.num data-label="Tries" { (letter.attempts) }
            td.wide data-label="Last error" {
                span.message title=(letter.error) { (letter.error) }
                @if letter.tries.len() > 1 {
                    details {
                        summary { "each try" }
                        ol { @for tried in &letter.tries {
                            li value=(tried.attempt) { (render_time(tried.at_ms)) " after " (tried.took_ms) " ms: " (tried.error) }
                        } }
                    }
                }
            }
            td.when data-label="Parked" { (render_time(letter.last_ms)) }
        }
    }
}

//! Each state as a row. Versions without news are folded.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::{Change, Gap, Seq, State as Witnessed};
use maud::{Markup, html};

use super::{ObjectQuery, RowNotes};
use crate::pages::gaps::bound_or_open;
use crate::pages::parts::{
    event_type, event_words, grouped_figure, object_link, plural_word, render_phase_badge,
    render_status_reason, render_time,
};

/// This many consecutive versions without news are folded into one row.
const FOLDED: usize = 2;

#[derive(Clone, Copy)]
pub(super) struct StateTable<'a> {
    pub caption: &'a str,
    /// Whether the rows are of several objects.
    pub named: bool,
    pub asked: ObjectQuery<'a>,
    /// The address of the same page with every version, or with folded ones.
    pub other: &'a str,
    pub notes: &'a RowNotes,
}

enum StateRow<'a> {
    One(&'a Witnessed, Option<&'a Witnessed>),
    Folded(&'a Witnessed, &'a Witnessed, usize),
}

fn fold_rows<'a>(states: &'a [Arc<Witnessed>], table: &StateTable<'_>) -> Vec<StateRow<'a>> {
    let mut rows = Vec::new();
    let mut quiet: Vec<(&Witnessed, Option<&Witnessed>)> = Vec::new();
    let mut newest: HashMap<&str, &Witnessed> = HashMap::new();
    for state in states {
        let before = newest.insert(&state.object.uid, state);
        if table.notes.quiet.seqs.contains(&state.seq) && table.asked.chosen != Some(state.seq) {
            quiet.push((state, before));
            continue;
        }
        fold_quiet(&mut quiet, &mut rows);
        rows.push(StateRow::One(state, before));
    }
    fold_quiet(&mut quiet, &mut rows);
    rows
}

fn fold_quiet<'a>(quiet: &mut Vec<(&'a Witnessed, Option<&'a Witnessed>)>, rows: &mut Vec<StateRow<'a>>) {
    match quiet.as_slice() {
        [(first, _), .., (last, _)] if quiet.len() >= FOLDED => {
            rows.push(StateRow::Folded(first, last, quiet.len()));
        }
        few => rows.extend(few.iter().map(|(state, before)| StateRow::One(state, *before))),
    }
    quiet.clear();
}

impl StateTable<'_> {
    /// With a choice of two versions to compare.
    pub fn render_with_choice(&self, states: &[Arc<Witnessed>]) -> Markup {
        let can = states.len() > 1;
        html! {
            form method="get" action="/compare" {
                (self.render_table(states, can))
                @if can { p.tools { button { "Compare the two versions" } } }
            }
        }
    }

    pub fn render_states(&self, states: &[Arc<Witnessed>]) -> Markup {
        self.render_table(states, false)
    }

    fn render_table(&self, states: &[Arc<Witnessed>], choice: bool) -> Markup {
        let count = states.len() as u64;
        let ends = (states.first().map(|state| state.seq), states.last().map(|state| state.seq));
        html! {
            div.scroll {
                table.dense.folds {
                    caption {
                        (self.caption) ": " (grouped_figure(count)) " " (plural_word(count, "state", "states")) ", oldest first"
                        @if self.notes.quiet.is_cut { ". Some versions were not compared with the one before, and stand alone" }
                        @if self.asked.all { " · " a href={ (self.other) "#states" } { "fold those that tell nothing new" } }
                    }
                    thead { tr {
                        th.num scope="col" { "Position" }
                        th scope="col" { "Observed" }
                        @if self.named { th scope="col" { "Object" } }
                        @if self.notes.versions.is_some() { th scope="col" { "Type" } }
                        @else {
                            th scope="col" { "Phase" }
                            th.num scope="col" { "Ready" }
                            th.num scope="col" { "Attempt" }
                        }
                        th.wide scope="col" { "Reason" }
                        th.num scope="col" { "Version" }
                        th scope="col" { "Document" }
                        @if choice { th scope="col" { "Compare" } }
                    } }
                    tbody {
                        @for row in fold_rows(states, self) {
                            @match row {
                                StateRow::One(state, before) => (self.render_row(state, before, choice.then_some(ends))),
                                StateRow::Folded(first, last, count) => (self.render_folded_row(first, last, count, choice)),
                            }
                        }
                    }
                }
            }
        }
    }

    fn render_folded_row(&self, first: &Witnessed, last: &Witnessed, count: usize, choice: bool) -> Markup {
        let of_phase = if self.notes.versions.is_some() { 1 } else { 3 };
        let columns = 5 + of_phase + usize::from(self.named) + usize::from(choice);
        html! {
            tr.folded {
                td colspan=(columns) {
                    (grouped_figure(count as u64)) " versions in which nothing but heartbeats and bookkeeping changed, at positions " (first.seq) " to " (last.seq) ", up to " (render_time(last.observed_ms)) " · "
                    a href={ (self.other) "#states" } { "show them" }
                }
            }
        }
    }

    fn render_row(
        &self,
        state: &Witnessed,
        before: Option<&Witnessed>,
        choice: Option<(Option<Seq>, Option<Seq>)>,
    ) -> Markup {
        let status = &state.status;
        let hole = self.notes.holes.get(&state.seq);
        let same = before.is_some_and(|before| before.status.phase == status.phase)
            && state.change == Change::Present;
        html! {
            tr.gap[state.change == Change::Gap].chosen[self.asked.chosen == Some(state.seq)] id={ "state-" (state.seq) } {
                td.num data-label="Position" { a href={ "/objects/" (state.object.uid) "?state=" (state.seq) "#state-" (state.seq) } title="The address of this state" { (state.seq) } }
                td.when data-label="Observed" { (render_time(state.observed_ms)) }
                @if self.named { td.object data-label="Object" { (object_link(&state.object)) } }
                td.keep data-label=(if self.notes.versions.is_some() { "Type" } else { "Phase" }) {
                    @match &self.notes.versions {
                        Some(versions) => { @if let Some(event) = versions.get(&state.seq) { (event_type(event)) } }
                        None => { span.same[same] { (render_phase_badge(&status.phase)) } }
                    }
                    @match state.change {
                        Change::Present => {}
                        change => { " " span.mark { (change.as_str()) } }
                    }
                    @if state.late { " " span.mark title="It arrived after a newer version." { "late" } }
                }
                @if self.notes.versions.is_none() {
                    td.num data-label="Ready" { @if status.total > 0 { (status.ready) "/" (status.total) } }
                    td.num data-label="Attempt" { @if status.attempt > 0 { (status.attempt) } }
                }
                (self.render_reason(state, hole))
                td.keep data-label="Document" {
                    a href={ "/states/" (state.seq) } { "show" }
                    @if let Some(before) = before { " · " a href={ "/states/" (state.seq) "?from=" (before.seq) } { "changes" } }
                }
                @if let Some((first, last)) = choice {
                    td.keep data-label="Compare" {
                        label { input type="radio" name="from" value=(state.seq) checked[first == Some(state.seq)]; span.unseen { "from position " (state.seq) } }
                        label { input type="radio" name="to" value=(state.seq) checked[last == Some(state.seq)]; span.unseen { "to position " (state.seq) } }
                    }
                }
            }
        }
    }

    fn render_reason(&self, state: &Witnessed, hole: Option<&Gap>) -> Markup {
        let event = self.notes.versions.as_ref().map(|versions| versions.get(&state.seq));
        html! {
            @match (hole, event) {
                (Some(gap), _) => {
                    td.wide.whole data-label="Reason" { span.reason { (gap.reason) } " " span.message { (gap.message) } }
                    td.num data-label="Version" { span.unseen { "between " } (bound_or_open(&gap.after)) span aria-hidden="true" { " … " } span.unseen { " and " } (bound_or_open(&gap.before)) }
                }
                (None, event) => {
                    td.wide data-label="Reason" {
                        @match event {
                            Some(event) => { @if let Some(event) = event { (event_words(event, &html! {})) } }
                            None => (render_status_reason(&state.status)),
                        }
                    }
                    td.num data-label="Version" { (state.resource_version) }
                }
            }
        }
    }
}

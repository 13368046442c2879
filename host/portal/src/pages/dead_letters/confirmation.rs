//! The page between a form without a selection and its effect: it shows how many dead letters are affected,
//! and asks to type that number. The controller compares it again, so that letters that arrived meanwhile
//! stay.

use kubewitness_core::views::ReplayRequest;
use maud::{Markup, html};

use super::filter::LetterFilter;
use crate::answer::frame::PageContent;
use crate::pages::parts::{grouped_figure, plural_word};

pub(super) struct DropConfirmation<'a> {
    pub request: &'a ReplayRequest,
    pub drops: bool,
    pub asked: &'a LetterFilter,
    /// How many letters the request affects.
    pub count: u64,
    /// How many letters the person saw on the previous page.
    pub on_page: u64,
    /// The person is unknown, so they enter their name themselves.
    pub signs: bool,
}

impl DropConfirmation<'_> {
    pub fn confirmation_page(&self) -> PageContent {
        let title = if self.drops { "Drop all of them?" } else { "Replay all of them?" };
        PageContent::new(title, "/deadletters", self.render_confirmation(title))
    }

    fn render_confirmation(&self, title: &str) -> Markup {
        let ReplayRequest { plugin, reason, who, .. } = self.request;
        let button = if self.drops { "Drop for good" } else { "Replay" };
        html! {
            div.head { h1 { (title) } }
            p { "You have chosen no dead letter. " (self.render_extent()) }
            @if self.drops { p.notice role="status" { "A dropped state is never handed to the plugin again." } }
            form.replay method="post" action="/deadletters/replay" {
                (self.asked.hidden_fields(plugin))
                input type="hidden" name="reason" value=(reason);
                @if self.signs { input type="hidden" name="who" value=(who); }
                div.replay-tools.above {
                    label.grow { span { "Type the number " b { (self.count) } }
                        input name="exactly" required inputmode="numeric" pattern=(self.count) title=(self.count) autocomplete="off" autofocus;
                    }
                    @if self.drops { button name="drop" value="true" { (button) } } @else { button.strong { (button) } }
                    a.button href=(self.asked.page_of_plugin(plugin, None)) { "Back" }
                }
            }
        }
    }

    /// How many are affected, and how many of these the person has not seen.
    fn render_extent(&self) -> Markup {
        let elsewhere = self.count.saturating_sub(self.on_page);
        html! {
            "This takes " b { (grouped_figure(self.count)) " " (plural_word(self.count, "dead letter", "dead letters")) } " of the plugin "
            b { (self.request.plugin) }
            @if self.asked.narrows_letters() { (plural_word(self.count, " that fits the filter", " that fit the filter")) }
            @if elsewhere > 0 && self.on_page > 0 {
                ": " (grouped_figure(self.on_page)) " on the page before, and " (grouped_figure(elsewhere)) " on other pages"
            }
            "."
        }
    }
}

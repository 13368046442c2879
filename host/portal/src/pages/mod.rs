//! The pages for people: rendered on the server, readable without script.
//!
//! A client-side application was rejected: it would need a build chain, and would show nothing to a person
//! without script. So the server renders every page, and one small script only updates the list of jobs and
//! the figures. A page is an answer to one person's rights: no page decides what a viewer may see, `scope`
//! does. Every text of an object is escaped by the templates.

mod api;
mod dead_letters;
mod document;
mod gaps;
mod health;
mod jobs;
pub(crate) mod login;
mod object;
mod parts;
mod plugins;
mod sources;

use axum::routing::get;

use crate::app::AppRoute;

pub(crate) fn routes() -> Vec<AppRoute> {
    vec![
        ("/", get(jobs::page)),
        ("/objects/{uid}", get(object::page)),
        ("/mutes", get(object::mutes::page).post(object::mutes::post_mute_change)),
        ("/states/{seq}", get(document::page)),
        ("/compare", get(document::redirect_to_comparison)),
        ("/api", get(api::page)),
        ("/health", get(health::page)),
        ("/plugins", get(plugins::page)),
        ("/plugins/{name}/pause", get(plugins::pausing::pause_form).post(plugins::pausing::post_pause)),
        ("/plugins/{name}/resume", get(plugins::pausing::resume_form).post(plugins::pausing::post_resume)),
        ("/sources", get(sources::page)),
        ("/deadletters", get(dead_letters::page)),
        ("/deadletters/replay", axum::routing::post(dead_letters::post_replay)),
        ("/gaps", get(gaps::page)),
        ("/submit", get(jobs::submitting::page)),
        ("/submit/{template}", get(jobs::submitting::form).post(jobs::submitting::post_submit)),
    ]
}

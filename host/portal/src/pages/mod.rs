//! The pages for people.
use axum::response::Html;
use maud::html;

use crate::app::Route;
use crate::problem::Problem;

pub(crate) fn routes() -> Vec<Route> {
    Vec::new()
}

pub(crate) fn problem(problem: &Problem) -> Html<String> {
    Html(html! { (maud::DOCTYPE) h1 { (problem.message) } p { (problem.hint) } }.into_string())
}

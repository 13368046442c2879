//! Links the sentence about an object to the states that it rests on.

use kubewitness_core::views::{Cause, WhyView};
use maud::{Markup, html};

/// The state of the cause, and those of other pods that failed.
pub(super) fn render_evidence_links(why: &WhyView) -> Markup {
    html! {
        @if let Some(cause) = &why.cause { (render_link(cause, "The state that this rests on")) }
        @for other in &why.also {
            (render_link(other, &format!("The state of another pod: {}", other.kind.as_str().replace('-', " "))))
        }
    }
}

fn render_link(cause: &Cause, title: &str) -> Markup {
    html! { " " a href={ "/states/" (cause.seq) } title=(title) { "State " (cause.seq) } }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::CauseKind;

    use super::*;

    #[test]
    fn the_cause_and_each_other_pod_lead_to_their_states() {
        let of = |kind, seq| Cause { kind, seq, ..Cause::default() };
        let why = WhyView {
            cause: Some(of(CauseKind::OutOfMemory, 12)),
            also: vec![of(CauseKind::ExitCode, 31)],
            ..WhyView::default()
        };
        let links = render_evidence_links(&why).into_string();
        assert!(links.contains("href=\"/states/12\" title=\"The state that this rests on\""), "{links}");
        assert!(
            links.contains("href=\"/states/31\" title=\"The state of another pod: exit code\""),
            "{links}"
        );
        assert_eq!(render_evidence_links(&WhyView::default()).into_string(), "");
    }
}

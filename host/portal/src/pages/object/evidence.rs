//! Links each claim of the sentence about an object to the states that it rests on.

use kubewitness_core::Seq;
use kubewitness_core::views::{SentenceClaim, WhyView};
use maud::{Markup, html};

/// The sentence. Each claim is a link to its state, and is followed by the numbers of the others that it rests on.
pub(super) fn render_sentence(why: &WhyView) -> Markup {
    html! {
        @for (index, claim) in why.claims.iter().enumerate() {
            @if index > 0 { ", " }
            (render_claim(claim))
        }
        @if !why.doubt.is_empty() { " (" (why.doubt) ")" }
        "."
    }
}

fn render_claim(claim: &SentenceClaim) -> Markup {
    let link = |seq: Seq, text: &str| html! { a href={ "/states/" (seq) } title={ "Rests on state " (seq) } { (text) } };
    html! {
        @match &claim.seqs[..] {
            [] => (claim.text),
            [first, others @ ..] => {
                (link(*first, &claim.text))
                @for other in others { " " sup { (link(*other, &other.to_string())) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_leads_to_the_states_that_it_rests_on() {
        let claim = |text: &str, seqs: &[Seq]| SentenceClaim { text: text.into(), seqs: seqs.into() };
        let why = WhyView {
            claims: vec![claim("Ran 3 s", &[12]), claim("<b>", &[]), claim("failed", &[14, 31])],
            doubt: "perhaps".into(),
            ..WhyView::default()
        };
        let sentence = render_sentence(&why).into_string();
        assert_eq!(
            sentence,
            "<a href=\"/states/12\" title=\"Rests on state 12\">Ran 3 s</a>, &lt;b&gt;, \
             <a href=\"/states/14\" title=\"Rests on state 14\">failed</a> \
             <sup><a href=\"/states/31\" title=\"Rests on state 31\">31</a></sup> (perhaps)."
        );
    }
}

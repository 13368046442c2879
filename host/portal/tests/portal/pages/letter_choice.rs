//! Tests of a choice of dead letters that a colleague changes while the page is open.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;

use crate::fake::FakeViews;
use crate::{PortalAnswer, ask, options, request};

fn portal(gone: &[u64]) -> (Arc<FakeViews>, Router) {
    let fake = Arc::new(FakeViews { many: 20, ..FakeViews::default() });
    fake.gone_letters.lock().unwrap().extend(gone);
    (fake.clone(), kubewitness_portal::router(fake, &options()))
}

async fn send(portal: &Router, body: &str) -> PortalAnswer {
    let request = request("POST", "/deadletters/replay")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("sec-fetch-site", "same-origin");
    ask(portal, request.body(Body::from(body.to_owned())).unwrap()).await
}

#[tokio::test]
async fn a_drop_of_letters_some_of_which_are_gone_changes_nothing_and_offers_the_rest() {
    let (fake, portal) = portal(&[4, 6]);
    let refused =
        send(&portal, "plugin=audit&seq=3&seq=4&seq=5&seq=6&seq=5&reason=no+use&who=ada&drop=true").await;
    assert_eq!(refused.status, 409);
    super::check_page(&refused, "a choice that has changed");
    for words in [
        "Of the 4 dead letters of the plugin <b>audit</b> that you chose, 2 are no longer parked",
        "positions 4, 6. Somebody may have",
        "Left of your choice: positions 3, 5.",
        "<input type=\"hidden\" name=\"seq\" value=\"3\"><input type=\"hidden\" name=\"seq\" value=\"5\">",
        "<input type=\"hidden\" name=\"chosen\" value=\"2\">",
        "<input type=\"hidden\" name=\"reason\" value=\"no use\">",
        "<input type=\"hidden\" name=\"who\" value=\"ada\">",
        "Drop the other 2 for good",
    ] {
        assert!(refused.text.contains(words), "{words} is not in\n{}", refused.text);
    }
    assert!(fake.drops.lock().unwrap().is_empty(), "nothing was dropped");

    let rest = send(&portal, "plugin=audit&seq=3&seq=5&chosen=2&reason=no+use&who=ada&drop=true").await;
    assert_eq!((rest.status.as_u16(), rest.header("location")), (303, "/deadletters?dropped=2"));
    let drop = fake.drops.lock().unwrap()[0].clone();
    assert_eq!((drop.seqs.as_slice(), drop.exactly), (&[3, 5][..], Some(2)));
}

#[tokio::test]
async fn a_choice_that_is_wholly_gone_leads_back_and_never_means_all_letters() {
    let (fake, portal) = portal(&[3, 4]);
    let refused = send(&portal, "plugin=audit&seq=3&seq=4&reason=no+use&drop=true").await;
    assert_eq!(refused.status, 409);
    assert!(refused.text.contains("All of them are gone"), "{}", refused.text);
    assert!(refused.text.contains("href=\"/deadletters?plugin=audit\">Back"), "{}", refused.text);
    assert!(!refused.text.contains("for good</button>"), "{}", refused.text);
    // The page showed two chosen ones, and their boxes went with them.
    for body in ["seq=3&chosen=2", "chosen=2", "chosen=2&exactly=5"] {
        let refused = send(&portal, &format!("plugin=notification&{body}&reason=no+use&drop=true")).await;
        assert_eq!(refused.status, 409, "{body}");
        assert!(refused.text.contains("the page showed 2 chosen dead letters"), "{body}: {}", refused.text);
    }
    assert!(fake.drops.lock().unwrap().is_empty(), "nothing was dropped");
}

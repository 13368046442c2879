//! The portal with made-up data, to look at: `cargo run -p kubewitness-portal --example preview -- [empty]
//! [still] [sign-in]`. With `sign-in` each word is the token of a person with that name and all rights.

#[path = "../tests/portal/fake/mod.rs"]
#[allow(dead_code, clippy::unwrap_used)]
mod fake;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::Change;
use kubewitness_core::ports::{AccessAttempt, AccessReviewer, LiveNamespace, Person, ReviewError};
use kubewitness_portal::{
    AccessControl, AccessOptions, AnswerTimes, EndedSessions, PortalAccess, PortalOptions, SESSION_KEY_BYTES,
    serve_portal,
};
use tokio_util::sync::CancellationToken;

struct Anybody;

#[async_trait]
impl AccessReviewer for Anybody {
    async fn authenticate_token(&self, token: &str) -> Result<Option<Person>, ReviewError> {
        let is_word = token.chars().all(char::is_alphabetic);
        Ok(is_word.then(|| Person { user: token.into(), ..Person::default() }))
    }

    async fn allows_attempt(&self, _: &Person, _: &AccessAttempt) -> Result<bool, ReviewError> {
        Ok(true)
    }

    async fn find_namespace(&self, _: &str) -> Result<Option<LiveNamespace>, ReviewError> {
        Ok(None)
    }
}

fn access() -> PortalAccess {
    if !std::env::args().any(|argument| argument == "sign-in") {
        return PortalAccess::None;
    }
    let options = AccessOptions {
        times: AnswerTimes::default(),
        session_key: [1; SESSION_KEY_BYTES],
        ended: EndedSessions::default(),
        log_reads: true,
        trusted_proxy: None,
    };
    PortalAccess::Kubernetes(Arc::new(AccessControl::new(Arc::new(Anybody), options)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let empty = std::env::args().any(|argument| argument == "empty");
    let still = std::env::args().any(|argument| argument == "still");
    let views = Arc::new(fake::FakeViews { empty, many: 12, ..fake::FakeViews::default() });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 8788)).await?;
    println!("http://{}", listener.local_addr()?);
    let options = PortalOptions { access: access(), ..PortalOptions::default() };
    let portal = serve_portal(listener, views.clone(), options, CancellationToken::new());
    let life = async {
        let mut seq = 100;
        loop {
            tokio::time::sleep(Duration::from_millis(700)).await;
            if still || empty {
                continue;
            }
            seq += 1;
            let index = seq % 31;
            let object = fake::object("Job", "research", &format!("live-{index}"), &format!("uid-{index}"));
            let phase = ["Queued", "Running", "Failed", "Restarting", "Succeeded"][seq as usize % 5];
            views.push(fake::state(seq, &object, Change::Present, seq, fake::status(phase, "Preview", "")));
        }
    };
    tokio::select! {
        result = portal => Ok(result?),
        () = life => Ok(()),
    }
}

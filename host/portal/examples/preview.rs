//! The portal over made-up data, to look at: `cargo run -p kubewitness-portal --example preview -- [empty]`.

#[path = "../tests/portal/fake.rs"]
#[allow(dead_code, clippy::unwrap_used)]
mod fake;

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Change;
use kubewitness_portal::{PortalOptions, serve};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let empty = std::env::args().any(|argument| argument == "empty");
    let still = std::env::args().any(|argument| argument == "still");
    let views = Arc::new(fake::Fake { empty, ..fake::Fake::default() });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 8788)).await?;
    println!("http://{}", listener.local_addr()?);
    let portal = serve(listener, views.clone(), PortalOptions::default(), CancellationToken::new());
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

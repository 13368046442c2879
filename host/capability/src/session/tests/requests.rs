//! Tests of requests in repeated calls: after a kill, after a failure, after a verdict.

use axum::Router;
use axum::http::Uri;
use kubewitness_core::intents::requests::{PluginRequest, RequestNotes};
use kubewitness_core::limits;
use kubewitness_core::ports::DurableCursor;
use kubewitness_harness::{Encryption, MailServer};

use super::*;

/// A receiver that counts requests, and never answers those to paths that end with `silent`.
#[derive(Clone, Default)]
pub struct CountingReceiver(Arc<Mutex<Vec<String>>>);

impl CountingReceiver {
    #[allow(clippy::disallowed_methods)]
    pub async fn listen(&self) -> String {
        let seen = self.0.clone();
        let answer = move |uri: Uri| {
            let count = {
                let mut seen = seen.lock().unwrap();
                seen.push(uri.path().to_owned());
                seen.len()
            };
            async move {
                if uri.path().ends_with("silent") {
                    std::future::pending::<()>().await;
                }
                format!("answer {count}")
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await.unwrap() });
        format!("http://{address}/")
    }

    pub fn count(&self, path: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|seen| *seen == path).count()
    }
}

pub async fn opened(world: &SessionWorld, url: &str) -> OpenCapabilities {
    let host: HostSpec = serde_json::from_value(json!({
        "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
        "destinations": [
            {"name": "people", "url": url, "timeout": "2s"},
            {"name": "bank", "url": url, "timeout": "2s", "repeat": "never"},
            {"name": "away", "url": "http://127.0.0.1:1", "timeout": "2s", "repeat": "never"},
        ],
    }))
    .unwrap();
    OpenCapabilities::open(&host, world.folder.path()).await.unwrap()
}

pub fn sender() -> PluginSpec {
    let grant = |name: &str| json!({"name": name, "destination": name});
    plugin(json!({"http": [grant("people"), grant("bank"), grant("away")]}))
}

pub fn post(path: &str, id: Option<&str>) -> HttpRequest {
    let headers = id.map(|id| ("Idempotency-Key".to_owned(), id.to_owned())).into_iter().collect();
    HttpRequest { method: "POST".into(), path: path.into(), headers, body: path.as_bytes().to_vec() }
}

/// Posts to a destination, and returns the answer as text.
async fn send(session: &mut Box<dyn EffectSession>, to: &str, path: &str) -> Result<String, GrantError> {
    let answer = session.http_send(to, post(path, None)).await?;
    Ok(String::from_utf8(answer.body).unwrap())
}

#[tokio::test]
async fn after_a_kill_only_the_request_in_the_air_is_sent_again() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let url = receiver.listen().await;
    let capabilities = opened(&world, &url).await;
    let killed = world.started(&capabilities, &sender()).await;
    let mut session = killed.open(&batch(&[1])).await.unwrap();
    assert_eq!(send(&mut session, "people", "one").await.unwrap(), "answer 1");
    assert_eq!(send(&mut session, "people", "one").await.unwrap(), "answer 2", "a second one is another");
    assert_eq!(send(&mut session, "people", "two").await.unwrap(), "answer 3");
    drop((session, killed, capabilities));

    let capabilities = opened(&world, &url).await;
    let plugin = world.started(&capabilities, &sender()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    assert_eq!(send(&mut session, "people", "one").await.unwrap(), "answer 1", "as it was answered");
    assert_eq!(send(&mut session, "people", "one").await.unwrap(), "answer 2");
    assert_eq!(send(&mut session, "people", "two").await.unwrap(), "answer 4", "its answer was not kept");
    assert_eq!(send(&mut session, "people", "three").await.unwrap(), "answer 5");
    // A kill after the call's end, before its save.
    drop(session.commit_effects(&[1]).await.unwrap());
    let plugin = world.started(&capabilities, &sender()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    for (path, answer) in [("one", 1), ("one", 2), ("two", 4), ("three", 5)] {
        assert_eq!(send(&mut session, "people", path).await.unwrap(), format!("answer {answer}"));
    }
    world.paper.keep(&session.commit_effects(&[1]).await.unwrap());
    assert_eq!(world.paper.read(), [], "nothing is left of a state that is done");
    assert_eq!((receiver.count("/one"), receiver.count("/two"), receiver.count("/three")), (2, 2, 1));
}

#[tokio::test]
async fn where_nothing_is_repeated_a_request_in_the_air_parks_its_state_until_somebody_replays_it() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let url = receiver.listen().await;
    let capabilities = opened(&world, &url).await;
    let killed = world.started(&capabilities, &sender()).await;
    let mut session = killed.open(&batch(&[1, 2])).await.unwrap();
    session.http_send("bank", post("one", Some("id-1"))).await.unwrap();
    session.http_send("bank", post("two", Some("id-2"))).await.unwrap();
    drop((session, killed, capabilities));

    let capabilities = opened(&world, &url).await;
    let plugin = world.started(&capabilities, &sender()).await;
    let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
    session.http_send("bank", post("one", Some("id-1"))).await.unwrap();
    let refused = session.http_send("bank", post("two", Some("id-2"))).await;
    assert!(matches!(&refused, Err(GrantError::Denied(why)) if why.starts_with("may have been sent")));
    let doubts = session.in_doubt();
    assert!(matches!(&doubts[..], [(2, why)] if why.starts_with("may have been sent") && why.contains("v1")));
    assert_eq!((receiver.count("/one"), receiver.count("/two")), (1, 1));
    world.paper.keep(&session.commit_effects(&[1]).await.unwrap());
    assert_eq!(world.paper.read(), []);

    // An operator replays the state.
    let mut session = plugin.open(&batch(&[2])).await.unwrap();
    session.http_send("bank", post("two", Some("id-2"))).await.unwrap();
    assert_eq!((session.in_doubt(), receiver.count("/two")), (vec![], 2));
}

#[tokio::test]
async fn a_request_without_an_answer_is_not_sent_again_where_nothing_is_repeated() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let plugin = world.started(&capabilities, &sender()).await;
    for to in ["bank", "people"] {
        let mut session = plugin.open(&batch(&[1])).await.unwrap();
        assert!(matches!(send(&mut session, to, "silent").await, Err(GrantError::Timeout(_))));
        // With this setting the state is parked, whatever the plugin's verdict; otherwise the verdict
        // decides.
        let doubts = session.in_doubt();
        assert_eq!(
            doubts.iter().filter(|(_, why)| why.starts_with("may have been sent")).count(),
            doubts.len()
        );
        assert_eq!(doubts.len(), usize::from(to == "bank"));
        session.roll_back_effects().await;
    }
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    assert!(matches!(send(&mut session, "bank", "silent").await, Err(GrantError::Denied(_))));
    assert!(matches!(send(&mut session, "people", "silent").await, Err(GrantError::Timeout(_))));
    assert_eq!(receiver.count("/silent"), 3);
    assert_eq!(session.writes_if_undone(&[1]).len(), 2);
}

#[tokio::test]
async fn a_verdict_that_asks_for_a_retry_asks_for_another_request() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let plugin = world.started(&capabilities, &sender()).await;
    for times in 1..3 {
        let mut session = plugin.open(&batch(&[1])).await.unwrap();
        send(&mut session, "bank", "one").await.unwrap();
        session.undo_effects(&[1]).await.unwrap();
        assert_eq!(receiver.count("/one"), times);
    }
    // Neither a call without a verdict nor one that is split causes another request.
    for is_apart in [false, true, false] {
        let mut session = plugin.open(&batch(&[1])).await.unwrap();
        send(&mut session, "bank", "one").await.unwrap();
        match is_apart {
            true => drop(session.undo_effects(&[]).await.unwrap()),
            false => session.roll_back_effects().await,
        }
        assert_eq!(receiver.count("/one"), 3);
    }
}

#[tokio::test]
async fn nothing_is_sent_that_the_journal_can_not_note_and_nobody_is_to_blame() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let plugin = world.started(&capabilities, &sender()).await;
    world.paper.is_away.store(true, Ordering::Relaxed);
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    assert!(matches!(send(&mut session, "bank", "one").await, Err(GrantError::Unavailable(_))));
    assert!(matches!(session.commit_effects(&[1]).await, Err(GrantError::Unavailable(_))));
    assert_eq!(receiver.count("/one"), 0);
    world.paper.is_away.store(false, Ordering::Relaxed);
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    send(&mut session, "bank", "one").await.unwrap();
    assert_eq!(receiver.count("/one"), 1);
}

#[tokio::test]
async fn a_destination_that_can_not_be_reached_was_sent_nothing() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let plugin = world.started(&capabilities, &sender()).await;
    for _ in 0..2 {
        let mut session = plugin.open(&batch(&[1])).await.unwrap();
        assert!(matches!(send(&mut session, "away", "one").await, Err(GrantError::Unavailable(_))));
        assert_eq!(session.in_doubt(), []);
        session.roll_back_effects().await;
    }
}

#[tokio::test]
async fn a_request_of_no_known_state_comes_again_alone_where_nothing_is_repeated() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let plugin = world.started(&capabilities, &sender()).await;
    let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
    assert!(matches!(send(&mut session, "bank", "one").await, Err(GrantError::Invalid(_))));
    assert!(
        matches!(session.commit_effects(&[1, 2]).await, Err(GrantError::Invalid(_))),
        "the batch is split"
    );
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    send(&mut session, "bank", "one").await.unwrap();
    // Without a key, a request is identified by its content.
    let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
    send(&mut session, "people", "one").await.unwrap();
    session.roll_back_effects().await;
    let mut session = plugin.open(&batch(&[2, 3])).await.unwrap();
    send(&mut session, "people", "one").await.unwrap();
    assert_eq!(receiver.count("/one"), 2);
}

#[tokio::test]
async fn a_request_that_only_reads_and_one_of_a_tick_without_an_id_are_sent_each_time() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let plugin = world.started(&capabilities, &sender()).await;
    for seqs in [&[1][..], &[]] {
        let mut session = plugin.open(&batch(seqs)).await.unwrap();
        let (to, method) = if seqs.is_empty() { ("people", "POST") } else { ("bank", "GET") };
        let request = HttpRequest { method: method.into(), ..post("one", None) };
        session.http_send(to, request).await.unwrap();
        session.roll_back_effects().await;
    }
    assert_eq!((receiver.count("/one"), world.paper.read()), (2, vec![]));
}

#[tokio::test]
async fn after_a_kill_a_tick_sends_again_only_what_was_in_the_air_until_a_tick_is_kept() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let id = |path: &str| post(path, Some(path));
    let killed = world.started(&capabilities, &sender()).await;
    let mut tick = killed.open(&[]).await.unwrap();
    tick.http_send("people", id("one")).await.unwrap();
    let silent = async |tick: &mut Box<dyn EffectSession>| {
        assert!(matches!(tick.http_send("people", id("silent")).await, Err(GrantError::Timeout(_))));
    };
    silent(&mut tick).await;
    drop((tick, killed));

    let plugin = world.started(&capabilities, &sender()).await;
    let mut tick = plugin.open(&[]).await.unwrap();
    // Its text may contain the time.
    let again = tick.http_send("people", post("other", Some("one"))).await.unwrap();
    assert_eq!(again.body, b"answer 1", "as it was answered");
    silent(&mut tick).await;
    tick.http_send("people", id("two")).await.unwrap();
    let count = |path: &str| receiver.count(path);
    assert_eq!((count("/one"), count("/other"), count("/silent"), count("/two")), (1, 0, 2, 1));
    world.paper.keep(&tick.commit_effects(&[]).await.unwrap());
    assert_eq!(world.paper.read(), [], "nothing is left of a tick that is kept");

    let mut tick = plugin.open(&[]).await.unwrap();
    tick.http_send("people", id("one")).await.unwrap();
    assert_eq!(count("/one"), 2, "a later tick asks for another one");
}

#[tokio::test]
async fn where_nothing_is_repeated_a_tick_sends_a_request_once_by_its_id_until_a_tick_is_kept() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let killed = world.started(&capabilities, &sender()).await;
    let mut tick = killed.open(&[]).await.unwrap();
    tick.http_send("bank", post("one", Some("digest-1"))).await.unwrap();
    assert!(matches!(
        tick.http_send("bank", post("silent", Some("digest-2"))).await,
        Err(GrantError::Timeout(_))
    ));
    let unnamed = tick.http_send("bank", post("two", None)).await;
    assert!(
        matches!(&unnamed, Err(GrantError::Invalid(why)) if why.contains("`Idempotency-Key`")),
        "{unnamed:?}"
    );
    drop((tick, killed));

    let plugin = world.started(&capabilities, &sender()).await;
    let in_doubt = async |tick: &mut Box<dyn EffectSession>| {
        let refused = tick.http_send("bank", post("silent", Some("digest-2"))).await;
        matches!(&refused, Err(GrantError::Denied(why)) if why.starts_with("may have been sent: an earlier tick"))
    };
    let mut tick = plugin.open(&[]).await.unwrap();
    // Its text may contain the time.
    let again = tick.http_send("bank", post("other", Some("digest-1"))).await.unwrap();
    assert_eq!(again.body, b"answer 1", "as it was answered");
    assert!(in_doubt(&mut tick).await);
    world.paper.keep(&tick.commit_effects(&[]).await.unwrap());

    let mut tick = plugin.open(&[]).await.unwrap();
    tick.http_send("bank", post("one", Some("digest-1"))).await.unwrap();
    assert!(in_doubt(&mut tick).await, "it stays so");
    assert_eq!((receiver.count("/one"), receiver.count("/silent"), receiver.count("/other")), (2, 1, 0));
}

#[tokio::test]
async fn a_message_by_e_mail_takes_the_way_of_a_request() {
    let (world, server) = (SessionWorld::new(), MailServer::start(Encryption::None, None).await.unwrap());
    let host: HostSpec = serde_json::from_value(json!({
        "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
        "mail": [{
            "name": "relay", "server": "127.0.0.1", "port": server.address.port(), "tls": "none", "rate": 100,
            "from": "kw@example.com", "recipients": ["example.com"], "repeat": "never",
        }],
    }))
    .unwrap();
    let capabilities = OpenCapabilities::open(&host, world.folder.path()).await.unwrap();
    let spec = plugin(json!({"mail": [{"name": "relay", "server": "relay"}]}));
    let mail = |id: &str| MailMessage {
        to: vec!["ada@example.com".into(), "nobody@example.com".into()],
        subject: "s".into(),
        text: "t".into(),
        html: None,
        id: id.into(),
    };
    let killed = world.started(&capabilities, &spec).await;
    let mut session = killed.open(&batch(&[1, 2])).await.unwrap();
    let refusals = session.mail_send("relay", mail("id-1")).await.unwrap();
    session.mail_send("relay", mail("id-2")).await.unwrap();
    drop((session, killed));
    let plugin = world.started(&capabilities, &spec).await;
    let mut session = plugin.open(&batch(&[1, 2])).await.unwrap();
    let again = session.mail_send("relay", mail("id-1")).await.unwrap();
    assert_eq!((again.len(), &again), (1, &refusals), "as it was answered");
    assert!(matches!(session.mail_send("relay", mail("id-2")).await, Err(GrantError::Denied(_))));
    assert_eq!((session.in_doubt().len(), server.received().len()), (1, 2));
}

#[tokio::test]
async fn notes_of_states_that_are_owed_stay_while_others_make_room() {
    let (world, receiver) = (SessionWorld::new(), CountingReceiver::default());
    let capabilities = opened(&world, &receiver.listen().await).await;
    let most = limits::INTENTS as Seq;
    let mut noted = RequestNotes::default();
    for seq in 1..=most {
        let (to, digest) = ("http people".into(), "0".into());
        let asked = PluginRequest { seqs: vec![seq], to, nth: 0, digest, version: "v1".into() };
        world.paper.keep(&[noted.note_request(asked, None).unwrap().1]);
    }
    let notes = world.paper.clone();
    let backing = PluginServices { kv: world.paper.read(), notes, ..backing(2 * most) };
    let plugin = capabilities.grant_plugin("p", &sender(), backing).await.unwrap();
    let later = batch(&[3 * most]);
    let mut session = plugin.open(&later).await.unwrap();
    let refused = send(&mut session, "people", "one").await;
    assert!(
        matches!(refused, Err(GrantError::Unavailable(_))),
        "it is not known yet what is owed: {refused:?}"
    );
    session.roll_back_effects().await;
    let owed = DurableCursor { cursor: 2 * most, receipts_from: Some(8_001) };
    capabilities.prune_receipts("p", owed, Duration::from_secs(60)).await.unwrap();
    let mut session = plugin.open(&later).await.unwrap();
    assert_eq!(send(&mut session, "people", "one").await.unwrap(), "answer 1");
    assert_eq!(world.paper.read().len() as Seq, most - 8_000 + 1);
}

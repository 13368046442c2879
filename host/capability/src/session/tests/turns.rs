//! Tests of concurrent calls of one plugin that write to `kv`: what is saved, and in which order.

use std::collections::HashMap;
use std::pin::pin;

use tokio::task::JoinSet;

use super::*;

const ROUNDS: u64 = 2000;
const CALLS: u64 = 4;

async fn writing(plugin: &Arc<dyn GrantProvider>, seq: Seq) -> Box<dyn EffectSession> {
    let mut session = plugin.open(&batch(&[seq])).await.unwrap();
    session.kv_set("last", seq.to_string().into_bytes()).unwrap();
    session
}

#[tokio::test]
async fn writes_to_kv_commit_once_those_before_are_taken_and_calls_without_writes_wait_for_nobody() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let (first, second) = (writing(&plugin, 1).await, writing(&plugin, 2).await);
    let idle = plugin.open(&batch(&[3])).await.unwrap();
    let first = first.commit_effects(&[1]).await.unwrap();
    let mut second = pin!(second.commit_effects(&[2]));
    assert!(futures::poll!(second.as_mut()).is_pending(), "the dispatcher does not have the first yet");
    assert!(idle.commit_effects(&[3]).await.unwrap().is_empty());
    assert_eq!(first.take()[0].value.as_deref(), Some(&b"1"[..]));
    assert_eq!(second.await.unwrap()[0].value.as_deref(), Some(&b"2"[..]));
}

#[tokio::test]
async fn a_call_that_is_given_up_while_it_waits_for_its_turn_leaves_its_kv_to_its_receipt() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &everything()).await;
    let first = writing(&plugin, 1).await.commit_effects(&[1]).await.unwrap();
    let mut second = writing(&plugin, 2).await;
    insert(&mut second, &[2]).await;
    {
        let mut given_up = pin!(second.commit_effects(&[2]));
        while applied(&plugin, &[2]).await.is_empty() {
            assert!(futures::poll!(given_up.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
    }
    drop(first);
    let session = plugin.open(&batch(&[2])).await.unwrap();
    assert!(session.applied_states().contains(&2));
    assert_eq!(session.kv_get("last"), Some(b"2".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[allow(clippy::disallowed_methods)]
async fn saves_end_with_what_the_last_of_many_calls_at_once_has_committed() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &plugin(json!({"kv": true}))).await;
    let mut saved = HashMap::new();
    for round in 0..ROUNDS {
        // As in the controller, each call is a task that reports its effects to the dispatcher.
        let (done, mut dispatcher) = tokio::sync::mpsc::unbounded_channel();
        let mut calls = JoinSet::new();
        for call in 1..=CALLS {
            let (plugin, done) = (plugin.clone(), done.clone());
            calls.spawn(async move {
                let seq = round * CALLS + call;
                done.send(writing(&plugin, seq).await.commit_effects(&[seq]).await.unwrap()).unwrap();
            });
        }
        drop(done);
        while let Some(writes) = dispatcher.recv().await {
            saved.extend(writes.take().into_iter().map(|write| (write.key, write.value)));
        }
        calls.join_all().await;
        let session = plugin.open(&batch(&[round * CALLS + 1])).await.unwrap();
        assert_eq!(saved["last"], session.kv_get("last"), "round {round}");
    }
}

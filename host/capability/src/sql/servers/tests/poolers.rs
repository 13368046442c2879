//! Tests of a granted database that is reached through PgBouncer.

use kubewitness_harness::Pooler;
use sqlx::{ConnectOptions as _, Executor as _};

use super::*;

/// Clients that each keep a session of the pooler.
const OTHERS: usize = 10;

/// A server and a pooler, to which the address in the secret leads; `None` if one is not installed.
async fn pooled(mode: &str, test: &str) -> Option<(ServerWorld, Pooler, String)> {
    let world = ServerWorld::on_shared(SqlService::Postgres, test)?;
    let pooler = Pooler::start(&world.server, mode, test).unwrap()?;
    let url = pooler.url(&world.url).unwrap();
    world.point_to(&url);
    Some((world, pooler, url))
}

fn names_the_remedy(error: &GrantError) -> bool {
    matches!(error, GrantError::Unavailable(why) if why.contains("`pool_mode = session`"))
}

#[tokio::test]
async fn a_pooler_that_shares_sessions_out_is_refused() {
    for mode in ["transaction", "statement"] {
        let Some((world, _pooler, _)) = pooled(mode, "poolers::a_pooler_that_shares_sessions_out").await
        else {
            return;
        };
        let engine = world.engine(PATIENCE);
        for refused in
            [engine.begin("p").await.err().unwrap(), engine.receipts_of_plugin("p").await.err().unwrap()]
        {
            assert!(names_the_remedy(&refused), "{mode}: {refused}");
        }
        // The address in the secret is read again for each connection.
        world.point_to(&world.url);
        assert_eq!(receipts(&engine).await, []);
        written(&engine, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
        assert_eq!(world.rows(), 1);
    }
}

#[tokio::test]
async fn a_pooler_that_lends_sessions_whole_serves_a_plugin() {
    let test = "poolers::a_pooler_that_lends_sessions_whole_serves_a_plugin";
    let Some((world, _pooler, _)) = pooled("session", test).await else { return };
    let engine = world.engine(PATIENCE);
    let (first, second) = (written(&engine, 1).await, written(&engine, 2).await);
    first.commit_with_receipt(&receipt(1)).await.unwrap();
    second.commit_with_receipt(&receipt(2)).await.unwrap();
    assert_eq!(engine.receipts_of_plugin("p").await.unwrap().len(), 2);
    assert_eq!(world.rows(), 2);
}

#[tokio::test]
async fn a_call_does_not_begin_in_a_session_that_was_not_set_up() {
    let test = "poolers::a_call_does_not_begin_in_a_session_that_was_not_set_up";
    let Some((world, pooler, url)) = pooled("session", test).await else { return };
    let engine = world.engine(PATIENCE);
    pooler.change_mode("transaction").unwrap();
    let (mut others, mut refusal, mut calls) = (Vec::new(), None, 0);
    while refusal.is_none() && others.len() < OTHERS {
        match engine.begin("p").await {
            Ok(mut transaction) => {
                calls += 1;
                transaction.write(row(calls), None).await.unwrap();
                transaction.commit_with_receipt(&receipt(calls)).await.unwrap();
            }
            Err(error) => refusal = Some(error),
        }
        // The pooler assigns the session that was returned last.
        let options = PostgresLink::parse_options(&url).unwrap();
        let mut other = options.connect().await.unwrap();
        other.execute("BEGIN; SELECT 1").await.unwrap();
        others.push(other);
    }
    let refusal = refusal.expect("calls began in sessions of other clients");
    assert!(names_the_remedy(&refusal), "{refusal}");
    assert_eq!(world.rows() as u64, calls);
}

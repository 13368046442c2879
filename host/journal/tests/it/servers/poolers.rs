//! A journal that is reached through PgBouncer.

use kubewitness_harness::Pooler;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use super::*;

/// Clients that each keep a session of the pooler.
const OTHERS: usize = 10;

fn through(pooler: &Pooler, beside: &SharedJournal) -> JournalLocation {
    JournalLocation::server(&pooler.url(&beside.address).unwrap()).unwrap()
}

fn names_the_remedy(text: &str) -> bool {
    text.contains("pooler") && text.contains("`pool_mode = session`")
}

#[tokio::test]
async fn a_pooler_that_shares_sessions_out_is_refused_before_anything_is_written() {
    const NAME: &str = "servers::poolers::a_pooler_that_shares_sessions_out_is_refused";
    on(StoreKind::Postgres, NAME, async {
        let beside = SharedJournal::new();
        for mode in ["transaction", "statement"] {
            let Some(pooler) = Pooler::start(beside.server, mode, NAME).unwrap() else { return };
            let error = refused(&through(&pooler, &beside)).await;
            assert!(matches!(&error, OpenError::Refused { .. }), "{mode}: {error}");
            assert!(names_the_remedy(&error.to_string()), "{mode}: {error}");
        }
        let tables = beside.run("SELECT count(*) FROM pg_class WHERE relname LIKE 'kw\\_%'");
        assert_eq!(tables.trim(), "0");
    })
    .await;
}

#[tokio::test]
async fn a_pooler_that_lends_sessions_whole_serves_a_journal() {
    const NAME: &str = "servers::poolers::a_pooler_that_lends_sessions_whole_serves_a_journal";
    on(StoreKind::Postgres, NAME, async {
        let beside = SharedJournal::new();
        let Some(pooler) = Pooler::start(beside.server, "session", NAME).unwrap() else { return };
        let place = through(&pooler, &beside);
        for version in [1, 2] {
            let journal = open_at(&place).await;
            journal.append_batch(of(SOURCE, 0, vec![present(&job(1), version)])).await.unwrap();
            assert_eq!(journal.read(0, 10).await.unwrap().len() as u64, version);
            let error = refused(&beside.place()).await;
            assert!(matches!(error, OpenError::Held { .. }), "the lock counts for direct clients: {error}");
            journal.close().await.unwrap();
        }
        assert!(verify_at(&place).await.unwrap().ok);
    })
    .await;
}

#[tokio::test]
async fn a_writer_whose_session_goes_to_another_client_does_not_write() {
    const NAME: &str = "servers::poolers::a_writer_whose_session_goes_to_another_client_does_not_write";
    on(StoreKind::Postgres, NAME, async {
        let beside = SharedJournal::new();
        let Some(pooler) = Pooler::start(beside.server, "session", NAME).unwrap() else { return };
        let journal = open_at(&through(&pooler, &beside)).await;
        pooler.change_mode("transaction").unwrap();
        let (mut others, mut refusal, mut version) = (Vec::new(), None, 0);
        while refusal.is_none() && others.len() < OTHERS {
            version += 1;
            refusal = journal.append_batch(of(SOURCE, 0, vec![present(&job(1), version)])).await.err();
            // The pooler assigns the session that was returned last.
            let options: PgConnectOptions = pooler.url(&beside.address).unwrap().parse().unwrap();
            let mut other = options.extra_float_digits(None).connect().await.unwrap();
            other.execute("BEGIN; SELECT 1").await.unwrap();
            others.push(other);
        }
        let refusal = refusal.expect("the writer got sessions that it did not lock").to_string();
        assert!(names_the_remedy(&refusal), "{refusal}");
        drop(others);
        drop(journal);
        // All acknowledged states exist.
        let report = verify_at(&beside.place()).await.unwrap();
        assert!(report.ok && report.states_checked == version - 1, "{report:#?}");
    })
    .await;
}

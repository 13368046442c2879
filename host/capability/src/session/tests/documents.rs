//! Tests of a call's reads: documents, their digests, and the cache.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kubewitness_core::ports::{ReadDocument, StateDocuments};

use super::*;

#[tokio::test]
async fn documents_are_those_of_this_call_and_errors_name_no_files() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = grants(&capabilities, &everything()).await;
    let mut session = plugin.open(&batch(&[1])).await.unwrap();
    assert!(session.document_of_state(1).await.unwrap().unwrap().starts_with(br#"{"seq":1,"#));
    assert!(matches!(session.document_of_state(2).await, Err(GrantError::Invalid(_))));
    let error = session.document_before(1).await.unwrap_err();
    assert!(!error.to_string().contains("journal.db"), "{error}");
}

/// Counts the requests for documents.
#[derive(Default)]
struct CountedReads(AtomicUsize);

#[async_trait]
impl kubewitness_core::ports::DocumentReader for CountedReads {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        SessionPapers.document_at(seq).await
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        SessionPapers.document_before(seq).await
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        SessionPapers.newest_of(object).await
    }
}

#[tokio::test]
async fn several_questions_about_one_document_read_it_once() {
    let (world, journal) = (SessionWorld::new(), Arc::new(CountedReads::default()));
    let backing = PluginServices { documents: journal.clone(), ..backing(0) };
    let granted = world.open().await.grant_plugin("p", &plugin(json!({})), backing).await.unwrap();
    let mut session = granted.open(&batch(&[1, 2])).await.unwrap();
    for seq in [1, 1, 1, 2, 2] {
        let document = session.document_of_state(seq).await.unwrap().unwrap();
        assert!(document.starts_with(format!("{{\"seq\":{seq},").as_bytes()));
    }
    assert_eq!(journal.0.load(Ordering::Relaxed), 2);
    session.roll_back_effects().await;
}

/// A journal that is read ahead, with a secret in each document.
#[derive(Default)]
struct AheadPapers {
    /// The states that were asked for, and whether with the versions before.
    ahead: Mutex<Vec<(Vec<Seq>, bool)>>,
    alone: AtomicUsize,
    /// States that are left out, as what is damaged.
    left_out: Vec<Seq>,
    fails: bool,
}

impl AheadPapers {
    fn document(seq: Seq, version: &str) -> Bytes {
        let variables = format!(r#"[{{"name":"HF_TOKEN","value":"hush-{seq}"}}]"#);
        Bytes::from(format!(r#"{{"seq":{seq},"version":"{version}","env":{variables}}}"#))
    }

    fn read_alone(&self, seq: Seq, version: &str) -> Result<Option<Bytes>, JournalError> {
        self.alone.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Self::document(seq, version)))
    }
}

#[async_trait]
impl kubewitness_core::ports::DocumentReader for AheadPapers {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.read_alone(seq, "own")
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.read_alone(seq, "before")
    }

    async fn read_ahead(&self, seqs: &[Seq], has_before: bool) -> Result<Vec<StateDocuments>, JournalError> {
        self.ahead.lock().unwrap().push((seqs.to_vec(), has_before));
        if self.fails {
            return Err(JournalError::Fatal("/data/journal.db: page 7".into()));
        }
        let before = |seq| match has_before {
            true => ReadDocument::Found(Self::document(seq, "before")),
            false => ReadDocument::Unread,
        };
        let documents = |seq: &Seq| StateDocuments {
            seq: *seq,
            own: ReadDocument::Found(Self::document(*seq, "own")),
            before: before(*seq),
        };
        Ok(seqs.iter().filter(|seq| !self.left_out.contains(seq)).map(documents).collect())
    }

    async fn newest_of(&self, _: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        Ok(Vec::new())
    }
}

/// Asks for both documents of each state, and checks that neither shows a secret.
async fn read_all(grants: &Arc<dyn GrantProvider>, seqs: &[Seq], is_hidden: bool) {
    let mut session = grants.open(&batch(seqs)).await.unwrap();
    for seq in seqs {
        let own = session.document_of_state(*seq).await.unwrap().unwrap();
        let before = session.document_before(*seq).await.unwrap().unwrap();
        for (document, version) in [(own, "own"), (before, "before")] {
            let text = String::from_utf8(document.to_vec()).unwrap();
            let begin =
                format!(r#"{{"seq":{seq},"version":"{version}","env":[{{"name":"HF_TOKEN","value":""#);
            assert!(text.starts_with(&begin), "{text}");
            assert_eq!(text.contains("hush"), !is_hidden, "{text}");
            assert_eq!(text.contains("redacted:"), is_hidden, "{text}");
        }
    }
    session.roll_back_effects().await;
}

#[tokio::test]
async fn documents_of_a_batch_are_read_ahead_and_each_answer_hides_its_secrets() {
    for (granted, is_hidden) in [("redacted", true), ("digest", true), ("raw", false)] {
        let journal = Arc::new(AheadPapers::default());
        let backing = PluginServices { documents: journal.clone(), ..backing(0) };
        let spec = plugin(json!({"documents": granted}));
        let grants = SessionWorld::new().open().await.grant_plugin("p", &spec, backing).await.unwrap();
        let seqs = Vec::from_iter(1..=40);
        read_all(&grants, &seqs, is_hidden).await;
        read_all(&grants, &seqs, is_hidden).await;
        let asked = journal.ahead.lock().unwrap().clone();
        let sizes: Vec<_> = asked.iter().map(|(seqs, _)| seqs.len()).collect();
        let expected: &[usize] = if granted == "redacted" { &[4, 8, 16, 12] } else { &[40] };
        assert_eq!(sizes, [expected, expected].concat(), "{granted}");
        assert!(asked.iter().skip(1).all(|(_, has_before)| *has_before), "it has asked for one before");
        // Of the first reads nobody knew that versions before are wanted.
        assert_eq!(journal.alone.load(Ordering::Relaxed), expected[0], "{granted}");
    }
}

#[tokio::test]
async fn what_is_not_read_ahead_is_read_alone_and_states_of_other_calls_are_refused() {
    for (fails, left_out) in [(true, vec![]), (false, vec![2, 3])] {
        let journal = Arc::new(AheadPapers { fails, left_out, ..AheadPapers::default() });
        let backing = PluginServices { documents: journal.clone(), ..backing(0) };
        let grants =
            SessionWorld::new().open().await.grant_plugin("p", &plugin(json!({})), backing).await.unwrap();
        read_all(&grants, &[1, 2, 3, 4, 5], true).await;
        let mut session = grants.open(&batch(&[1, 2])).await.unwrap();
        session.document_of_state(1).await.unwrap();
        assert!(matches!(session.document_of_state(3).await, Err(GrantError::Invalid(_))));
        assert!(matches!(session.document_before(3).await, Err(GrantError::Invalid(_))));
        session.roll_back_effects().await;
    }
}

/// A journal that lacks the last content of an object whose deletion a comparison found.
struct ContentlessJournal;

#[async_trait]
impl kubewitness_core::ports::DocumentReader for ContentlessJournal {
    async fn document_at(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        SessionPapers.document_at(seq).await.map(|found| found.filter(|_| seq > 1))
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        SessionPapers.newest_of(object).await
    }
}

#[tokio::test]
async fn a_state_without_a_document_has_none_for_every_plugin_and_no_digest() {
    for granted in ["redacted", "digest", "raw"] {
        let backing = PluginServices { documents: Arc::new(ContentlessJournal), ..backing(0) };
        let spec = plugin(json!({"documents": granted}));
        let grants = SessionWorld::new().open().await.grant_plugin("p", &spec, backing).await.unwrap();
        let states = batch(&[1]);
        let mut session = grants.open(&states).await.unwrap();
        let gone = Arc::new(State { change: Change::Gone, ..State::clone(&states[0].state) });
        let shown = session.show_state(&gone).await.unwrap();
        assert_eq!(
            (shown.document_digest, session.document_of_state(1).await),
            (None, Ok(None)),
            "{granted}"
        );
        session.roll_back_effects().await;
    }
}

#[test]
fn an_unknown_index_is_invalid_and_a_source_that_does_not_run_unavailable() {
    let granted = crate::objects::lister::GrantedLister::new(
        Arc::new(EmptyCache),
        &["jobs".to_string(), "pods".to_string()],
        None,
    );
    assert_eq!(granted.list_objects("jobs", "", "", 9), Ok(vec![]));
    assert_eq!(granted.list_objects("jobs", "label", "team=vision", 9), Ok(vec![]));
    let known = "there is no index `rack`; this source has namespace, owner, node, label";
    assert_eq!(granted.list_objects("jobs", "rack", "7", 9), Err(GrantError::Invalid(known.into())));
    let label = granted.list_objects("jobs", "label", "team", 9);
    assert!(matches!(label, Err(GrantError::Invalid(why)) if why.contains("`key=value`")));
    assert!(matches!(granted.list_objects("pods", "", "", 9), Err(GrantError::Unavailable(_))));
    assert!(matches!(granted.list_objects("nodes", "", "", 9), Err(GrantError::Denied(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_the_cache_to_show_its_states_and_no_longer_than_a_moment() {
    let granted =
        crate::objects::lister::GrantedLister::new(Arc::new(EmptyCache), &["jobs".to_string()], None);
    assert_eq!(granted.await_shown(&[delivery(98, "a")]).await, Ok(()));
    let late = granted.await_shown(&[delivery(98, "a"), delivery(99, "b")]).await;
    assert!(matches!(late, Err(GrantError::Unavailable(why)) if why.contains("`jobs`")));
    let elsewhere =
        crate::objects::lister::GrantedLister::new(Arc::new(EmptyCache), &["pods".to_string()], None);
    assert_eq!(elsewhere.await_shown(&[delivery(99, "b")]).await, Ok(()));
}

async fn document_for(capabilities: &OpenCapabilities, granted: serde_json::Value) -> String {
    let grants = grants(capabilities, &plugin(granted)).await;
    let mut session = grants.open(&batch(&[1])).await.unwrap();
    let document = session.document_of_state(1).await.unwrap().unwrap();
    session.roll_back_effects().await;
    String::from_utf8(document.to_vec()).unwrap()
}

#[tokio::test]
async fn a_plugin_reads_digests_in_the_place_of_secrets_unless_it_is_granted_raw_documents() {
    let world = SessionWorld::new();
    let redacted = document_for(&world.open().await, json!({})).await;
    assert!(redacted.starts_with(r#"{"seq":1,"env":[{"name":"HF_TOKEN","value":"redacted:"#), "{redacted}");
    assert!(!redacted.contains("hush"));
    // The key is in the data folder, so a digest is the same after a restart, and different elsewhere.
    assert_eq!(document_for(&world.open().await, json!({"documents": "redacted"})).await, redacted);
    assert_ne!(document_for(&SessionWorld::new().open().await, json!({})).await, redacted);
    assert!(document_for(&world.open().await, json!({"documents": "raw"})).await.contains("hush"));
}

#[tokio::test]
async fn a_plugin_gets_the_digest_of_raw_bytes_only_with_a_grant_for_it() {
    let world = SessionWorld::new();
    let raw = document_for(&world.open().await, json!({"documents": "raw"})).await;
    let expected = hex::encode(ring::digest::digest(&ring::digest::SHA256, raw.as_bytes()));
    for (granted, digest) in [
        (json!({}), None),
        (json!({"documents": "digest"}), Some(&expected)),
        (json!({"documents": "raw"}), Some(&expected)),
    ] {
        let grants = grants(&world.open().await, &plugin(granted)).await;
        let states = batch(&[1]);
        let mut session = grants.open(&states).await.unwrap();
        assert_eq!(session.show_state(&states[0].state).await.unwrap().document_digest.as_ref(), digest);
        session.roll_back_effects().await;
    }
    assert!(!document_for(&world.open().await, json!({"documents": "digest"})).await.contains("hush"));
}

#[tokio::test]
async fn a_plugin_is_told_where_it_will_never_hear_of_the_owner() {
    let world = SessionWorld::new();
    let grants = grants(&world.open().await, &plugin(json!({}))).await;
    let batch = batch(&[1]);
    let mut session = grants.open(&batch).await.unwrap();
    for (kind, expected) in [(None, true), (Some("Job"), true), (Some("JobSet"), false)] {
        let owner = |kind: &str| {
            Arc::new(ObjectRef { group: "batch".into(), kind: kind.into(), ..ObjectRef::default() })
        };
        let state = Arc::new(State { owner: kind.map(owner), ..(*batch[0].state).clone() });
        assert_eq!(session.show_state(&state).await.unwrap().has_subscribed_owner, expected, "{kind:?}");
    }
    session.roll_back_effects().await;
}

#[tokio::test]
async fn the_use_of_whole_documents_is_to_read_one_and_that_of_digests_is_to_be_handed_one() {
    let world = SessionWorld::new();
    for (granted, shown, read) in [("raw", 0, 1), ("digest", 1, 1), ("redacted", 0, 0)] {
        let spec = plugin(json!({"documents": granted}));
        let uses = Arc::new(uses::GrantUses::of(&spec.grants));
        let backing = PluginServices { uses: uses.clone(), ..backing(0) };
        let grants = world.open().await.grant_plugin("p", &spec, backing).await.unwrap();
        let states = batch(&[1]);
        let mut session = grants.open(&states).await.unwrap();
        let calls = || uses.counts_by_grant().map(|(_, calls)| calls).sum::<u64>();
        session.show_state(&states[0].state).await.unwrap();
        assert_eq!(calls(), shown, "{granted}");
        session.document_of_state(1).await.unwrap();
        assert_eq!(calls(), read, "{granted}");
        session.roll_back_effects().await;
    }
}

#[tokio::test]
async fn without_a_redaction_key_only_plugins_that_may_see_secrets_are_called_and_the_others_wait_for_it() {
    let world = SessionWorld::new();
    let place = world.folder.path().join("redaction.key");
    std::fs::create_dir(&place).unwrap();
    let capabilities = world.open().await;
    let faults = capabilities.closed_entries();
    assert!(faults.len() == 1 && faults[0].message.contains("the redaction key can't be read"), "{faults:?}");
    let waiting = grants(&capabilities, &plugin(json!({}))).await;
    let refused = waiting.open(&batch(&[1])).await.err().unwrap();
    assert!(matches!(&refused, GrantError::Unavailable(why) if why.contains("Move away")), "{refused:?}");
    assert!(document_for(&capabilities, json!({"documents": "raw"})).await.contains("hush"));

    std::fs::remove_dir(&place).unwrap();
    let again = capabilities.reload_settings(&world.settings(), world.folder.path()).await.unwrap();
    assert_eq!(again.closed_entries(), []);
    waiting.open(&batch(&[1])).await.unwrap().roll_back_effects().await;
}

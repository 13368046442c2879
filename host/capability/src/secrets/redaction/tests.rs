//! Tests of redacted documents, statuses and Events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kubewitness_core::document;
use kubewitness_core::ports::CurrentObject;
use kubewitness_core::state::RulesPrint;
use serde_json::json;

use super::*;

fn host(key: &serde_json::Value) -> HostSpec {
    serde_json::from_value(json!({"sources": [], "redaction": {"keyFrom": key}})).unwrap()
}

#[tokio::test]
async fn replicas_with_the_same_key_give_the_same_digests() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let key = folders[0].path().join("key");
    std::fs::write(&key, "k".repeat(32)).unwrap();
    let mut seen = Vec::new();
    for folder in &folders {
        let redaction = SecretRedaction::open(&host(&json!({"file": key})), folder.path()).await.unwrap();
        let secret = Bytes::from_static(br#"{"kind":"Secret","data":{"a":"eA=="}}"#);
        seen.push(redaction.redact_document(secret, &ThreadParty::Anybody).await.unwrap());
        assert!(!folder.path().join(FILE).exists(), "no key is made where one is named");
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_short_key_and_one_that_is_not_there_are_told_and_so_is_a_document_that_is_withheld() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "short").unwrap();
    for (key, message) in [(key, "openssl rand -hex 32"), (folder.path().join("none"), "can't be read")] {
        let redaction = SecretRedaction::open(&host(&json!({"file": key})), folder.path()).await.unwrap();
        let fault = redaction.retry_key().await.unwrap();
        assert_eq!(fault.field, "spec.redaction.keyFrom");
        assert!(fault.message.contains(message), "{fault:?}");
    }
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let withheld = redaction.redact_document(Bytes::from_static(b"{"), &ThreadParty::Anybody).await;
    assert!(withheld.unwrap_err().to_string().contains("withheld"));
}

#[tokio::test]
async fn without_a_key_no_secret_is_given_in_any_form_and_the_key_is_found_once_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join(FILE);
    std::fs::create_dir(&place).unwrap();
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let fault = redaction.retry_key().await.unwrap();
    assert_eq!(fault.field, "spec", "the manifest names no key");
    assert!(fault.message.contains("redaction.key: it is a folder"), "{fault:?}");
    let secret = || Bytes::from_static(br#"{"kind":"Secret","data":{"a":"eA=="}}"#);
    let error = redaction.redact_document(secret(), &ThreadParty::Anybody).await.unwrap_err().to_string();
    assert!(
        error.contains("the redaction key can't be read")
            && redaction.check_ready().unwrap_err().to_string() == error
    );
    let plain = Bytes::from_static(br#"{"kind":"Pod"}"#);
    assert_eq!(
        redaction.redact_document(plain.clone(), &ThreadParty::Anybody).await.unwrap(),
        plain,
        "it holds no secret"
    );
    std::fs::remove_dir(&place).unwrap();
    assert_eq!(redaction.retry_key().await, None);
    assert!(
        redaction.redact_document(secret(), &ThreadParty::Anybody).await.is_ok()
            && redaction.check_ready().is_ok()
    );
}

/// Each state has a document by its position, preceded by the document of a secret that was changed.
struct TestDocuments;

#[async_trait]
impl DocumentReader for TestDocuments {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        if seq == 5 {
            return self.document_before(seq).await;
        }
        let document = r#"{"kind":"Job","env":[{"name":"TOKEN","value":"hush-4711"},{"name":"PIN","value":"4711"},
            {"name":"A_TOKEN","value":"47"}]}"#;
        Ok((seq != 3).then(|| document.into()))
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(Some(Bytes::from_static(br#"{"env":[{"name":"TOKEN","value":"older-4711"}]}"#)))
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        let is_known = (&*object.uid, &*object.namespace) == ("known", "team");
        Ok(if is_known { vec![5, 3, 1] } else { Vec::new() })
    }
}

fn state(seq: Seq, message: &str, previous: Option<&str>) -> Arc<State> {
    let status = |message: &str| Status { message: message.into(), ..Status::default() };
    Arc::new(State {
        id: kubewitness_core::StateId::parse("x"),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change: kubewitness_core::Change::Present,
        object: Arc::default(),
        owner: None,
        resource_version: kubewitness_core::Version::new("1"),
        status: Arc::new(status(message)),
        previous: previous.map(|message| Arc::new(status(message))),
        observed_ms: 0,
        late: false,
        quotes_none_under: None,
    })
}

#[tokio::test]
async fn a_state_that_was_found_to_quote_nothing_is_shown_without_a_look_at_its_documents() {
    /// A document source without documents.
    struct ClosedDocuments;

    #[async_trait]
    impl DocumentReader for ClosedDocuments {
        async fn document_at(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
            Err(JournalError::Unavailable("nobody may ask".into()))
        }

        async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
            Err(JournalError::Unavailable("nobody may ask".into()))
        }

        async fn newest_of(&self, _: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
            Ok(Vec::new())
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let (plugin, print) = (ThreadParty::Plugin("a".into()), redaction.redaction_rules().rules_print());
    let found_under = |print| {
        let state = state(1, "the loss is not a number", Some("warming up"));
        Arc::new(State { quotes_none_under: print, ..State::clone(&state) })
    };
    let found = found_under(Some(print));
    assert_eq!(redaction.redact_state(&ClosedDocuments, &found, &plugin).await.unwrap(), found);
    let other = RulesPrint::from_bits(print.bits() ^ 1);
    for unknown in [None, other] {
        let shown = redaction.redact_state(&ClosedDocuments, &found_under(unknown), &plugin).await;
        assert!(shown.is_err(), "what was found under other rules says nothing: {shown:?}");
    }
}

fn event(kind: &str, uid: &str, namespace: &str) -> Bytes {
    json!({
        "kind": "Event", "metadata": {"namespace": namespace},
        "involvedObject": {"apiVersion": "batch/v1", "kind": kind, "name": "a", "namespace": namespace, "uid": uid},
        "message": "no login with hush-4711, nor older-4711",
    })
    .to_string()
    .into()
}

#[tokio::test]
async fn a_person_and_a_plugin_read_no_secret_of_the_object_that_an_event_is_about() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = json!({"sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}]});
    let host: HostSpec = serde_json::from_value(jobs).unwrap();
    let redaction = Arc::new(SecretRedaction::open(&host, folder.path()).await.unwrap());
    let hidden = RedactedDocuments {
        documents: Arc::new(TestDocuments),
        redaction: redaction.clone(),
        party: ThreadParty::Plugin("a".into()),
    };
    let message = async |event: Bytes| {
        let reading = || std::future::ready(Ok(Some(event.clone())));
        let shown = redaction.read(&TestDocuments, reading(), &ThreadParty::Anybody).await.unwrap();
        assert_eq!(hidden.redacted_document(reading()).await.unwrap(), shown, "a plugin");
        let shown: Value = serde_json::from_slice(&shown.unwrap()).unwrap();
        shown["message"].as_str().unwrap().to_owned()
    };
    let text = message(event("Job", "known", "team")).await;
    assert!(text.starts_with("no login with redacted:") && text.contains(", nor redacted:"), "{text}");
    assert!(!text.contains("4711"), "{text}");
    for unknown in [event("Job", "new", "team"), event("Job", "", "team")] {
        let text = message(unknown).await;
        assert!(text.starts_with("redacted:") && !text.contains("login"), "nobody knows its secrets: {text}");
    }
    let text = message(event("Job", "known", "other")).await;
    assert!(!text.contains("login"), "it would tell who guesses a secret of another namespace: {text}");
    let text = message(event("Pod", "new", "team")).await;
    assert!(text.contains("hush-4711"), "pods are not watched: {text}");
    redaction.set_watched(&[]);
    assert!(message(event("Job", "new", "team")).await.contains("hush-4711"));
}

#[tokio::test]
async fn a_secret_that_a_status_quotes_is_replaced_by_the_digest_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let document = redaction
        .redact_document(TestDocuments.document_at(1).await.unwrap().unwrap(), &ThreadParty::Anybody)
        .await
        .unwrap();
    let document = String::from_utf8(document.to_vec()).unwrap();
    let digest = &document[document.find("redacted:").unwrap()..][..25];
    let quoting = state(1, "bad token 'hush-4711' of 47", Some("was older-4711"));
    for _ in 0..2 {
        let shown = redaction.redact_state(&TestDocuments, &quoting, &ThreadParty::Anybody).await.unwrap();
        assert_eq!(shown.status.message, format!("bad token '{digest}' of 47"));
        let before = &shown.previous.as_ref().unwrap().message;
        assert!(before.starts_with("was redacted:") && !before.contains(digest), "{before}");
    }
    let redacted = redaction
        .redact_state(&TestDocuments, &state(7, "", Some("was older-4711")), &ThreadParty::Anybody)
        .await
        .unwrap();
    assert!(
        !redacted.previous.as_ref().unwrap().message.contains("older"),
        "its document is gone: {redacted:?}"
    );
    let plain = state(2, "all is well", None);
    assert!(Arc::ptr_eq(
        &redaction.redact_state(&TestDocuments, &plain, &ThreadParty::Anybody).await.unwrap(),
        &plain
    ));
    let ended = state(3, "older-4711", None);
    assert!(
        redaction
            .redact_state(&TestDocuments, &ended, &ThreadParty::Anybody)
            .await
            .unwrap()
            .status
            .message
            .starts_with("redacted:")
    );
    let current = CurrentObject {
        object: Arc::default(),
        owner: None,
        resource_version: kubewitness_core::Version::new("1"),
        status: quoting.status.clone(),
        seq: 1,
        observed_ms: 0,
        packed: document::pack_document(&TestDocuments.document_at(1).await.unwrap().unwrap()),
    };
    let patience = &mut AnswerPatience::of_a_list();
    assert!(redaction.redact_current(&current, patience).await.unwrap().message.contains(digest));
}

#[tokio::test]
async fn a_list_shows_a_status_without_its_texts_while_a_long_document_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let mut redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    redaction.threads = RedactionThreads::with_places(2);
    let filling = "x".repeat(100_000);
    let document = json!({"kind": "Job", "filling": filling, "spec": {"env": [{"name": "TOKEN", "value": "hush-4711"}]}});
    let of = |namespace: &str, seq: Seq| CurrentObject {
        object: Arc::new(ObjectRef { namespace: namespace.into(), ..ObjectRef::default() }),
        owner: None,
        resource_version: kubewitness_core::Version::new("1"),
        status: state(seq, "out of memory", None).status.clone(),
        seq,
        observed_ms: 0,
        packed: document::pack_document(document.to_string().as_bytes()),
    };
    // A larger document of the namespace is being examined.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let party = ThreadParty::Namespace("red".into());
    let longer = redaction.threads.run(&party, 1 << 20, move || ended.recv().is_ok());
    let lists = async {
        let mut patience = AnswerPatience::of_a_list();
        let began = std::time::Instant::now();
        for seq in 1..100 {
            let shown = redaction.redact_current(&of("red", seq), &mut patience).await.unwrap();
            assert!(shown.message.starts_with("redacted:"), "{shown:?}");
        }
        // Waiting for a hundred would take far longer, but a busy machine needs more than the time of one.
        assert!(began.elapsed() < Duration::from_secs(10), "one row waits, and no other one");
        // A busy machine may take longer for it than a list waits.
        let other =
            redaction.redact_current(&of("blue", 100), &mut AnswerPatience::of_a_request()).await.unwrap();
        assert_eq!(other.message, "out of memory", "another namespace waits for nothing");
        assert!(redaction.threads.is_full(&party), "no list adds to what waits without end");
        end.send(()).unwrap();
    };
    let (longer, ()) = tokio::join!(longer, lists);
    assert_eq!(longer, Ok(true));
    // The rows that no list waited for are examined, too.
    while redaction.currents.get(&60).is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let shown = redaction.redact_current(&of("red", 60), &mut AnswerPatience::without_time()).await.unwrap();
    assert_eq!(shown.message, "out of memory");
}

/// Records the documents that are read. Each read waits until it is released.
#[derive(Default)]
struct SlowDocuments {
    read: std::sync::atomic::AtomicUsize,
    go: tokio::sync::Notify,
}

#[async_trait]
impl DocumentReader for SlowDocuments {
    async fn document_at(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        self.read.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.go.notified().await;
        Ok(Some(Bytes::from_static(br#"{"env":[{"name":"TOKEN","value":"hush-4711"}]}"#)))
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn newest_of(&self, _: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        Ok(vec![1])
    }
}

#[tokio::test]
async fn what_waits_for_its_turn_has_nothing_in_memory_and_one_state_is_looked_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let documents = SlowDocuments::default();
    let read = || documents.read.swap(0, std::sync::atomic::Ordering::SeqCst);
    let party = ThreadParty::Person("ann".into());
    let reading = async || redaction.read(&documents, documents.document_at(1), &party).await;
    let mut many = Box::pin(futures::future::join_all((0..20).map(|_| reading())));
    assert!(futures::poll!(many.as_mut()).is_pending());
    assert_eq!(read(), TURNS);
    drop(many);
    let same = state(1, "quotes hush-4711", None);
    let seen = async || redaction.redact_state(&documents, &same, &party).await;
    let mut herd = Box::pin(futures::future::join_all((0..20).map(|_| seen())));
    assert!(futures::poll!(herd.as_mut()).is_pending());
    documents.go.notify_one();
    let shown = herd.await;
    assert_eq!(read(), 1, "everybody waits for the first one");
    assert!(shown.iter().all(|shown| !shown.as_ref().unwrap().status.message.contains("hush")));
    let states = (10..30).map(|seq| state(seq, "quotes hush-4711", None)).collect::<Vec<_>>();
    let lookups = states.iter().map(|state| redaction.redact_state(&documents, state, &party));
    let mut lookups = Box::pin(futures::future::join_all(lookups));
    assert!(futures::poll!(lookups.as_mut()).is_pending());
    assert_eq!(read(), TURNS);
}

#[tokio::test]
async fn events_of_a_list_wait_no_longer_than_the_list_and_the_next_list_has_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let team = ThreadParty::Namespace("team".into());
    let all_turns =
        || (0..TURNS).map(|_| redaction.object_turns.take_at_once(&team).unwrap()).collect::<Vec<_>>();
    let held = all_turns();
    let (mut patience, mut objects) = (AnswerPatience::of_a_list(), HashMap::new());
    let text_of = async |patience: &mut AnswerPatience, objects: &mut HashMap<_, _>| {
        let (event, party) = (event("Job", "known", "team"), ThreadParty::Person("ann".into()));
        let shown = redaction.redact_event(&TestDocuments, event, objects, &party, patience).await.unwrap();
        String::from_utf8(shown.to_vec()).unwrap()
    };
    assert!(!text_of(&mut patience, &mut objects).await.contains("no login"), "its text is withheld");
    drop(held);
    let text = text_of(&mut patience, &mut HashMap::new()).await;
    assert!(text.contains("no login with redacted:") && !text.contains("4711"), "{text}");
    let _held = all_turns();
    assert!(
        text_of(&mut AnswerPatience::without_time(), &mut HashMap::new()).await.contains("no login"),
        "it is kept"
    );
}

/// Documents that record the number of concurrent requests.
#[derive(Default)]
struct CountingDocuments {
    open: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl DocumentReader for CountingDocuments {
    async fn document_at(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(Some(Bytes::from_static(br#"{"kind":"Job"}"#)))
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(open, Ordering::Relaxed);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        Ok(vec![object.uid.parse().unwrap()])
    }
}

#[tokio::test]
async fn objects_of_a_page_of_events_are_looked_up_a_few_at_the_same_time_and_each_once() {
    let folder = tempfile::tempdir().unwrap();
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let event = |uid: usize| {
        let about = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "a", "namespace": "team",
            "uid": uid.to_string()});
        Bytes::from(json!({"apiVersion": "v1", "kind": "Event", "involvedObject": about}).to_string())
    };
    let events: Vec<_> = (0..30).map(|number| event(number % 10)).collect();
    let (documents, mut objects) = (CountingDocuments::default(), HashMap::new());
    let mut patience = AnswerPatience::of_a_request();
    let find =
        redaction.find_objects(&documents, events.iter(), &mut objects, &ThreadParty::Anybody, &mut patience);
    find.await.unwrap();
    assert_eq!(objects.len(), 10);
    assert_eq!(documents.most.load(Ordering::Relaxed), TURNS, "not one after another, and not all at once");
}

#[tokio::test]
async fn short_documents_give_the_runtime_a_turn_now_and_then_and_not_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let redaction = SecretRedaction::open(&HostSpec::default(), folder.path()).await.unwrap();
    let document = Bytes::from(json!({"kind": "Job", "metadata": {"name": "a".repeat(1_000)}}).to_string());
    let mut turns = 0;
    for _ in 0..200 {
        // The runtime's limit for a task's turn must not interfere here.
        tokio::task::yield_now().await;
        let redact = redaction.redact_document(document.clone(), &ThreadParty::Anybody);
        let mut redact = std::pin::pin!(redact);
        turns += usize::from(futures::poll!(redact.as_mut()).is_pending());
        if turns > 20 {
            break;
        }
    }
    assert!((1..=20).contains(&turns), "{turns} of 200");
}

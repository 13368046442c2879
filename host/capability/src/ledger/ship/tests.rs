use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_core::config::{Duration as Span, SecretRef};
use kubewitness_harness::{Dice, seed};
use ring::digest::{SHA256, digest};

use super::*;

const DAY_MS: u64 = 86_400_000;
const CHECKSUM: &str = "x-amz-checksum-sha256";

/// A bucket in memory with faults.
#[derive(Default)]
struct MemoryBucket {
    objects: Mutex<BTreeMap<String, Bytes>>,
    puts: AtomicU64,
    /// Answers 403 to everything.
    refuses: AtomicBool,
    /// Answers 403 with this text to each upload, unless it is empty.
    refusal: Mutex<String>,
    /// Stores other bytes than those sent.
    alters: AtomicBool,
    /// Reports no digests.
    is_silent: AtomicBool,
    /// Stores the first half of each upload.
    halves: AtomicBool,
    /// Reports the digest that came with the last upload.
    echoes: AtomicBool,
    echo: Mutex<String>,
    /// Ignores conditions.
    is_old: AtomicBool,
    /// Stores this under each missing name that is requested, as another writer would right after the
    /// request.
    rival: Mutex<Option<Bytes>>,
}

async fn answer(Shared(storage): Shared<Arc<MemoryBucket>>, request: Request) -> Response {
    if storage.refuses.load(Ordering::Relaxed) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    let value = request.headers().get(CHECKSUM).map(|value| value.to_str().unwrap().to_owned());
    let is_conditional = request.headers().get("if-none-match").is_some_and(|asked| asked == "*");
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let of = |bytes: &[u8]| STANDARD.encode(digest(&SHA256, bytes));
    if method == "PUT" {
        let refusal = storage.refusal.lock().unwrap().clone();
        if !refusal.is_empty() {
            return (StatusCode::FORBIDDEN, refusal).into_response();
        }
        assert_eq!(value, Some(of(&body)), "the digest is that of what arrives");
        if is_conditional && storage.is_old.load(Ordering::Relaxed) {
            return StatusCode::NOT_IMPLEMENTED.into_response();
        }
        if is_conditional && storage.objects.lock().unwrap().contains_key(&path) {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        *storage.echo.lock().unwrap() = of(&body);
        let kept = match storage.alters.load(Ordering::Relaxed) {
            false if storage.halves.load(Ordering::Relaxed) => body.slice(..body.len() / 2),
            true => Bytes::from(body.iter().rev().copied().collect::<Vec<_>>()),
            false => body,
        };
        storage.objects.lock().unwrap().insert(path, kept);
        storage.puts.fetch_add(1, Ordering::Relaxed);
        return StatusCode::OK.into_response();
    }
    let Some(found) = storage.objects.lock().unwrap().get(&path).cloned() else {
        let rival = storage.rival.lock().unwrap().clone();
        storage.objects.lock().unwrap().extend(rival.map(|rival| (path, rival)));
        return StatusCode::NOT_FOUND.into_response();
    };
    if storage.echoes.load(Ordering::Relaxed) {
        return ([(CHECKSUM, storage.echo.lock().unwrap().clone())], found).into_response();
    }
    match storage.is_silent.load(Ordering::Relaxed) {
        true => found.into_response(),
        false => ([(CHECKSUM, of(&found))], found).into_response(),
    }
}

#[derive(Default)]
struct BucketHand(AtomicU64);

impl Clock for BucketHand {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }
}

/// A ledger's folder, a bucket, and the shipper between them.
struct ShipScene {
    _folder: tempfile::TempDir,
    storage: Arc<MemoryBucket>,
    clock: Arc<BucketHand>,
    spec: ShipSpec,
    shipper: FileShipper,
}

impl ShipScene {
    #[allow(clippy::disallowed_methods)]
    async fn new(files: u64) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let storage = Arc::<MemoryBucket>::default();
        let app = Router::new().fallback(answer).with_state(storage.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "hush").unwrap();
        let secret = SecretRef::File(secret.display().to_string());
        let spec = ShipSpec {
            endpoint: format!("http://{address}"),
            bucket: "trails".into(),
            prefix: "here/".into(),
            region: "us-east-1".into(),
            path_style: true,
            access_key_from: secret.clone(),
            secret_key_from: secret,
            allow_plain: true,
            addresses: Vec::new(),
            keep: Some(Span(Duration::from_millis(DAY_MS))),
        };
        let clock = Arc::<BucketHand>::default();
        clock.0.store(100 * DAY_MS, Ordering::Relaxed);
        let shipper = FileShipper::new("trail", &folder.path().join("trail.jsonl"), &spec, clock.clone());
        std::fs::write(folder.path().join("trail.jsonl"), "{}\n").unwrap();
        let scene = Self { _folder: folder, storage, clock, spec, shipper };
        (1..=files).for_each(|number| scene.close(number));
        scene
    }

    fn closed(&self, number: u64) -> PathBuf {
        closed_file(&self.shipper.path, number)
    }

    fn text(number: u64) -> String {
        format!("{{\"n\":{number}}}\n").repeat(1000)
    }

    fn close(&self, number: u64) {
        std::fs::write(self.closed(number), Self::text(number)).unwrap();
    }

    fn is_here(&self, number: u64) -> bool {
        self.closed(number).exists()
    }

    fn in_bucket(&self, number: u64) -> Option<Bytes> {
        let objects = self.storage.objects.lock().unwrap();
        objects.get(&format!("/trails/here/{}", name_of(&self.closed(number)))).cloned()
    }

    fn has_it(&self, number: u64) -> bool {
        self.in_bucket(number).is_some_and(|bytes| bytes == Self::text(number))
    }

    /// Runs the shipper, after any wait.
    async fn turn(&self) -> ShippingStatus {
        self.clock.0.fetch_add(as_millis_u64(ShipPauses::default().longest), Ordering::Relaxed);
        self.shipper.run_if_due().await;
        self.shipper.shipping_status()
    }

    fn puts(&self) -> u64 {
        self.storage.puts.load(Ordering::Relaxed)
    }

    /// Restarts the controller's process.
    fn restart(&mut self) {
        self.shipper = FileShipper::new("trail", &self.shipper.path, &self.spec, self.clock.clone());
    }
}

#[tokio::test]
async fn closed_files_are_in_the_bucket_and_noted_and_the_open_one_stays() {
    for is_silent in [false, true] {
        let scene = ShipScene::new(2).await;
        scene.storage.is_silent.store(is_silent, Ordering::Relaxed);
        let shipping = scene.turn().await;
        let expected = ShippingStatus {
            shipped: 2,
            waiting_since_ms: shipping.waiting_since_ms,
            ..ShippingStatus::default()
        };
        assert_eq!(shipping, expected);
        assert!(scene.has_it(1) && scene.has_it(2));
        let note = ShippedNote::read(&scene.shipper.path, 2).unwrap().unwrap();
        assert_eq!(note.place, format!("{}/trails/here/trail-000002.jsonl", scene.spec.endpoint));
        assert_eq!(scene.turn().await.waiting, 0);
        assert_eq!((scene.puts(), scene.storage.objects.lock().unwrap().len()), (2, 2));
    }
}

#[tokio::test]
async fn a_file_that_another_writes_after_the_look_is_not_overwritten() {
    let scene = ShipScene::new(1).await;
    let rival = Bytes::from_static(b"of another");
    *scene.storage.rival.lock().unwrap() = Some(rival.clone());
    let trouble = scene.turn().await.trouble.unwrap();
    assert!(trouble.contains("nothing there is overwritten") || trouble.contains("keeps 10 of"), "{trouble}");
    assert_eq!((scene.puts(), scene.storage.objects.lock().unwrap().values().next()), (0, Some(&rival)));
}

#[tokio::test]
async fn a_storage_without_conditional_writes_gets_the_file_all_the_same() {
    let scene = ShipScene::new(1).await;
    scene.storage.is_old.store(true, Ordering::Relaxed);
    assert_eq!((scene.turn().await.shipped, scene.puts(), scene.has_it(1)), (1, 1, true));
}

#[tokio::test]
async fn many_files_are_shipped_over_several_turns_without_a_pause_between() {
    let scene = ShipScene::new(AT_ONCE as u64 + 3).await;
    assert_eq!(scene.turn().await.waiting, 3);
    // At the same moment.
    scene.shipper.run_if_due().await;
    assert_eq!(scene.shipper.shipping_status().shipped, AT_ONCE as u64 + 3);
}

#[tokio::test]
async fn a_lost_note_or_a_kill_before_it_ships_again_and_finds_the_file_there() {
    let mut scene = ShipScene::new(1).await;
    scene.turn().await;
    std::fs::remove_file(ShippedNote::path(&scene.shipper.path, 1)).unwrap();
    scene.restart();
    let shipping = scene.turn().await;
    assert_eq!((shipping.shipped, shipping.trouble, scene.puts()), (1, None, 1));
    assert!(ShippedNote::read(&scene.shipper.path, 1).unwrap().is_some());
    // With the note, the bucket is not even asked for the file.
    scene.storage.refuses.store(true, Ordering::Relaxed);
    scene.restart();
    assert_eq!(scene.turn().await.trouble, None);
}

#[tokio::test]
async fn a_storage_that_refuses_or_is_away_is_told_and_tried_again_after_growing_waits() {
    let scene = ShipScene::new(1).await;
    scene.storage.refuses.store(true, Ordering::Relaxed);
    let trouble = scene.turn().await.trouble.unwrap();
    assert!(trouble.contains("403") && trouble.contains("rights") && !trouble.contains("hush"), "{trouble}");
    let mut waits = Vec::new();
    for _ in 0..9 {
        scene.clock.0.store(scene.shipper.lock_state().due_ms, Ordering::Relaxed);
        scene.shipper.run_if_due().await;
        waits.push(scene.shipper.lock_state().due_ms - scene.clock.now_ms());
    }
    assert_eq!(waits[..3], [10_000, 20_000, 40_000]);
    assert_eq!(waits[8], as_millis_u64(ShipPauses::default().longest));
    // Nothing is sent before the wait is over.
    let failed = scene.shipper.shipping_status().failed;
    scene.shipper.run_if_due().await;
    assert_eq!(scene.shipper.shipping_status().failed, failed);
    scene.storage.refuses.store(false, Ordering::Relaxed);
    assert_eq!(scene.turn().await.trouble, None);
    assert!(scene.has_it(1));

    let away = ShipSpec { endpoint: "http://127.0.0.1:1".into(), ..scene.spec.clone() };
    let shipper = FileShipper::new("trail", &scene.shipper.path, &away, scene.clock.clone());
    shipper.run_if_due().await;
    let shipping = shipper.shipping_status();
    assert!(shipping.trouble.unwrap().contains("can't be reached"));
    assert_eq!(shipping.waiting, 1, "a note of another bucket is none of this one");
}

#[tokio::test]
async fn a_long_refusal_is_read_up_to_its_bound() {
    let scene = ShipScene::new(1).await;
    let refuse = |text: String| *scene.storage.refusal.lock().unwrap() = text;
    refuse("<Error><Code>AccessDenied</Code></Error>".into());
    let trouble = scene.turn().await.trouble.unwrap();
    assert!(trouble.contains("403 AccessDenied when storing `trail-000001.jsonl`"), "{trouble}");
    refuse(format!("{}<Code>Late</Code>", " ".repeat(1 << 20)));
    let trouble = scene.turn().await.trouble.unwrap();
    assert!(trouble.contains("403 when storing"), "{trouble}");
}

#[tokio::test]
async fn a_name_with_other_bytes_is_told_never_overwritten_and_never_noted() {
    let scene = ShipScene::new(2).await;
    scene.storage.alters.store(true, Ordering::Relaxed);
    let trouble = scene.turn().await.trouble.unwrap();
    assert!(trouble.contains("other bytes under `here/trail-000001.jsonl`"), "{trouble}");
    scene.storage.alters.store(false, Ordering::Relaxed);
    // A fault of one file does not delay the others.
    scene.close(3);
    let shipping = scene.turn().await;
    assert!(shipping.trouble.is_some() && scene.has_it(3) && !scene.has_it(1));
    assert_eq!(scene.puts(), 3);
    scene.clock.0.fetch_add(2 * DAY_MS, Ordering::Relaxed);
    assert_eq!(scene.turn().await.removed, 1);
    assert!(scene.is_here(1) && scene.is_here(2) && !scene.is_here(3));
}

#[tokio::test]
async fn a_sending_that_broke_off_is_sent_again_and_holds_up_no_other_file() {
    let scene = ShipScene::new(1).await;
    scene.storage.halves.store(true, Ordering::Relaxed);
    let trouble = scene.turn().await.trouble.unwrap();
    assert!(trouble.contains("keeps 4000 of the 8000 bytes of `here/trail-000001.jsonl`"), "{trouble}");
    scene.storage.halves.store(false, Ordering::Relaxed);
    scene.close(2);
    // The new file is sent before the first one is tried again.
    let wait = scene.shipper.lock_state().due_ms - scene.clock.now_ms();
    assert_eq!(wait, as_millis_u64(ShipPauses::default().look));
    scene
        .shipper
        .lock_state()
        .held
        .values_mut()
        .for_each(|held| held.due_ms += as_millis_u64(ShipPauses::default().look));
    scene.clock.0.fetch_add(wait, Ordering::Relaxed);
    scene.shipper.run_if_due().await;
    assert!(scene.has_it(2) && !scene.has_it(1));
    let trouble = scene.shipper.shipping_status().trouble;
    assert!(
        trouble.is_some_and(|trouble| trouble.contains("4000 of the 8000")),
        "it is told while the file waits"
    );
    assert_eq!(scene.turn().await.trouble, None);
    assert!(scene.has_it(1));
    // A smaller object of another writer is not replaced.
    let key = format!("/trails/here/{}", name_of(&scene.closed(3)));
    scene.storage.objects.lock().unwrap().insert(key, Bytes::from("of another"));
    scene.close(3);
    assert!(scene.turn().await.trouble.unwrap().contains("other bytes"));
    assert_eq!(scene.in_bucket(3).unwrap(), "of another");
}

#[tokio::test]
async fn many_files_that_something_is_wrong_with_leave_room_for_the_next_one() {
    let scene = ShipScene::new(AT_ONCE as u64).await;
    scene.storage.alters.store(true, Ordering::Relaxed);
    scene.turn().await;
    scene.storage.alters.store(false, Ordering::Relaxed);
    let next = AT_ONCE as u64 + 1;
    scene.close(next);
    scene.shipper.lock_state().held.values_mut().for_each(|held| held.due_ms = scene.clock.now_ms() + 20_000);
    scene.clock.0.fetch_add(as_millis_u64(ShipPauses::default().look), Ordering::Relaxed);
    scene.shipper.run_if_due().await;
    assert!(scene.has_it(next));
}

#[tokio::test]
async fn a_storage_that_repeats_the_digest_it_was_told_is_read_back_before_a_file_is_removed() {
    let scene = ShipScene::new(1).await;
    scene.storage.echoes.store(true, Ordering::Relaxed);
    scene.storage.alters.store(true, Ordering::Relaxed);
    assert_eq!(scene.turn().await.shipped, 1);
    assert!(!scene.has_it(1));
    scene.clock.0.fetch_add(2 * DAY_MS, Ordering::Relaxed);
    assert!(scene.turn().await.trouble.unwrap().contains("other bytes under `here/trail-000001.jsonl`"));
    assert!(scene.is_here(1), "it is the only copy");
}

#[tokio::test]
async fn a_file_is_removed_after_its_time_and_only_if_both_copies_are_what_was_shipped() {
    let scene = ShipScene::new(3).await;
    scene.turn().await;
    assert!((1..=3).all(|number| scene.is_here(number)), "its time has not come");
    scene.clock.0.fetch_add(2 * DAY_MS, Ordering::Relaxed);
    // One file's object is removed from the bucket, and another file is changed locally.
    scene.storage.objects.lock().unwrap().remove("/trails/here/trail-000001.jsonl");
    std::fs::write(scene.closed(2), "changed").unwrap();
    let shipping = scene.turn().await;
    assert!(shipping.trouble.unwrap().contains("`trail-000002.jsonl` has changed"));
    assert_eq!((scene.is_here(1), scene.is_here(2), scene.is_here(3)), (true, true, false));
    assert!(!ShippedNote::path(&scene.shipper.path, 3).exists());
    scene.turn().await;
    assert!(scene.has_it(1) && scene.is_here(1), "it is shipped again, and kept from then on");
}

#[tokio::test]
async fn without_keep_or_before_the_next_file_has_begun_nothing_is_removed() {
    let mut scene = ShipScene::new(1).await;
    scene.spec.keep = None;
    scene.restart();
    scene.turn().await;
    scene.clock.0.fetch_add(10_000 * DAY_MS, Ordering::Relaxed);
    scene.turn().await;
    assert!(scene.has_it(1) && scene.is_here(1));
    scene.spec.keep = Some(Span(Duration::from_millis(DAY_MS)));
    scene.restart();
    std::fs::remove_file(&scene.shipper.path).unwrap();
    scene.turn().await;
    assert!(scene.is_here(1), "a start may have to go on with closing it");
}

/// Whatever fails in between, a file that was removed locally exists in the bucket.
#[tokio::test]
async fn at_no_time_a_file_is_neither_here_nor_in_the_bucket() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    let mut scene = ShipScene::new(0).await;
    let mut closed = 0;
    for step in 0..400 {
        match dice.below(8) {
            0 | 1 => {
                closed += 1;
                scene.close(closed);
            }
            2 => {
                scene.storage.refuses.fetch_xor(true, Ordering::Relaxed);
            }
            3 => {
                scene.storage.alters.fetch_xor(true, Ordering::Relaxed);
            }
            4 => {
                scene.storage.is_silent.fetch_xor(true, Ordering::Relaxed);
            }
            5 => {
                scene.clock.0.fetch_add(DAY_MS / 2, Ordering::Relaxed);
            }
            6 => {
                // Lists of a bucket may be incomplete. Objects of files that still exist locally may get
                // lost.
                let number = dice.below(closed.max(1)) + 1;
                if scene.is_here(number) {
                    let key = format!("/trails/here/{}", name_of(&scene.closed(number)));
                    scene.storage.objects.lock().unwrap().remove(&key);
                }
            }
            _ => scene.restart(),
        }
        scene.turn().await;
        for number in 1..=closed {
            let is_safe = scene.is_here(number) || scene.has_it(number);
            assert!(is_safe, "file {number} is lost after step {step}; seed {seed}");
        }
    }
    let removed = (1..=closed).filter(|number| !scene.is_here(*number)).count();
    assert!(removed > 0, "nothing was ever removed with seed {seed}");
}

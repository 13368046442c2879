//! The book alone, without a host.

use super::*;

fn note(seq: u64, phase: &str, to: &[&str], heard_ms: u64) -> PendingNote {
    let uid = format!("uid-{}", seq % 7);
    PendingNote {
        seq,
        group: format!("/{uid}"),
        to: to.iter().map(|name| name.to_string()).collect(),
        heard_ms,
        facts: serde_json::from_value(
            json!({"id": seq.to_string(), "uid": uid, "phase": phase, "kind": "Job", "attempt": 0}),
        )
        .unwrap(),
        stands_in: false,
        withdraws: false,
    }
}

#[test]
fn what_is_remembered_is_bounded() {
    let config = configured(json!({"settle": "0s"}));
    let mut book = OutboxBook::default();
    for seq in 0..5_000u64 {
        let mut one = note(seq, "Failed", &["hook"], seq);
        one.group = format!("/uid-{seq}");
        one.facts.insert("uid".into(), format!("uid-{seq}").into());
        book.take_in(&config, seq, vec![(seq.to_string(), one)]);
        for sending in book.due_sendings(&config, seq) {
            book.note_answer(&config, &sending, &SendAnswer::Taken, seq);
        }
        book.forget_old(&config, seq);
    }
    let book = serde_json::to_value(&book).unwrap();
    let told = book["told"].as_array().unwrap();
    assert_eq!(
        (told.len(), &told[0]["key"], &told[1999]["key"]),
        (2_000, &json!("uid-3000"), &json!("uid-4999"))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever fails and whenever: nobody is told the same message twice, and in the end everybody was told everything.
    #[test]
    fn every_recipient_hears_of_every_message_exactly_once(
        steps in proptest::collection::vec((0u8..3, 0u64..8_000, 0u8..4), 1..80),
    ) {
        let config = configured(json!({"settle": "2s", "digest": {"above": 2, "every": "20s"}, "repeat": "0s"}));
        let (mut book, mut notes, mut now) = (OutboxBook::default(), BTreeMap::new(), 0);
        let mut heard: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut made: HashSet<String> = HashSet::new();
        for seq in 0..(steps.len() + 200) as u64 {
            let (what, pause, fault) = steps.get(seq as usize).copied().unwrap_or((9, 20_000, 9));
            now += pause;
            if what < 3 {
                let phase = ["Failed", "Succeeded", "Cancelled"][what as usize];
                notes.insert(seq.to_string(), note(seq, phase, &["ops", "hook"], now));
            }
            for key in book.take_in(&config, now, notes.clone().into_iter().collect()) {
                notes.remove(&key);
            }
            for sending in book.due_sendings(&config, now) {
                made.extend(sending.tells.iter().cloned());
                let answer = match fault {
                    0 => SendAnswer::Later { after_ms: None, why: "away".into() },
                    1 if sending.recipient == "ops" => SendAnswer::Later { after_ms: Some(1_000), why: "rate".into() },
                    _ => SendAnswer::Taken,
                };
                if answer == SendAnswer::Taken {
                    for id in &sending.tells {
                        *heard.entry((sending.recipient.clone(), id.clone())).or_default() += 1;
                    }
                }
                book.note_answer(&config, &sending, &answer, now);
            }
            // What a restart finds.
            book = serde_json::from_slice(&serde_json::to_vec(&book).unwrap()).unwrap();
        }
        prop_assert!(notes.is_empty());
        for id in made {
            for recipient in ["ops", "hook"] {
                prop_assert_eq!(heard.get(&(recipient.to_string(), id.clone())), Some(&1));
            }
        }
    }
}

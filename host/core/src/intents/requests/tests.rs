//! Tests of the state machine between a disk that loses unsynced writes and a receiver that counts requests.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const TO: [(&str, Repeat); 2] = [("http:people", Repeat::InDoubt), ("http:bank", Repeat::Never)];

/// The moment of a kill within a call: at which request, and how far that request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillPoint {
    Noted(usize),
    Sent(usize),
    Answered(usize),
    BeforeTheSave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestedEnd {
    Done,
    Retry,
    Trap,
}

#[derive(Clone, Copy, Debug)]
struct PluginCall {
    seq: Seq,
    to: usize,
    requests: usize,
    end: TestedEnd,
    kill: Option<KillPoint>,
    /// Whether the earlier verdicts are saved by then.
    is_saved: bool,
}

fn call() -> impl Strategy<Value = PluginCall> {
    let kill = prop_oneof![
        (0..3_usize).prop_map(KillPoint::Noted),
        (0..3_usize).prop_map(KillPoint::Sent),
        (0..3_usize).prop_map(KillPoint::Answered),
        Just(KillPoint::BeforeTheSave),
    ];
    let end = prop_oneof![Just(TestedEnd::Done), Just(TestedEnd::Retry), Just(TestedEnd::Trap)];
    (1..4_u64, 0..2_usize, 1..4_usize, end, proptest::option::of(kill), any::<bool>()).prop_map(
        |(seq, to, requests, end, kill, is_saved)| PluginCall { seq, to, requests, end, kill, is_saved },
    )
}

#[derive(Default)]
struct RequestWorld {
    machine: RequestNotes,
    disk: BTreeMap<String, Vec<u8>>,
    /// Writes that wait for the next transaction.
    behind: Vec<KvWrite>,
    /// Removals that wait for the verdicts, possibly until after the notes of later calls.
    removals: Vec<KvWrite>,
    /// By state, destination, number, and try of the state.
    received: HashMap<(Seq, usize, usize, u32), u32>,
    tries: HashMap<Seq, u32>,
    doubled: u32,
    in_the_air: u32,
    parked: u32,
}

impl RequestWorld {
    fn keep(&mut self, writes: Vec<KvWrite>) {
        for KvWrite { key, value } in std::mem::take(&mut self.behind).into_iter().chain(writes) {
            match value {
                Some(value) => drop(self.disk.insert(key, value)),
                None => drop(self.disk.remove(&key)),
            }
        }
    }

    fn kill(&mut self) {
        self.behind.clear();
        self.removals.clear();
        self.machine = RequestNotes::default();
        for (key, value) in &self.disk {
            assert_eq!(self.machine.read(key, value), Some(true));
        }
    }

    fn receive(&mut self, call: PluginCall, nth: usize) {
        let attempt = self.tries.get(&call.seq).copied().unwrap_or_default();
        let times = self.received.entry((call.seq, call.to, nth, attempt)).or_default();
        *times += 1;
        self.doubled += u32::from(*times > 1);
        assert!(*times == 1 || TO[call.to].1 == Repeat::InDoubt, "sent twice: {call:?}");
    }

    /// Returns `false` if the process is killed during the request.
    fn request(&mut self, call: PluginCall, nth: usize, used: &mut BTreeSet<u64>) -> Result<bool, ()> {
        let (to, repeat) = TO[call.to];
        let asked = asked(call.seq, to, nth as u32);
        let answer = StoredAnswer { head: format!("{}/{nth}", call.seq), body: Some(vec![nth as u8]) };
        let number = match self.machine.decide_request(&asked, repeat, used) {
            RequestDecision::Answer(number, kept) => {
                assert_eq!(kept, answer, "its own answer");
                used.insert(number);
                return Ok(true);
            }
            RequestDecision::Doubtful(why) => {
                assert!(why.starts_with(MAY_HAVE_BEEN_SENT) && repeat == Repeat::Never);
                return Err(());
            }
            RequestDecision::SendAgain(number) => number,
            RequestDecision::Send(number) => {
                let (number, note) = self.machine.note_request(asked, number).unwrap();
                self.keep(vec![note]);
                number
            }
        };
        used.insert(number);
        let is_killed = |at| call.kill == Some(at);
        if is_killed(KillPoint::Noted(nth)) {
            self.in_the_air += 1;
            return Ok(false);
        }
        self.receive(call, nth);
        if is_killed(KillPoint::Sent(nth)) {
            self.in_the_air += 1;
            return Ok(false);
        }
        let note = self.machine.note_answer(number, answer);
        self.behind.push(note);
        self.in_the_air += u32::from(is_killed(KillPoint::Answered(nth)));
        Ok(!is_killed(KillPoint::Answered(nth)))
    }

    fn call(&mut self, call: PluginCall) {
        if call.is_saved {
            let removals = std::mem::take(&mut self.removals);
            self.keep(removals);
        }
        let mut used = BTreeSet::new();
        let mut end = call.end;
        for nth in 0..call.requests {
            match self.request(call, nth, &mut used) {
                Ok(true) => {}
                Ok(false) => return self.kill(),
                Err(()) => {
                    self.parked += 1;
                    end = TestedEnd::Done;
                    break;
                }
            }
        }
        if end == TestedEnd::Trap {
            return;
        }
        // A call ends once its answers are stored.
        self.keep(Vec::new());
        let removals = self.machine.remove_finished_notes(&[call.seq]);
        if call.kill == Some(KillPoint::BeforeTheSave) {
            return self.kill();
        }
        // Any later request of the state is another try.
        *self.tries.entry(call.seq).or_default() += 1;
        self.removals.extend(removals);
    }
}

fn asked(seq: Seq, to: &str, nth: u32) -> PluginRequest {
    let digest = format!("{seq}/{to}/{nth}");
    PluginRequest { seqs: vec![seq], to: to.into(), nth, digest, version: "v1".into() }
}

proptest! {
    #[test]
    fn a_kill_doubles_no_more_than_what_is_in_the_air_and_never_means_never(
        calls in proptest::collection::vec(call(), 1..60),
    ) {
        let mut world = RequestWorld::default();
        for call in calls {
            world.call(call);
            prop_assert!(world.doubled <= world.in_the_air, "{} > {}", world.doubled, world.in_the_air);
        }
        world.keep(Vec::new());
        world.kill();
        let all: Vec<Seq> = (1..4).collect();
        let removals = world.machine.remove_finished_notes(&all);
        world.keep(removals);
        prop_assert!(world.disk.is_empty() && world.machine.is_empty(), "nothing is left");
        prop_assert_eq!((world.machine.bytes, world.machine.by_seq.len()), (0, 0));
    }
}

#[test]
fn a_request_without_its_state_is_known_by_its_digest_in_any_batch_with_one_of_its_states() {
    let mut requests = RequestNotes::default();
    let of_two = |seqs: &[Seq], digest: &str| PluginRequest {
        seqs: seqs.to_vec(),
        digest: digest.into(),
        ..asked(0, "http:people", 0)
    };
    let (number, _) = requests.note_request(of_two(&[5, 6], "a"), None).unwrap();
    let answer = StoredAnswer { head: "200".into(), body: Some(b"ok".to_vec()) };
    requests.note_answer(number, answer.clone());
    let decide =
        |asked: &PluginRequest, used: &BTreeSet<u64>| requests.decide_request(asked, Repeat::InDoubt, used);
    let unused = BTreeSet::new();
    assert_eq!(decide(&of_two(&[6, 7], "a"), &unused), RequestDecision::Answer(number, answer.clone()));
    assert_eq!(decide(&of_two(&[6], "a"), &unused), RequestDecision::Answer(number, answer));
    assert_eq!(decide(&of_two(&[6, 7], "a"), &BTreeSet::from([number])), RequestDecision::Send(None));
    assert_eq!(decide(&of_two(&[6, 7], "b"), &unused), RequestDecision::Send(None));
    assert_eq!(decide(&of_two(&[7, 8], "a"), &unused), RequestDecision::Send(None));
    assert_eq!(requests.remove_finished_notes(&[6]), []);
    assert_eq!(requests.remove_finished_notes(&[5]).len(), 1);
}

#[test]
fn an_answer_beyond_its_size_is_kept_without_its_body_and_is_no_answer_to_a_repeat() {
    for (size, is_kept) in [(limits::ANSWER_KEPT, true), (limits::ANSWER_KEPT + 1, false)] {
        let mut requests = RequestNotes::default();
        let (number, _) = requests.note_request(asked(1, "t", 0), None).unwrap();
        let answer = StoredAnswer { head: "200".into(), body: Some(vec![7; size]) };
        let KvWrite { key, value } = requests.note_answer(number, answer);
        let mut again = RequestNotes::default();
        assert_eq!(again.read(&key, &value.unwrap()), Some(true));
        let decide = |repeat| again.decide_request(&asked(1, "t", 0), repeat, &BTreeSet::new());
        assert_eq!(matches!(decide(Repeat::InDoubt), RequestDecision::Answer(..)), is_kept);
        assert_eq!(decide(Repeat::InDoubt) == RequestDecision::Send(Some(number)), !is_kept);
        assert_eq!(matches!(decide(Repeat::Never), RequestDecision::Doubtful(_)), !is_kept);
    }
}

#[test]
fn answers_together_have_a_bound_and_give_their_room_back() {
    let mut requests = RequestNotes::default();
    let most = limits::ANSWERS_KEPT / limits::ANSWER_KEPT;
    let answer = || StoredAnswer { head: "200".into(), body: Some(vec![7; limits::ANSWER_KEPT]) };
    for seq in 0..=most as Seq {
        let (number, _) = requests.note_request(asked(seq, "t", 0), None).unwrap();
        requests.note_answer(number, answer());
    }
    let has_answer = |requests: &RequestNotes, seq: usize| {
        let decision = requests.decide_request(&asked(seq as Seq, "t", 0), Repeat::InDoubt, &BTreeSet::new());
        matches!(decision, RequestDecision::Answer(..))
    };
    assert!(has_answer(&requests, most - 1) && !has_answer(&requests, most));
    requests.remove_finished_notes(&[0]);
    let (number, _) = requests.note_request(asked(9999, "t", 0), None).unwrap();
    requests.note_answer(number, answer());
    assert!(has_answer(&requests, 9999));
}

#[test]
fn more_requests_than_the_bound_are_refused_until_old_ones_make_room() {
    let mut requests = RequestNotes::default();
    for seq in 1..=limits::INTENTS as Seq {
        requests.note_request(asked(seq, "t", 0), None).unwrap();
    }
    assert_eq!(requests.note_request(asked(99_999, "t", 0), None), Err(NotesFull));
    assert_eq!(requests.make_room(3).len(), 3);
    requests.note_request(asked(99_999, "t", 0), None).unwrap();
}

#[test]
fn notes_of_states_that_are_owed_make_no_room_until_they_get_a_verdict() {
    let mut requests = RequestNotes::default();
    for seq in 1..=4 {
        requests.note_request(asked(seq, "t", 0), None).unwrap();
    }
    requests.keep_notes([2, 3, 99]);
    assert_eq!(requests.make_room(3).len(), 1);
    assert_eq!((requests.remove_finished_notes(&[3]).len(), requests.len()), (1, 2));
    requests.note_request(asked(3, "t", 0), None).unwrap();
    assert_eq!((requests.make_room(4).len(), requests.len()), (2, 1), "2 has no verdict");
}

#[test]
fn what_was_surely_not_sent_is_sent_also_where_nothing_is_repeated() {
    let mut requests = RequestNotes::default();
    let (number, _) = requests.note_request(asked(1, "t", 0), None).unwrap();
    let decide =
        |requests: &RequestNotes| requests.decide_request(&asked(1, "t", 0), Repeat::Never, &BTreeSet::new());
    assert!(matches!(decide(&requests), RequestDecision::Doubtful(_)));
    let KvWrite { key, value } = requests.note_unsent(number);
    assert_eq!(decide(&requests), RequestDecision::Send(Some(number)));
    let mut again = RequestNotes::default();
    assert_eq!(again.read(&key, &value.unwrap()), Some(true));
    assert_eq!(decide(&again), RequestDecision::Send(Some(number)));
    let another = PluginRequest { digest: "another".into(), ..asked(1, "t", 0) };
    let (number, _) = requests.note_request(asked(1, "t", 0), Some(number)).unwrap();
    requests.note_answer(number, StoredAnswer { head: "200".into(), body: Some(Vec::new()) });
    let never = requests.decide_request(&another, Repeat::Never, &BTreeSet::new());
    assert!(matches!(never, RequestDecision::Doubtful(_)), "its place is taken");
    assert_eq!(
        requests.decide_request(&another, Repeat::InDoubt, &BTreeSet::new()),
        RequestDecision::Send(Some(number))
    );
}

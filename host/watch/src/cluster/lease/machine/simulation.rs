//! Simulates several replicas and one Lease in virtual time. Requests and answers take any time or are lost,
//! processes are stopped, crash or release, and wall clocks are wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::cluster::lease::record::{Claim, Stamps, first};

/// Milliseconds since the beginning.
type Ms = u64;

const TROUBLE: Ms = 240_000;
/// A lease that nobody releases, a request that hangs, and some pauses.
const RECOVERY: Ms = 30_000;
const QUIET: Ms = 60_000;

#[derive(Clone, Debug)]
enum Asked {
    Read,
    Create(Value),
    Put(Value),
}

#[derive(Clone, Debug)]
enum Answer {
    Lease(Lease),
    Absent,
    Conflict,
}

#[derive(Debug)]
enum Event {
    /// A replica looks what is to be done.
    Turn(usize),
    Arrives {
        from: usize,
        life: u64,
        id: u64,
        sent: Ms,
        asked: Asked,
    },
    Answered {
        to: usize,
        life: u64,
        id: u64,
        sent: Ms,
        wrote: bool,
        answer: Answer,
    },
    TimesOut {
        to: usize,
        life: u64,
        id: u64,
    },
    Stops {
        who: usize,
        until: Ms,
    },
    /// It begins again as somebody else.
    Restarts {
        who: usize,
        releases: bool,
    },
}

struct Replica {
    machine: Machine,
    stamps: Stamps,
    /// How far its wall clock is off, in seconds; it jumps.
    wrong_by: i64,
    stopped_until: Ms,
    life: u64,
    waits_for: Option<u64>,
}

/// How bad it gets.
#[derive(Clone, Debug)]
struct Trouble {
    seed: u64,
    replicas: usize,
    longest_delay: Ms,
    lost_percent: u64,
    stops: u64,
    longest_stop: Ms,
    restarts: u64,
}

fn trouble() -> impl Strategy<Value = Trouble> {
    (any::<u64>(), 2usize..=3, 0u64..30_000, 0u64..50, 0u64..12, 1u64..40_000, 0u64..6).prop_map(
        |(seed, replicas, longest_delay, lost_percent, stops, longest_stop, restarts)| Trouble {
            seed,
            replicas,
            longest_delay,
            lost_percent,
            stops,
            longest_stop,
            restarts,
        },
    )
}

struct World {
    trouble: Trouble,
    dice: Dice,
    base: Instant,
    now: Ms,
    events: BTreeMap<(Ms, u64), Event>,
    numbers: u64,
    lease: Option<Value>,
    version: u64,
    replicas: Vec<Replica>,
    /// Who held it one after the other, with the term.
    holds: Vec<(usize, u64, u64)>,
}

impl World {
    fn new(trouble: Trouble) -> Self {
        let mut world = Self {
            dice: Dice::new(Some(trouble.seed)),
            base: Instant::now(),
            now: 0,
            events: BTreeMap::new(),
            numbers: 0,
            lease: None,
            version: 0,
            replicas: Vec::new(),
            holds: Vec::new(),
            trouble,
        };
        for who in 0..world.trouble.replicas {
            let replica = world.replica(who);
            world.replicas.push(replica);
            world.at(0, Event::Turn(who));
        }
        for _ in 0..world.trouble.stops {
            let (when, who) = (world.dice.between(0, TROUBLE), world.anybody());
            let until = when + world.dice.between(1, world.trouble.longest_stop);
            world.at(when, Event::Stops { who, until });
        }
        for _ in 0..world.trouble.restarts {
            let (when, who) = (world.dice.between(0, TROUBLE), world.anybody());
            let releases = world.dice.between(0, 1) == 1;
            world.at(when, Event::Restarts { who, releases });
        }
        world
    }

    fn anybody(&mut self) -> usize {
        self.dice.between(0, self.trouble.replicas as u64 - 1) as usize
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn replica(&mut self, who: usize) -> Replica {
        let life = self.number();
        let dice = Dice::new(Some(self.trouble.seed ^ life));
        let machine = Machine::new(format!("{who}_{life}"), Timing::default(), dice, self.instant(self.now));
        Replica { machine, stamps: Stamps::default(), wrong_by: 0, stopped_until: 0, life, waits_for: None }
    }

    fn instant(&self, at: Ms) -> Instant {
        self.base + Duration::from_millis(at)
    }

    fn at(&mut self, when: Ms, event: Event) {
        let number = self.number();
        self.events.insert((when.max(self.now), number), event);
    }

    fn delay(&mut self) -> Ms {
        let longest = if self.now < TROUBLE { self.trouble.longest_delay } else { 50 };
        // Most are quick, or nobody would ever hold anything.
        let longest = if self.dice.between(0, 2) == 0 { longest } else { longest.min(300) };
        self.dice.between(0, longest)
    }

    fn is_lost(&mut self) -> bool {
        self.now < TROUBLE && self.dice.between(0, 99) < self.trouble.lost_percent
    }

    fn stamp(&mut self, who: usize) -> Timestamp {
        let replica = &mut self.replicas[who];
        if self.dice.between(0, 3) == 0 {
            replica.wrong_by = self.dice.between(0, 20_000) as i64 - 10_000;
        }
        let wall = Timestamp::from_second(1_000_000 + replica.wrong_by).unwrap();
        replica.stamps.next(wall + SignedDuration::from_millis(self.now as i64))
    }

    /// Runs until then and checks at each moment at which a hold can begin.
    fn run(&mut self, until: Ms) -> Result<(), TestCaseError> {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((now, _), event) = entry.remove_entry();
            self.now = now;
            self.happen(event);
            let holders = self.holders();
            prop_assert!(holders.len() <= 1, "at {now} ms {holders:?} hold");
            if let [holder] = holders[..]
                && self.holds.last() != Some(&holder)
            {
                prop_assert!(!self.holds.contains(&holder), "the hold {holder:?} had run out");
                self.holds.push(holder);
            }
        }
        self.now = until;
        Ok(())
    }

    /// Stopped ones, too: what they do next they do in that belief.
    fn holders(&self) -> Vec<(usize, u64, u64)> {
        let now = self.instant(self.now);
        let each = self.replicas.iter().enumerate();
        each.filter_map(|(who, one)| one.machine.hold(now).map(|hold| (who, one.life, hold.term))).collect()
    }

    fn happen(&mut self, event: Event) {
        let who = match &event {
            Event::Arrives { .. } => None,
            Event::Turn(who) | Event::Restarts { who, .. } | Event::Stops { who, .. } => Some(*who),
            Event::Answered { to, .. } | Event::TimesOut { to, .. } => Some(*to),
        };
        if let Some(who) = who
            && self.replicas[who].stopped_until > self.now
        {
            return self.at(self.replicas[who].stopped_until, event);
        }
        match event {
            Event::Turn(who) => self.turn(who),
            Event::Stops { who, until } => self.replicas[who].stopped_until = until,
            Event::Restarts { who, releases } => self.restart(who, releases),
            Event::Arrives { from, life, id, sent, asked } => {
                let wrote = !matches!(asked, Asked::Read);
                let answer = self.serve(asked);
                if !self.is_lost() {
                    let when = self.now + self.delay();
                    self.at(when, Event::Answered { to: from, life, id, sent, wrote, answer });
                }
            }
            Event::Answered { to, life, id, sent, wrote, answer } => {
                if self.ends(to, life, id) {
                    self.take(to, sent, wrote, answer);
                    self.at(self.now, Event::Turn(to));
                }
            }
            Event::TimesOut { to, life, id } => {
                if self.ends(to, life, id) {
                    let now = self.instant(self.now);
                    self.replicas[to].machine.failed(now);
                    self.at(self.now, Event::Turn(to));
                }
            }
        }
    }

    /// Whether this is the request that it still waits for.
    fn ends(&mut self, who: usize, life: u64, id: u64) -> bool {
        let replica = &mut self.replicas[who];
        let ends = replica.life == life && replica.waits_for == Some(id);
        if ends {
            replica.waits_for = None;
        }
        ends
    }

    fn turn(&mut self, who: usize) {
        if self.replicas[who].waits_for.is_some() {
            return;
        }
        let step = self.replicas[who].machine.step(self.instant(self.now));
        let stamp = self.stamp(who);
        let identity = self.replicas[who].machine.identity().to_string();
        let claim = Claim { identity: &identity, lasts_seconds: 15, stamp };
        match step {
            Step::Wait(until) => {
                let when = until.duration_since(self.base).as_millis() as Ms + 1;
                self.at(when, Event::Turn(who));
            }
            Step::Read => self.ask(who, Asked::Read),
            Step::Create => self.ask(who, Asked::Create(first("ns", "l", &claim))),
            Step::Claim(lease) => self.ask(who, Asked::Put(lease.claimed(&claim))),
        }
    }

    fn ask(&mut self, who: usize, asked: Asked) {
        let (id, life, sent) = (self.number(), self.replicas[who].life, self.now);
        self.replicas[who].waits_for = Some(id);
        if !self.is_lost() {
            let when = sent + self.delay();
            self.at(when, Event::Arrives { from: who, life, id, sent, asked });
        }
        let patience = Timing::default().answer().as_millis() as Ms;
        self.at(sent + patience, Event::TimesOut { to: who, life, id });
    }

    /// As the API server does it: a write counts if nobody was faster.
    fn serve(&mut self, asked: Asked) -> Answer {
        let text = |object: &Value, pointer| object.pointer(pointer).cloned();
        let mut object = match (asked, &self.lease) {
            (Asked::Read, None) => return Answer::Absent,
            (Asked::Read, Some(held)) => return Answer::Lease(Lease::from_value(held.clone()).unwrap()),
            (Asked::Create(_), Some(_)) | (Asked::Put(_), None) => return Answer::Conflict,
            (Asked::Create(new), None) => new,
            (Asked::Put(new), Some(held)) => {
                let version = "/metadata/resourceVersion";
                if text(&new, version) != text(held, version) {
                    return Answer::Conflict;
                }
                new
            }
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["uid"] = json!("u");
        self.lease = Some(object.clone());
        Answer::Lease(Lease::from_value(object).unwrap())
    }

    fn take(&mut self, who: usize, sent: Ms, wrote: bool, answer: Answer) {
        let (sent, now) = (self.instant(sent), self.instant(self.now));
        let machine = &mut self.replicas[who].machine;
        match answer {
            Answer::Lease(lease) if wrote => machine.wrote(sent, now, lease),
            Answer::Lease(lease) => machine.found(now, Some(lease)),
            Answer::Absent => machine.found(now, None),
            Answer::Conflict => machine.overtaken(now),
        }
    }

    fn restart(&mut self, who: usize, releases: bool) {
        let stamp = self.stamp(who);
        let machine = &mut self.replicas[who].machine;
        let lease = machine.lease().filter(|lease| lease.holder == machine.identity()).cloned();
        if machine.resign()
            && releases
            && let Some(lease) = lease
        {
            self.ask(who, Asked::Put(lease.released(stamp)));
        }
        // What it has sent may still come through.
        self.replicas[who] = self.replica(who);
        self.at(self.now, Event::Turn(who));
    }
}

fn simulate(trouble: Trouble) -> Result<World, TestCaseError> {
    let mut world = World::new(trouble);
    world.run(TROUBLE)?;
    world.run(TROUBLE + world.trouble.longest_stop + RECOVERY)?;
    let holder = world.holders();
    prop_assert_eq!(holder.len(), 1, "somebody holds when nothing disturbs any more");
    world.run(world.now + QUIET)?;
    prop_assert_eq!(world.holders(), holder, "and goes on to");
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn never_do_two_believe_and_somebody_does_when_nothing_disturbs(trouble in trouble()) {
        simulate(trouble)?;
    }
}

/// Otherwise the property above would be true of replicas that never hold anything.
#[test]
fn holds_begin_and_end_many_times_in_the_trouble() {
    let worlds = (1..=20).map(|seed| {
        let trouble = Trouble {
            seed,
            replicas: 3,
            longest_delay: 20_000,
            lost_percent: 25,
            stops: 10,
            longest_stop: 30_000,
            restarts: 4,
        };
        simulate(trouble).unwrap()
    });
    let holds: usize = worlds.map(|world| world.holds.len()).sum();
    assert!(holds > 60, "{holds} in twenty worlds");
}

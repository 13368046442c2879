//! Decides which plugin computes next. It gets the used time as a parameter, and knows neither clocks nor
//! threads.
//!
//! The plugin that has used least is next, and its calls run in the order of their requests. So plugins that
//! always want to compute take turns. One that computes little has used less than the others, and need not
//! wait until a turn ends by itself. Turns can't be saved up: a plugin that returns starts at the level of
//! the others, except for [`CREDIT`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How far a waiting plugin may be behind a running one and keep its rank. A call that ends its turn asks for
/// the next one a moment later. Meanwhile another plugin's call may have begun, up to two turns ahead: the
/// first plugin must not lose its place by that.
const CREDIT: Duration = Duration::from_millis(10);

/// A waiting call.
pub type TurnTicket = u64;

#[derive(Debug)]
pub struct TurnQueue {
    /// The most concurrent turns.
    most: usize,
    held: usize,
    waiting: usize,
    /// The start of the last turn that was given, on the scale of [`PluginLine::used`].
    floor: Duration,
    lines: BTreeMap<Arc<str>, PluginLine>,
    tickets: TurnTicket,
}

/// The answer to a call that wants to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnAnswer {
    Turn,
    /// A place in the line. `at_once` is true if the plugin has used less than one with a turn: then one of
    /// those turns should end.
    Waits {
        ticket: TurnTicket,
        at_once: bool,
    },
}

/// One plugin: its turns in use, its waiting calls, and its used time.
#[derive(Debug, Default)]
struct PluginLine {
    held: usize,
    waiting: VecDeque<TurnTicket>,
    used: Duration,
}

impl PluginLine {
    fn is_idle(&self) -> bool {
        self.held == 0 && self.waiting.is_empty()
    }
}

impl TurnQueue {
    pub fn new(most: usize) -> Self {
        let (floor, lines) = (Duration::ZERO, BTreeMap::new());
        Self { most: most.max(1), held: 0, waiting: 0, floor, lines, tickets: 0 }
    }

    pub fn request_turn(&mut self, plugin: &Arc<str>) -> TurnAnswer {
        let floor = self.floor;
        let line = self.lines.entry(plugin.clone()).or_default();
        if line.is_idle() {
            line.used = line.used.max(floor.saturating_sub(CREDIT));
        }
        // Nobody waits while a turn is free.
        if self.held < self.most {
            line.held += 1;
            self.held += 1;
            self.floor = floor.max(line.used);
            return TurnAnswer::Turn;
        }
        self.tickets += 1;
        line.waiting.push_back(self.tickets);
        self.waiting += 1;
        let used = line.used;
        let at_once = self.lines.values().any(|other| other.held > 0 && other.used > used);
        TurnAnswer::Waits { ticket: self.tickets, at_once }
    }

    /// Ends a turn. Returns who has it next.
    pub fn end_turn(&mut self, plugin: &str, used: Duration) -> Option<TurnTicket> {
        if let Some(line) = self.lines.get_mut(plugin) {
            line.held -= 1;
            line.used += used;
            self.held -= 1;
        }
        self.next()
    }

    /// Removes a call that stops waiting.
    pub fn leave_queue(&mut self, plugin: &str, ticket: TurnTicket) {
        let Some(line) = self.lines.get_mut(plugin) else { return };
        if let Some(place) = line.waiting.iter().position(|waiting| *waiting == ticket) {
            line.waiting.remove(place);
            self.waiting -= 1;
        }
    }

    fn next(&mut self) -> Option<TurnTicket> {
        if self.waiting == 0 {
            if self.held == 0 {
                // No waiting call remains, so no plugin is owed a turn.
                self.lines.clear();
                self.floor = Duration::ZERO;
            }
            return None;
        }
        let floor = self.floor;
        self.lines.retain(|_, line| !line.is_idle() || line.used + CREDIT > floor);
        let waiting = self.lines.values_mut().filter(|line| !line.waiting.is_empty());
        let line = waiting.min_by_key(|line| (line.used, line.waiting.front().copied()))?;
        let ticket = line.waiting.pop_front()?;
        line.held += 1;
        self.floor = floor.max(line.used);
        self.waiting -= 1;
        self.held += 1;
        Some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    impl TurnQueue {
        fn line_up(&mut self, plugin: &Arc<str>) -> Option<TurnTicket> {
            match self.request_turn(plugin) {
                TurnAnswer::Turn => None,
                TurnAnswer::Waits { ticket, .. } => Some(ticket),
            }
        }
    }

    fn named(name: &str) -> Arc<str> {
        name.into()
    }

    fn millis(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_plugin_with_many_calls_gets_no_more_turns_than_one_with_a_single_call() {
        let (greedy, modest, mut queue) = (named("greedy"), named("modest"), TurnQueue::new(1));
        assert_eq!(queue.line_up(&greedy), None);
        let many: Vec<_> = (0..3).map(|_| queue.line_up(&greedy).unwrap()).collect();
        let one = queue.line_up(&modest).unwrap();
        assert_eq!(queue.end_turn("greedy", millis(5)), Some(one));
        assert!(queue.line_up(&greedy).is_some());
        assert_eq!(
            queue.end_turn("modest", millis(5)),
            Some(many[0]),
            "the calls of one plugin keep their order"
        );
    }

    #[test]
    fn a_plugin_that_computes_little_ends_the_turn_of_one_that_has_had_more() {
        let mut queue = TurnQueue::new(1);
        let busy: Vec<_> = (0..8).map(|number| named(&format!("busy-{number}"))).collect();
        let mut whose: HashMap<TurnTicket, &Arc<str>> =
            busy.iter().filter_map(|plugin| Some((queue.line_up(plugin)?, plugin))).collect();
        let mut holder = &busy[0];
        for _ in 0..50 {
            whose.insert(queue.line_up(holder).unwrap(), holder);
            holder = whose[&queue.end_turn(holder, millis(5)).unwrap()];
        }
        let TurnAnswer::Waits { ticket: brief, at_once: true } = queue.request_turn(&named("brief")) else {
            panic!("it waits for the end of a turn")
        };
        assert_eq!(queue.end_turn(holder, Duration::ZERO), Some(brief));
        let TurnAnswer::Waits { at_once: false, .. } = queue.request_turn(holder) else {
            panic!("it has had its share")
        };
    }

    #[test]
    fn nobody_saves_up_turns_while_it_wants_none() {
        let (late, busy, mut queue) = (named("late"), named("busy"), TurnQueue::new(1));
        queue.line_up(&busy);
        for _ in 0..1000 {
            queue.line_up(&busy).unwrap();
            queue.end_turn("busy", millis(5)).unwrap();
        }
        let mut order = Vec::new();
        let mut holder = "busy";
        let mut waiting = HashMap::from([(queue.line_up(&late).unwrap(), "late")]);
        for _ in 0..20 {
            let plugin = if holder == "busy" { &busy } else { &late };
            waiting.insert(queue.line_up(plugin).unwrap(), holder);
            holder = waiting[&queue.end_turn(holder, millis(5)).unwrap()];
            order.push(holder);
        }
        let turns = order.iter().filter(|plugin| **plugin == "late").count();
        assert!((10..=12).contains(&turns), "{order:?}");
    }

    #[test]
    fn a_call_that_leaves_the_line_is_not_given_a_turn_and_what_is_over_is_forgotten() {
        let (one, other, mut queue) = (named("one"), named("other"), TurnQueue::new(1));
        assert_eq!(queue.line_up(&one), None);
        let gone = queue.line_up(&other).unwrap();
        queue.leave_queue("other", gone);
        assert_eq!(queue.end_turn("one", millis(5)), None);
        assert_eq!((queue.held, queue.waiting, queue.lines.len()), (0, 0, 0));
    }

    /// The turns in use, by their end.
    struct TurnRun {
        queue: TurnQueue,
        now: Duration,
        computing: Vec<(Duration, Duration, usize)>,
        waiting: HashMap<TurnTicket, usize>,
        got: Vec<Duration>,
        names: Vec<Arc<str>>,
    }

    impl TurnRun {
        fn new(most: usize, plugins: usize) -> Self {
            let names = (0..plugins).map(|number| named(&number.to_string())).collect();
            let got = vec![Duration::ZERO; plugins];
            let (computing, waiting) = (Vec::new(), HashMap::new());
            Self { queue: TurnQueue::new(most), now: Duration::ZERO, computing, waiting, got, names }
        }

        fn begin(&mut self, plugin: usize, length: Duration) {
            self.computing.push((self.now + length, length, plugin));
        }

        fn ask(&mut self, plugin: usize, length: Duration) {
            match self.queue.line_up(&self.names[plugin]) {
                None => self.begin(plugin, length),
                Some(ticket) => drop(self.waiting.insert(ticket, plugin)),
            }
        }

        /// The turn that ends first ends, and its call asks again at once.
        fn step(&mut self, length: Duration) {
            let first = (0..self.computing.len()).min_by_key(|place| self.computing[*place]).unwrap();
            let (end, took, plugin) = self.computing.swap_remove(first);
            self.now = end;
            self.got[plugin] += took;
            if let Some(next) = self.queue.end_turn(&self.names[plugin], took) {
                let whose = self.waiting.remove(&next).expect("a turn goes to a call that waits");
                self.begin(whose, length);
            }
            self.ask(plugin, length);
        }
    }

    const LONGEST: u64 = 5;

    proptest! {
        #[test]
        fn plugins_that_compute_all_they_may_get_the_same_time_however_many_calls_they_have(
            most in 1usize..4,
            more in prop::collection::vec(0usize..6, 2..6),
            lengths in prop::collection::vec(1u64..=LONGEST, 500),
        ) {
            let mut run = TurnRun::new(most, more.len());
            for (plugin, more) in more.iter().enumerate() {
                // Enough calls to use all turns while one waits, so that each plugin could use every turn
                // that it gets.
                (0..=most + more).for_each(|_| run.ask(plugin, millis(LONGEST)));
            }
            for length in lengths {
                run.step(millis(length));
                prop_assert_eq!(run.computing.len(), most, "no turn is left unused, and none is given twice");
            }
            let (least, best) = (run.got.iter().min().unwrap(), run.got.iter().max().unwrap());
            // The largest possible difference between two plugins when they end their last turns.
            let apart = millis(LONGEST) * u32::try_from(most + 1).unwrap() * 2 + CREDIT;
            prop_assert!(*best - *least <= apart, "{:?}", run.got);
        }
    }
}

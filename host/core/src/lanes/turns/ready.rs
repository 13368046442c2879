//! The lanes that have something to hand over, in line. Namespaces take turns, and the lanes of a namespace
//! take turns. So a namespace with a hundred thousand lanes costs the others one place in each round.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::state::LaneKey;

#[derive(Debug, Default)]
pub(in crate::lanes) struct ReadyLanes {
    /// Namespaces with a lane in line, each once.
    turns: VecDeque<u64>,
    lanes: HashMap<u64, VecDeque<LaneKey>>,
}

impl ReadyLanes {
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub fn push_back(&mut self, key: LaneKey) {
        let lanes = self.lanes.entry(key.namespace).or_default();
        if lanes.is_empty() {
            self.turns.push_back(key.namespace);
        }
        lanes.push_back(key);
    }

    /// Puts the lane first in its namespace, and the namespace first of all.
    pub fn push_front(&mut self, key: LaneKey) {
        let lanes = self.lanes.entry(key.namespace).or_default();
        if !lanes.is_empty() {
            self.turns.retain(|turn| *turn != key.namespace);
        }
        self.turns.push_front(key.namespace);
        lanes.push_front(key);
    }

    pub fn pop(&mut self) -> Option<LaneKey> {
        let namespace = self.turns.pop_front()?;
        let lanes = self.lanes.get_mut(&namespace)?;
        let key = lanes.pop_front();
        if lanes.is_empty() {
            self.lanes.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        key
    }

    pub fn remove(&mut self, key: LaneKey) {
        let Some(lanes) = self.lanes.get_mut(&key.namespace) else { return };
        lanes.retain(|other| *other != key);
        if lanes.is_empty() {
            self.lanes.remove(&key.namespace);
            self.turns.retain(|turn| *turn != key.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: u64, lane: u64) -> LaneKey {
        LaneKey { namespace, lane }
    }

    #[test]
    fn namespaces_take_turns_whatever_they_have() {
        let mut ready = ReadyLanes::default();
        for lane in 0..3 {
            ready.push_back(key(1, lane));
        }
        ready.push_back(key(2, 0));
        let order: Vec<_> = std::iter::from_fn(|| ready.pop()).collect();
        assert_eq!(order, [key(1, 0), key(2, 0), key(1, 1), key(1, 2)]);
        assert!(ready.is_empty());
    }

    #[test]
    fn what_is_put_back_in_its_order_comes_first_in_that_order() {
        let mut ready = ReadyLanes::default();
        ready.push_back(key(3, 0));
        for taken in [key(1, 1), key(2, 0), key(1, 0)] {
            ready.push_front(taken);
        }
        assert_eq!(
            [ready.pop(), ready.pop(), ready.pop()],
            [Some(key(1, 0)), Some(key(2, 0)), Some(key(3, 0))]
        );
        assert_eq!(ready.pop(), Some(key(1, 1)), "the second of a namespace waits for its next turn");
    }

    #[test]
    fn a_lane_that_leaves_the_line_takes_its_namespaces_turn_along_if_it_was_the_last() {
        let mut ready = ReadyLanes::default();
        ready.push_back(key(1, 0));
        ready.push_back(key(1, 1));
        ready.remove(key(1, 0));
        assert_eq!((ready.pop(), ready.pop()), (Some(key(1, 1)), None));
        ready.push_back(key(1, 0));
        ready.remove(key(1, 0));
        assert!(ready.is_empty());
    }
}

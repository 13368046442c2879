//! Holds the newer events of objects whose missed versions are still being read back. Events of all other
//! objects pass. Pure.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use kubewitness_core::Version;
use tokio::sync::OwnedSemaphorePermit;

/// A line of the watch that waits, with its share of the bytes in flight.
pub(crate) struct HeldLine {
    pub line: Bytes,
    pub permit: Option<OwnedSemaphorePermit>,
    /// Everything up to this version had arrived when the line did.
    pub complete: Option<Version>,
    /// The version at which its watch began.
    pub opened: Option<Version>,
}

#[derive(Default)]
struct NameLane {
    /// How many holders the name has: a list and an audit may hold it at once.
    holders: u32,
    events: VecDeque<HeldLine>,
}

/// Keyed by name and not by uid: an object that is created again under an old name waits for the old one.
pub(crate) struct HeldNames {
    /// By namespace, then by name, so that a look-up allocates no string.
    lanes: HashMap<Box<str>, HashMap<Box<str>, NameLane>>,
    events: usize,
    bytes: usize,
    most_events: usize,
    most_bytes: usize,
}

impl HeldNames {
    pub fn new(most_events: usize, most_bytes: usize) -> Self {
        Self { lanes: HashMap::new(), events: 0, bytes: 0, most_events, most_bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Holds a name: its events wait from now on.
    pub fn hold_name(&mut self, namespace: &str, name: &str) {
        let lanes = self.lanes.entry(namespace.into()).or_default();
        lanes.entry(name.into()).or_default().holders += 1;
    }

    pub fn is_held(&self, namespace: &str, name: &str) -> bool {
        self.lanes.get(namespace).is_some_and(|lanes| lanes.contains_key(name))
    }

    /// Takes an event of a held name.
    pub fn push(&mut self, namespace: &str, name: &str, held: HeldLine) {
        if let Some(lane) = self.lanes.get_mut(namespace).and_then(|lanes| lanes.get_mut(name)) {
            self.events += 1;
            self.bytes += held.line.len();
            lane.events.push_back(held);
        }
    }

    /// Releases a name. Once nobody holds it, returns the events that waited, in order, and lets later ones
    /// pass.
    pub fn release_name(&mut self, namespace: &str, name: &str) -> VecDeque<HeldLine> {
        let Some(lanes) = self.lanes.get_mut(namespace) else { return VecDeque::new() };
        if let Some(lane) = lanes.get_mut(name).filter(|lane| lane.holders > 1) {
            lane.holders -= 1;
            return VecDeque::new();
        }
        let released = lanes.remove(name).map(|lane| lane.events).unwrap_or_default();
        if lanes.is_empty() {
            self.lanes.remove(namespace);
        }
        self.events -= released.len();
        self.bytes -= released.iter().map(|held| held.line.len()).sum::<usize>();
        released
    }

    /// Whether nothing more should be read until a name is released.
    pub fn is_full(&self) -> bool {
        self.events >= self.most_events || self.bytes >= self.most_bytes
    }

    pub fn clear(&mut self) {
        self.lanes.clear();
        (self.events, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> HeldLine {
        HeldLine { line: Bytes::copy_from_slice(text.as_bytes()), permit: None, complete: None, opened: None }
    }

    #[test]
    fn events_of_a_held_name_come_out_in_order_and_others_are_not_held() {
        let mut holds = HeldNames::new(10, 1000);
        holds.hold_name("a", "x");
        assert!(holds.is_held("a", "x") && !holds.is_held("b", "x") && !holds.is_held("a", "y"));
        holds.push("a", "x", event("1"));
        holds.push("a", "x", event("2"));
        let lines: Vec<_> = holds.release_name("a", "x").into_iter().map(|held| held.line).collect();
        assert_eq!(lines, ["1", "2"]);
        assert!(holds.is_empty() && !holds.is_held("a", "x"));
    }

    #[test]
    fn a_name_that_two_hold_passes_when_both_have_let_go() {
        let mut holds = HeldNames::new(10, 1000);
        holds.hold_name("a", "x");
        holds.hold_name("a", "x");
        holds.push("a", "x", event("1"));
        assert!(holds.release_name("a", "x").is_empty() && holds.is_held("a", "x"));
        assert_eq!(holds.release_name("a", "x").len(), 1);
        assert!(holds.is_empty() && holds.release_name("a", "x").is_empty());
    }

    #[test]
    fn number_and_bytes_are_bounded_and_given_back() {
        let mut holds = HeldNames::new(2, 10);
        holds.hold_name("", "x");
        holds.hold_name("", "y");
        holds.push("", "x", event("1"));
        assert!(!holds.is_full());
        holds.push("", "y", event("2"));
        assert!(holds.is_full());
        holds.release_name("", "x");
        assert!(!holds.is_full());
        holds.push("", "y", event("123456789"));
        assert!(holds.is_full());
        holds.clear();
        assert!(!holds.is_full() && holds.is_empty());
    }
}

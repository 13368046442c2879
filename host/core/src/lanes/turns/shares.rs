//! Decides how much of the window each namespace may hold, and tracks which namespaces are behind.
//!
//! **Shares.** A namespace may take in states while it holds less than is free. So one namespace alone gets
//! half of the window, and two get a third each. A new namespace always finds room, although nothing is set
//! aside. Positions without their states are cheap and are shared more freely.
//!
//! **Behind.** A state that a namespace may not take in is left in the journal, and so is every later state
//! of the namespace. The namespace is behind from that position on. Only that position is remembered.

use hashbrown::HashMap;

use crate::state::Seq;

/// Positions without states that a namespace may hold for each free one.
const DEFERRED_PART: usize = 4;

#[derive(Debug, Default)]
struct WindowShare {
    loaded: usize,
    deferred: usize,
    behind: Option<LagCounter>,
}

#[derive(Debug)]
struct LagCounter {
    /// Everything of the namespace before this position was taken in.
    next: Seq,
    name: String,
}

#[derive(Debug)]
pub(in crate::lanes) struct WindowShares {
    window: usize,
    positions: usize,
    /// The states in memory.
    pub loaded: usize,
    /// The positions without their states.
    pub deferred: usize,
    of: HashMap<u64, WindowShare>,
    behind: usize,
}

impl WindowShares {
    pub fn new(window: usize, positions: usize) -> Self {
        Self { window, positions, loaded: 0, deferred: 0, of: HashMap::new(), behind: 0 }
    }

    pub fn free_slots(&self) -> usize {
        self.window.saturating_sub(self.loaded)
    }

    fn loaded_and_deferred(&self, namespace: u64) -> (usize, usize) {
        self.of.get(&namespace).map_or((0, 0), |share| (share.loaded, share.deferred))
    }

    fn fits_times(&self, namespace: u64, times: usize) -> bool {
        let (loaded, deferred) = self.loaded_and_deferred(namespace);
        let free = self.positions.saturating_sub(self.deferred) * DEFERRED_PART;
        loaded * times < self.free_slots() && deferred * times < free
    }

    /// Whether this namespace may hold one more state.
    pub fn fits_one_more(&self, namespace: u64) -> bool {
        self.fits_times(namespace, 1)
    }

    /// Whether enough of its share is free to be worth a read.
    pub fn has_room(&self, namespace: u64) -> bool {
        self.fits_times(namespace, 2)
    }

    /// The number of states that fit, whatever their namespace, if none is given back.
    pub fn room_for_states(&self) -> usize {
        let most = self.of.values().map(|share| share.loaded).max().unwrap_or(0);
        let states = self.free_slots().saturating_sub(most).div_ceil(2);
        let most = self.of.values().map(|share| share.deferred).max().unwrap_or(0);
        let free = self.positions.saturating_sub(self.deferred);
        states.min((free * DEFERRED_PART).saturating_sub(most).div_ceil(DEFERRED_PART + 1))
    }

    fn change_share(&mut self, namespace: u64, change: impl FnOnce(&mut WindowShare)) {
        let share = self.of.entry(namespace).or_default();
        change(share);
        if share.loaded == 0 && share.deferred == 0 && share.behind.is_none() {
            self.of.remove(&namespace);
        }
    }

    pub fn load(&mut self, namespace: u64, states: usize) {
        self.loaded += states;
        self.change_share(namespace, |share| share.loaded += states);
    }

    pub fn unload_states(&mut self, namespace: u64, states: usize) {
        self.loaded -= states;
        self.change_share(namespace, |share| share.loaded -= states);
    }

    pub fn defer_positions(&mut self, namespace: u64, positions: usize) {
        self.deferred += positions;
        self.change_share(namespace, |share| share.deferred += positions);
    }

    pub fn recall_positions(&mut self, namespace: u64, positions: usize) {
        self.deferred -= positions;
        self.change_share(namespace, |share| share.deferred -= positions);
    }

    // ---- behind --------------------------------------------------------------------------

    pub fn next(&self, namespace: u64) -> Option<Seq> {
        self.of.get(&namespace)?.behind.as_ref().map(|behind| behind.next)
    }

    pub fn set_behind(&mut self, namespace: u64, name: &str, next: Seq) {
        let mut fresh = false;
        self.change_share(namespace, |share| match &mut share.behind {
            Some(behind) => behind.next = next,
            none => {
                *none = Some(LagCounter { next, name: name.to_owned() });
                fresh = true;
            }
        });
        self.behind += usize::from(fresh);
    }

    pub fn count_behind(&self) -> usize {
        self.behind
    }

    /// The namespaces that are behind, each with the position from which it is.
    pub fn all_behind(&self) -> impl Iterator<Item = (u64, Seq, &str)> {
        self.of.iter().filter_map(|(namespace, share)| {
            share.behind.as_ref().map(|behind| (*namespace, behind.next, &*behind.name))
        })
    }

    /// Moves each namespace on to the position that `next` returns. A namespace without one is no longer
    /// behind.
    pub fn advance_namespaces(&mut self, next: impl Fn(u64, Seq) -> Option<Seq>) {
        self.of.retain(|namespace, share| {
            if let Some(behind) = &mut share.behind {
                match next(*namespace, behind.next) {
                    Some(next) => behind.next = next,
                    None => {
                        share.behind = None;
                        self.behind -= 1;
                    }
                }
            }
            share.loaded > 0 || share.deferred > 0 || share.behind.is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_gets_half_of_the_window_and_two_a_third_each() {
        let mut shares = WindowShares::new(900, 900);
        let fill = |shares: &mut WindowShares, namespace| {
            while shares.fits_one_more(namespace) {
                shares.load(namespace, 1);
            }
        };
        fill(&mut shares, 1);
        assert_eq!((shares.loaded_and_deferred(1).0, shares.room_for_states()), (450, 0));
        for _ in 0..1000 {
            fill(&mut shares, 2);
            shares.unload_states(1, 1);
            fill(&mut shares, 1);
        }
        assert!(
            shares.loaded_and_deferred(1).0.abs_diff(300) < 5
                && shares.loaded_and_deferred(2).0.abs_diff(300) < 5,
            "{shares:?}"
        );
        assert!(shares.fits_one_more(3), "and one that has nothing yet finds room");
    }

    #[test]
    fn what_room_says_fits_whosever_it_is() {
        let mut shares = WindowShares::new(100, 50);
        shares.load(1, 20);
        shares.defer_positions(2, 30);
        let room = shares.room_for_states();
        assert!(room > 0);
        for _ in 0..room {
            assert!(shares.fits_one_more(1) && shares.fits_one_more(2));
            shares.load(1, 1);
            shares.defer_positions(2, 1);
        }
    }

    #[test]
    fn who_is_no_longer_behind_and_holds_nothing_is_forgotten() {
        let mut shares = WindowShares::new(10, 10);
        shares.set_behind(1, "a", 5);
        shares.set_behind(2, "b", 7);
        shares.advance_namespaces(|_, next| Some(next.max(6)));
        assert_eq!((shares.next(1), shares.next(2)), (Some(6), Some(7)));
        shares.advance_namespaces(|_, next| (next > 6).then_some(next));
        assert_eq!((shares.next(1), shares.next(2), shares.count_behind()), (None, Some(7), 1));
        assert_eq!(shares.of.len(), 1);
    }
}

//! A small seeded generator: one seed gives one course of events. It knows nothing of jobs.

/// SplitMix64. One word of state suffices to choose among a handful of fates.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// Streams of the same seed are independent of each other, in any order of drawing.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        rng.draw();
        rng
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `[low, high]`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low + 1)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = self.between(0, from.len() as u64 - 1);
        from[index as usize]
    }

    /// One of several values, each with its weight. Not all weights may be zero.
    pub fn weighted<'a, T>(&mut self, from: &'a [(u64, T)]) -> &'a T {
        let total: u64 = from.iter().map(|(weight, _)| weight).sum();
        let mut left = self.between(1, total);
        for (weight, choice) in from {
            if left <= *weight {
                return choice;
            }
            left -= weight;
        }
        &from[from.len() - 1].1
    }

    /// `length` letters, as in the suffixes that Kubernetes generates. They contain no vowels, so they form
    /// no words.
    pub fn suffix(&mut self, length: usize) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..length).map(|_| char::from(self.pick(LETTERS))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_and_stream_give_the_same_numbers() {
        let (mut one, mut other) = (SplitMix::new(7, 3), SplitMix::new(7, 3));
        let numbers: Vec<_> = (0..100).map(|_| one.draw()).collect();
        assert_eq!(numbers, (0..100).map(|_| other.draw()).collect::<Vec<_>>());
        assert_ne!(numbers[0], SplitMix::new(7, 4).draw(), "streams differ");
        assert_ne!(numbers[0], SplitMix::new(8, 3).draw(), "seeds differ");
    }

    #[test]
    fn a_weight_of_zero_is_never_chosen_and_bounds_are_inclusive() {
        let mut rng = SplitMix::new(1, 1);
        let mut seen = [false; 3];
        for _ in 0..1000 {
            assert_eq!(*rng.weighted(&[(0, 'a'), (5, 'b'), (0, 'c')]), 'b');
            seen[rng.between(4, 6) as usize - 4] = true;
        }
        assert_eq!(seen, [true; 3]);
    }
}

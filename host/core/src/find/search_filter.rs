//! Rules objects out of a search without reading their documents.
//!
//! A signature is a small Bloom filter over the pairs and triples of bytes in some texts. If one pair or
//! triple of the searched text is missing from it, none of these texts contains the searched text. Bits are
//! shared, so a match proves nothing and the document is read. An object has one signature for its name and
//! uid, and one for the texts in its document.

/// 32 bytes for each signature, and two signatures for each object. The texts of a Job set about a third of
/// the bits in each.
const WORDS: usize = 4;
const BITS: u32 = (WORDS * 64) as u32;

/// More grams would hardly rule out more objects.
const GRAMS: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchSignature {
    named: BitSet,
    documented: BitSet,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BitSet([u64; WORDS]);

/// The pairs and triples of the searched text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchGrams(Vec<u16>);

impl SearchSignature {
    /// The signature of an object before its document was read.
    pub fn of(name: &str, uid: &str) -> Self {
        let mut signature = Self::default();
        signature.named.add(name);
        signature.named.add(uid);
        signature
    }

    /// Adds a text of the document.
    pub fn add(&mut self, text: &str) {
        self.documented.add(text);
    }

    /// Makes every search read the document.
    pub fn open(&mut self) {
        self.documented = BitSet([u64::MAX; WORDS]);
    }

    /// Whether the name or the uid may contain the searched text.
    pub fn may_be_named(&self, grams: &SearchGrams) -> bool {
        self.named.may_hold(grams)
    }

    /// Whether the document may contain the searched text.
    pub fn may_be_documented(&self, grams: &SearchGrams) -> bool {
        self.documented.may_hold(grams)
    }
}

impl BitSet {
    fn add(&mut self, text: &str) {
        for_each_gram(text, |bit| self.0[usize::from(bit / 64)] |= 1 << (bit % 64));
    }

    fn may_hold(&self, grams: &SearchGrams) -> bool {
        grams.0.iter().all(|bit| self.0[usize::from(bit / 64)] & (1 << (bit % 64)) != 0)
    }
}

impl SearchGrams {
    /// A text of one byte has no pairs.
    pub fn of(text: &str) -> Self {
        let mut bits = Vec::new();
        for_each_gram(text, |bit| {
            if bits.len() < GRAMS && !bits.contains(&bit) {
                bits.push(bit);
            }
        });
        Self(bits)
    }

    /// Whether no object can be ruled out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The bit of each pair and triple of a text in lower-case letters.
fn for_each_gram(text: &str, mut found: impl FnMut(u16)) {
    let (mut before, mut last) = (None, None);
    let mut next = |byte: u8| {
        if let Some(last) = last {
            found(gram_bit([0, last, byte]));
            if let Some(before) = before {
                found(gram_bit([before, last, byte]));
            }
        }
        (before, last) = (last, Some(byte));
    };
    match text.is_ascii() {
        true => text.bytes().for_each(|byte| next(byte.to_ascii_lowercase())),
        false => text.to_lowercase().bytes().for_each(next),
    }
}

/// The highest bits of a product depend on all bits of its factor.
fn gram_bit([first, second, third]: [u8; 3]) -> u16 {
    let gram = u32::from_le_bytes([first, second, third, 0]);
    (gram.wrapping_mul(0x9E37_79B1) >> (32 - BITS.ilog2())) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_part_of_a_text_is_never_ruled_out(
            texts in prop::collection::vec("[abAB1-9.\u{212a}éÉΣς-]{0,40}", 0..5),
            (text, from, length) in (any::<prop::sample::Index>(), 0usize..40, 0usize..40),
        ) {
            let mut signature = SearchSignature::default();
            texts.iter().for_each(|text| signature.add(text));
            if !texts.is_empty() {
                let part: String =
                    text.get(&texts).to_lowercase().chars().skip(from).take(length).collect();
                prop_assert!(signature.may_be_documented(&SearchGrams::of(&part)), "{part}");
            }
        }
    }

    #[test]
    fn what_is_nowhere_in_the_texts_of_a_job_is_ruled_out_but_for_a_few() {
        let mut signature =
            SearchSignature::of("llama-pretrain-x7k2p", "9f1c2b3a-77d0-4e55-8a1f-0c9d8e7f6a5b");
        ["vision", "ana@example.com", "gpu-a100", "training"]
            .into_iter()
            .for_each(|text| signature.add(text));
        for set in [signature.named, signature.documented] {
            let bits: u32 = set.0.iter().map(|word| word.count_ones()).sum();
            assert!(bits < BITS * 2 / 5, "{bits} of {BITS}");
        }
        let passes =
            |grams: &SearchGrams| signature.may_be_named(grams) || signature.may_be_documented(grams);
        let words = (0..1_000).map(|number| SearchGrams::of(&format!("bob{number}")));
        let passed = words.filter(passes).count();
        assert!(passed < 10, "{passed}");
        assert!(passes(&SearchGrams::of("x")) && SearchGrams::of("x").is_empty());
        let nobody = SearchGrams::of("nobody");
        signature.open();
        assert!(signature.may_be_documented(&nobody) && !signature.may_be_named(&nobody));
    }

    #[test]
    fn the_pairs_and_triples_of_a_long_text_are_bounded() {
        let long: String = (0..10_000).map(|number| number.to_string()).collect();
        assert_eq!(SearchGrams::of(&long).0.len(), GRAMS);
    }
}

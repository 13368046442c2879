//! Tests that documents come back byte for byte, and that damaged ones give an error.

use proptest::prelude::*;

use super::*;

fn jobs() -> Vec<Vec<u8>> {
    include_str!("../../../testdata/jobs.jsonl")
        .lines()
        .map(|line| crate::project::split_frame(line.as_bytes()).unwrap().object.to_vec())
        .collect()
}

#[test]
fn what_is_packed_quickly_is_the_same_document_and_little_larger() {
    let (mut slowly, mut quickly) = (0, 0);
    for document in jobs() {
        let packed = pack_quickly(&document);
        assert_eq!(unpack_document(&packed).unwrap(), document);
        slowly += pack_document(&document).len();
        quickly += packed.len();
    }
    assert!(quickly * 2 <= slowly * 3, "{slowly} bytes, quickly {quickly}");
}

#[test]
fn the_dictionary_is_part_of_what_is_stored_and_must_not_change() {
    assert_eq!(
        checksum(DICTIONARY),
        DICTIONARY_CHECKSUM,
        "stored documents need the old one: add a new format"
    );
}

const DICTIONARY_CHECKSUM: u32 = 829050124;

#[test]
fn a_job_packs_to_a_fraction_and_its_next_version_to_a_delta_of_a_few_bytes() {
    let jobs = jobs();
    for pair in jobs.windows(2) {
        let packed = pack_document(&pair[1]);
        let delta = encode_delta(&pair[0], &pair[1]);
        assert!(packed.len() * 3 < pair[1].len(), "{} of {}", packed.len(), pair[1].len());
        assert!(delta.len() < 260, "{} bytes", delta.len());
        assert_eq!(unpack_document(&packed).unwrap(), pair[1]);
        assert_eq!(restore_from_delta(&pair[0], &delta).unwrap(), pair[1]);
    }
}

#[test]
fn a_delta_on_nothing_needs_no_base() {
    let job = &jobs()[0];
    assert_eq!(unpack_document(&encode_delta(b"", job)).unwrap(), *job);
}

#[test]
fn a_delta_on_the_wrong_base_never_passes_for_the_document() {
    let jobs = jobs();
    let delta = encode_delta(&jobs[0], &jobs[1]);
    let wrong = restore_from_delta(&jobs[3], &delta);
    assert!(wrong.is_err() || wrong.is_ok_and(|bytes| checksum(&bytes) != checksum(&jobs[1])));
    assert!(matches!(unpack_document(&delta), Err(DocumentError::Corrupt(_))));
}

#[test]
fn a_frame_that_claims_too_much_is_refused_before_anything_is_allocated() {
    // A single-segment frame whose 8-byte content size says one exabyte.
    let mut hostile = vec![ON_DICTIONARY, 0b1110_0000];
    hostile.extend_from_slice(&(1u64 << 60).to_le_bytes());
    assert!(matches!(unpack_document(&hostile), Err(DocumentError::TooLarge(_))));
}

#[test]
fn unknown_and_empty_formats_say_so() {
    assert!(matches!(unpack_document(&[]), Err(DocumentError::Empty)));
    assert!(matches!(unpack_document(&[9, 1, 2]), Err(DocumentError::UnknownFormat(9))));
    assert!(matches!(unpack_document(&[ON_DICTIONARY]), Err(DocumentError::Corrupt(_))));
}

#[test]
fn a_base_that_looks_like_a_trained_dictionary_is_not_taken_for_one() {
    let base = [&DICTIONARY_MAGIC[..], b"rest"].concat();
    let delta = encode_delta(&base, b"{\"some\":\"document\"}");
    assert_eq!(restore_from_delta(&base, &delta).unwrap(), b"{\"some\":\"document\"}");
}

proptest! {
    #[test]
    fn any_bytes_come_back_exactly(base in prop::collection::vec(any::<u8>(), 0..600), document in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert_eq!(&unpack_document(&pack_document(&document)).unwrap()[..], &document[..]);
        prop_assert_eq!(restore_from_delta(&base, &encode_delta(&base, &document)).unwrap(), document);
    }

    #[test]
    fn edited_documents_come_back_exactly(edits in prop::collection::vec((0usize..2000, 0usize..60, "[ -~]{0,40}"), 1..6)) {
        let base = jobs().remove(2);
        let mut document = base.clone();
        for (at, left_out, text) in edits {
            let at = at.min(document.len());
            let end = document.len().min(at + left_out);
            document.splice(at..end, text.bytes());
        }
        prop_assert_eq!(restore_from_delta(&base, &encode_delta(&base, &document)).unwrap(), document);
    }

    #[test]
    fn damage_never_panics_and_never_grows(flips in prop::collection::vec((0usize..400, any::<u8>()), 1..6)) {
        let jobs = jobs();
        let base = &jobs[0];
        let edited = encode_delta(base, &[&base[..], b" "].concat());
        prop_assert_eq!(edited[0], EDITS);
        for mut stored in [pack_document(&jobs[3]).to_vec(), encode_delta(base, &jobs[3]), edited] {
            for (at, byte) in &flips {
                let at = at % stored.len();
                stored[at] = *byte;
            }
            for result in [unpack_document(&stored).map(Vec::from), restore_from_delta(base, &stored)] {
                prop_assert!(result.map_or(true, |document| document.len() <= DOCUMENT_BYTES));
            }
        }
    }
}

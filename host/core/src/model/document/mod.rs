//! Encodes documents: packed for the cache, as deltas for the journal. Both decode to the exact bytes.
//!
//! A packed document and a delta begin with one byte, the format of the rest:
//!
//! | byte | the rest |
//! |---|---|
//! | 0 | the document as it is |
//! | 1 | one zstd frame without its magic number, with the dictionary `kubernetes-1.dict` |
//! | 2 | the same, with the delta's base as the dictionary |
//! | 3 | the edits that turn the base into the document (`edits`) |
//!
//! The dictionary contains the usual fields of Jobs and Pods. Stored bytes depend on it, so it never changes;
//! a better dictionary gets a new format byte. Damage is not detected here: the caller stores a [`checksum`]
//! beside the bytes. [`substance`] compares what documents mean to people.

mod edits;
mod generation_cache;
mod substance;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use thiserror::Error;
use zstd::zstd_safe::{
    CCtx, CDict, DCtx, DDict, SafeResult, compress_bound, get_error_name, get_frame_content_size,
};

pub use generation_cache::GenerationCache;
pub use substance::compare_form;

/// A document that is compressed on its own. The cache and the journal share it.
pub type PackedDocument = Arc<[u8]>;

/// A larger document is not compressed, and no stored frame may claim more memory than this. It is six times
/// the largest frame that the watch accepts.
pub const DOCUMENT_BYTES: usize = 6 * crate::limits::FRAME_BYTES;

const PLAIN: u8 = 0;
const ON_DICTIONARY: u8 = 1;
const ON_BASE: u8 = 2;
const EDITS: u8 = 3;

/// If the edits are longer than this, the document is compressed instead. The result is shorter and takes
/// many times as long.
const EDITS_BYTES: usize = 112;

/// Fast enough for every state. Higher levels save little on a few kilobytes.
const DELTA_LEVEL: i32 = 1;
/// Only listed and quiet documents are packed, not every state, so saving a few bytes justifies a slower
/// level.
const PACK_LEVEL: i32 = 4;
/// The level while somebody waits for all documents.
const QUICK_LEVEL: i32 = 1;

const FRAME_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// zstd would take a base with this prefix for a trained dictionary. No JSON begins with it.
const DICTIONARY_MAGIC: [u8; 4] = 0xEC30_A437_u32.to_le_bytes();

static DICTIONARY: &[u8] = include_bytes!("kubernetes-1.dict");
static PACK_DICTIONARY: LazyLock<CDict<'static>> = LazyLock::new(|| CDict::create(DICTIONARY, PACK_LEVEL));
static QUICK_DICTIONARY: LazyLock<CDict<'static>> = LazyLock::new(|| CDict::create(DICTIONARY, QUICK_LEVEL));
static UNPACK_DICTIONARY: LazyLock<DDict<'static>> = LazyLock::new(|| DDict::create(DICTIONARY));

#[derive(Debug, Error)]
pub enum DocumentError {
    #[error("the stored document is empty: not even its format is known")]
    Empty,
    #[error("the stored document has the format {0}, which this version does not know")]
    UnknownFormat(u8),
    #[error("the stored document claims {0} bytes, more than any document has")]
    TooLarge(u64),
    #[error("the stored document does not decode: {0}")]
    Corrupt(&'static str),
}

/// Contexts of zstd. They take 10 µs or more to make and are reused.
struct ZstdContexts {
    pack: CCtx<'static>,
    unpack: DCtx<'static>,
    scratch: Vec<u8>,
}

thread_local! {
    static CONTEXTS: RefCell<ZstdContexts> =
        RefCell::new(ZstdContexts { pack: CCtx::create(), unpack: DCtx::create(), scratch: Vec::new() });
}

#[derive(Clone, Copy)]
enum ZstdDictionary<'a> {
    Builtin,
    Base(&'a [u8]),
}

/// Compresses a document on its own.
pub fn pack_document(document: &[u8]) -> PackedDocument {
    on_dictionary(document, &PACK_DICTIONARY).into()
}

/// Packs faster than [`pack_document`], but larger.
pub fn pack_quickly(document: &[u8]) -> PackedDocument {
    on_dictionary(document, &QUICK_DICTIONARY).into()
}

/// Packs without compression, for a document that is soon read and then dropped.
pub fn as_is(document: &[u8]) -> PackedDocument {
    [&[PLAIN], document].concat().into()
}

/// Restores the exact document from the output of [`pack_document`].
pub fn unpack_document(packed: &[u8]) -> Result<Bytes, DocumentError> {
    read(packed, None).map(Bytes::from)
}

/// Compresses a document against the version before it. Decoding needs the same base.
pub fn encode_delta(base: &[u8], document: &[u8]) -> Vec<u8> {
    if base.is_empty() || base.starts_with(&DICTIONARY_MAGIC) || base.len() > DOCUMENT_BYTES {
        return on_dictionary(document, &PACK_DICTIONARY);
    }
    if document.len() <= DOCUMENT_BYTES
        && let Some(edits) = edits::write(EDITS, base, document, EDITS_BYTES)
    {
        return edits;
    }
    write(document, ON_BASE, |pack, packed| pack.compress_using_dict(packed, document, base, DELTA_LEVEL))
}

/// Restores the exact document from a [`encode_delta`]. A wrong base gives an error or other bytes, which the
/// checksum detects.
pub fn restore_from_delta(base: &[u8], delta: &[u8]) -> Result<Vec<u8>, DocumentError> {
    read(delta, Some(base))
}

/// CRC-32. It detects accidental damage, not tampering.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Continues a [`checksum`] with more bytes. `before` is the checksum so far; that of nothing is 0.
pub fn checksum_behind(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

fn on_dictionary(document: &[u8], dictionary: &CDict<'_>) -> Vec<u8> {
    write(document, ON_DICTIONARY, |pack, packed| pack.compress_using_cdict(packed, document, dictionary))
}

fn write(
    document: &[u8],
    format: u8,
    compress: impl FnOnce(&mut CCtx<'static>, &mut Vec<u8>) -> SafeResult,
) -> Vec<u8> {
    let plain = || [&[PLAIN], document].concat();
    if document.len() > DOCUMENT_BYTES {
        return plain();
    }
    CONTEXTS.with_borrow_mut(|contexts| {
        let ZstdContexts { pack, scratch, .. } = contexts;
        scratch.clear();
        scratch.reserve(compress_bound(document.len()));
        let stored = match compress(pack, scratch) {
            Ok(_) if scratch.len() <= document.len() && scratch.starts_with(&FRAME_MAGIC) => {
                let mut stored = Vec::with_capacity(scratch.len() - FRAME_MAGIC.len() + 1);
                stored.push(format);
                stored.extend_from_slice(&scratch[FRAME_MAGIC.len()..]);
                stored
            }
            // Compression did not shrink the document, so it is kept as it is.
            _ => plain(),
        };
        shrink_scratch(scratch);
        stored
    })
}

fn read(stored: &[u8], base: Option<&[u8]>) -> Result<Vec<u8>, DocumentError> {
    let (&format, frame) = stored.split_first().ok_or(DocumentError::Empty)?;
    let dictionary = match (format, base) {
        (PLAIN, _) => return Ok(frame.to_vec()),
        (ON_DICTIONARY, _) => ZstdDictionary::Builtin,
        (ON_BASE, Some(base)) if base.starts_with(&DICTIONARY_MAGIC) => {
            return Err(DocumentError::Corrupt("the base is not a document"));
        }
        (ON_BASE, Some(base)) => ZstdDictionary::Base(base),
        (EDITS, Some(base)) => return edits::read(base, frame),
        (ON_BASE | EDITS, None) => return Err(DocumentError::Corrupt("it is a delta, and there is no base")),
        (unknown, _) => return Err(DocumentError::UnknownFormat(unknown)),
    };
    CONTEXTS.with_borrow_mut(|contexts| {
        let ZstdContexts { unpack, scratch, .. } = contexts;
        scratch.clear();
        scratch.extend_from_slice(&FRAME_MAGIC);
        scratch.extend_from_slice(frame);
        let size = get_frame_content_size(scratch)
            .ok()
            .flatten()
            .ok_or(DocumentError::Corrupt("its frame does not say how long it is"))?;
        if size > DOCUMENT_BYTES as u64 {
            return Err(DocumentError::TooLarge(size));
        }
        // The frame can't be larger, whatever it contains.
        let mut document = Vec::with_capacity(size as usize);
        let written = match dictionary {
            ZstdDictionary::Builtin => {
                unpack.decompress_using_ddict(&mut document, scratch, &UNPACK_DICTIONARY)
            }
            ZstdDictionary::Base(base) => unpack.decompress_using_dict(&mut document, scratch, base),
        };
        shrink_scratch(scratch);
        written.map_err(|code| DocumentError::Corrupt(get_error_name(code)))?;
        match document.len() as u64 == size {
            true => Ok(document),
            false => Err(DocumentError::Corrupt("it is shorter than it claims")),
        }
    })
}

/// Shrinks the scratch buffer, so that one huge document does not keep every thread's buffer huge.
fn shrink_scratch(scratch: &mut Vec<u8>) {
    const KEPT: usize = 256 * 1024;
    if scratch.capacity() > KEPT {
        *scratch = Vec::new();
    }
}

//! Finds the secrets of one text: in command lines, in YAML or JSON among other words, and in addresses.
//!
//! Texts are written by people and programs, in no single grammar. Parsing each format exactly was rejected:
//! one unusual quote would hide a secret from the parser. So the search reads texts as people write them, and
//! if the end of a secret is ambiguous, it takes the longer reading. It knows nothing of the document around
//! them.

pub(super) mod addresses;
pub(super) mod commands;
pub(super) mod digest;
pub(super) mod pairs;
pub(super) mod unescaped;
mod values;

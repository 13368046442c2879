//! Finds the secrets of one text: in command lines, in YAML or JSON among other words, and in addresses. It
//! reads texts as people write them, and knows nothing of the document around them.

pub(super) mod addresses;
pub(super) mod commands;
pub(super) mod digest;
pub(super) mod pairs;
pub(super) mod unescaped;
mod values;

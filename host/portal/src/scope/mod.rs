//! What a question is about, and how much of the answer whoever asks may see.

mod sight;
mod sources;
mod status;

pub(crate) use sight::{Sight, Verb};
pub(crate) use sources::{check, kind_of, witnessed};

//! The scope of a request: which sources it is about, and which part of the answer the viewer may see.

mod sight;
mod sources;
mod status;

pub(crate) use sight::{Sight, Verb};
pub(crate) use sources::{check, kind_of, witnessed};

//! The scope of a request: which sources it is about, and which part of the answer the viewer may see.

mod sources;
mod status;
mod visibility;

pub(crate) use sources::{check, kind_of, witnessed};
pub(crate) use visibility::{Sight, Verb};

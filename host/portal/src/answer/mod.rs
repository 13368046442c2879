//! The parts of answers: problems, parameters, times, ETags, and the frame of pages.
//!
//! API and pages must refuse, limit and format in the same way. So these parts are shared, and each query
//! parameter is read here: unknown or repeated ones are refused instead of ignored, because a misspelled
//! filter would otherwise show everything. They make no request, and know no route and no viewer.

pub(crate) mod codes;
pub(crate) mod etag;
pub(crate) mod frame;
pub(crate) mod paged;
pub(crate) mod params;
pub(crate) mod problem;
pub(crate) mod streamed;
pub(crate) mod time;

pub(crate) use problem::{FieldFault, Problem, ProblemPage};

/// The longest name that people may enter for themselves.
pub(crate) const WHO_BYTES: usize = 256;

//! The parts of answers: problems, parameters, times, ETags, and the frame of pages. They ask nobody, and know no
//! route and no viewer.

pub(crate) mod codes;
pub(crate) mod etag;
pub(crate) mod frame;
pub(crate) mod paged;
pub(crate) mod params;
pub(crate) mod problem;
pub(crate) mod streamed;
pub(crate) mod time;

pub(crate) use problem::{FieldFault, Problem, ProblemPage};

/// The longest name that somebody gives themselves.
pub(crate) const WHO_BYTES: usize = 256;

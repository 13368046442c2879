//! Templates of Jobs: an operator offers a template, and a person's values complete it to a Job. This module
//! makes no request; the portal submits the Job.
//!
//! A value is inserted as a JSON value at the places that its parameter names. Rendering the manifest as text
//! was rejected: there, a value could change other parts of the Job. So a template with its allowed values
//! describes every Job that it can make, and a secret default is never shown.

mod credentials;
mod field;
mod job;
mod parameter;
mod template;

pub use credentials::{Credentials, SubmitSpec};
pub use field::is_at;
pub use job::{OriginLabels, TEMPLATE, job_name_prefix, name, name_end};
#[cfg(feature = "schema")]
pub(crate) use parameter::Scalar;
pub use parameter::{ParameterSpec, ParameterType};
pub use template::{TemplateSpec, ValueFault};

/// The largest document of a template. A Job has a few KiB.
pub const TEMPLATE_BYTES: usize = 64 * 1024;
/// The most templates of one host. A person looks through them.
pub const TEMPLATES_MOST: usize = 100;
/// The most parameters of a template. Nobody fills in a larger form by hand.
const PARAMETERS_MOST: usize = 64;
/// The most places of one parameter.
const PLACES_MOST: usize = 16;
/// The most words that a `choice` offers.
const CHOICES_MOST: usize = 100;
/// The longest value. Longer texts belong in a ConfigMap of the Job.
pub const VALUE_BYTES: usize = 4096;
/// The longest help, sentence about a template, and pattern.
const TEXT_BYTES: usize = 1024;

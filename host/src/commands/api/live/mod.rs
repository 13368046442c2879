//! The commands that go on with the live stream: `wait` and `tap`, the stream that `get -w` reads too, and the
//! looks of `-w` where there is no stream.

mod again;
mod stream;
mod tap;
mod wait;

pub use tap::tap;
pub use wait::{wait, wait_for_new};

pub(super) use again::again;
pub(super) use stream::{Heard, Live};

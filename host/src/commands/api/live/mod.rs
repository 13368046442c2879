//! The commands that go on with the live stream: `wait` and `tap`, and the stream that `get -w` reads too.

mod stream;
mod tap;
mod wait;

pub use tap::tap;
pub use wait::wait;

pub(super) use stream::{Heard, Live};

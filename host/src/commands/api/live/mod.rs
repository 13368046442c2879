//! The commands that go on with the live stream: `get -w`, `wait` and `tap`.

mod follow;
mod stream;
mod tap;
mod wait;

pub use tap::tap;
pub use wait::wait;

pub(super) use follow::follow;

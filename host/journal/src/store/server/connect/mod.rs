//! Sessions with a server: how one begins, which locks it holds, and who else has one.

pub(super) mod lock;
pub(super) mod pool;
pub(super) mod replicas;
pub(super) mod server;
pub(super) mod session;
pub(super) mod watches;

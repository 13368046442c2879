//! Sessions with a server: how one begins, which locks it holds, and which other replicas have one.
//! Knows no row of a state.

pub(super) mod commits;
pub(super) mod lock;
pub(super) mod pool;
pub(super) mod pooler;
pub(super) mod replicas;
pub(super) mod server;
pub(super) mod session;
pub(super) mod watches;

//! Sessions with a server: how one begins, which locks it holds, and which other replicas have one. It knows
//! nothing about states.

pub(super) mod commits;
pub(super) mod lock;
pub(super) mod pool;
pub(super) mod pooler;
pub(super) mod replicas;
pub(super) mod server;
pub(super) mod session;
pub(super) mod watches;

//! Sessions with a server: how one begins, which locks it holds, and which other replicas have one.
//!
//! A lock and a time limit belong to a session, and a pooler or a failover can exchange the session
//! unnoticed. So a session is tested when it begins, a writer compares who writes in every transaction
//! ([`commits`]), and a session with an error is never used again. It knows nothing about states.

pub(super) mod commits;
pub(super) mod lock;
pub(super) mod pool;
pub(super) mod pooler;
pub(super) mod replicas;
pub(super) mod server;
pub(super) mod session;
pub(super) mod watches;

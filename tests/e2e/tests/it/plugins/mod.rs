//! The life of a plugin: it is started, called, paused, replaced and taken out. What it does outside of the
//! controller is in `effects`.

mod calls;
mod forgetting;
pub mod letters;
mod pausing;
pub mod probing;
mod registries;
mod rollback;
mod shadows;
mod ticking;
mod versions;

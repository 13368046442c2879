//! The journal from outside: what was appended comes back, whatever happens in between.

mod appends;
mod backlog;
mod crash;
mod damage;
mod model;
mod opening;
mod size;
mod support;

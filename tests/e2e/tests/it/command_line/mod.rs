//! The commands as people and scripts call them, those for authors of plugins among them.

pub mod authors;
mod doctor;
mod examples;
mod figures;
mod forwarding;
mod live;
mod manners;
mod narrow;
mod shells;
mod trying;

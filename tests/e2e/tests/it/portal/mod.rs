//! The portal as people and programs meet it: who may see what, its pages in a browser, and its API.

pub mod access;
mod accessible;
mod appearance;
pub mod browser;
mod contract;
mod dashboard;
mod scriptless;
mod secrets;
mod submitting;
pub mod troubles;
mod windows;

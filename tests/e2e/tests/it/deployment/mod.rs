//! The controller as it is deployed: from a folder, in a cluster, in several replicas, and across a stream.

pub mod cluster;
mod image;
mod replicas;
mod run;
mod signals;
mod streams;

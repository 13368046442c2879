//! The simulated API server, its workload, and the playground that shows them.

mod conformance;
mod kubectl;
mod playground;
mod simulator;
mod workload;


pub mod receiver;
pub mod workload;

//! The programs that a test runs, each as its own process: Kubewitness, the simulated API server, kubectl. They are
//! reached from outside only, and judged nowhere here.

mod binaries;
pub mod compiled;
mod kubectl;
mod kubewitness;
mod process;
mod simulator;
mod tables;

pub(crate) use binaries::templates_folder;
pub use binaries::{kubewitness_binary, plugins_folder, project_root, services_folder, simulator_binary};
pub use kubectl::{Kubectl, KubectlRun};
pub use kubewitness::{
    Kubewitness, RunOptions, SHORT_TIMERS, command, command_in, command_json, command_json_in,
};
pub use process::{ChildProcess, ProcessEnd, bound_command};
pub use simulator::{RequestCounts, Simulator, SimulatorOptions};
pub use tables::PlatformAddress;

//! The database servers that all tests of a run share. A program of the harness starts them and ends with its
//! standard input, so nothing remains if this process is killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::build::{services_folder, step, target};

pub struct SharedServers {
    program: Child,
    /// The program ends when this is closed.
    input: Option<ChildStdin>,
    /// The variables that give tests their addresses.
    variables: Vec<(String, String)>,
}

impl SharedServers {
    /// Starts a server of each installed kind, and waits until all answer.
    pub fn start() -> Result<Self> {
        step("starting the database servers");
        let file = target().join("debug").join("kubewitness-test-services");
        let mut command = Command::new(&file);
        command.env("KUBEWITNESS_SERVICES", services_folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().with_context(|| format!("starting {}", file.display()))?;
        let input = program.stdin.take();
        let output = program.stdout.take().context("the servers' program has no output")?;
        let mut servers = Self { program, input, variables: Vec::new() };
        for line in BufReader::new(output).lines() {
            match line.context("reading where the servers are")?.split_once('=') {
                Some((name, value)) => servers.variables.push((name.to_owned(), value.to_owned())),
                // An empty line ends the list.
                None => return Ok(servers),
            }
        }
        bail!("the database servers of tests can't be started; what is printed above says why")
    }

    pub fn name_to(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

impl Drop for SharedServers {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Err(error) = self.program.wait() {
            eprintln!("xtask: the database servers of tests may go on: {error}");
        }
    }
}

//! A child process whose wall time and processor time are measured.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The kernel counts processor time in hundredths of a second, independently of its own clock.
const TICKS_PER_SECOND: f64 = 100.0;
const PAUSE: Duration = Duration::from_millis(20);

pub struct MeasuredChild {
    child: Child,
    begin: Instant,
}

/// The result of the process, with its times.
pub struct MeasuredEnd {
    pub status: ExitStatus,
    pub wall: f64,
    /// Processor time in seconds, of the process and of the children that it waited for. Zero on systems
    /// without `/proc`.
    pub processor: f64,
}

impl MeasuredChild {
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        Ok(Self { child, begin: Instant::now() })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn running_for(&self) -> Duration {
        self.begin.elapsed()
    }

    /// `None` while it runs.
    pub fn poll(&mut self) -> Result<Option<MeasuredEnd>> {
        // The times of an ended process are available until its parent waits for it.
        let processor = match std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())) {
            Ok(stat) if !is_zombie(&stat) => return Ok(None),
            Ok(stat) => processor_seconds(&stat),
            Err(_) => None,
        };
        let status = self.child.try_wait().context("waiting for a child process")?;
        let wall = self.begin.elapsed().as_secs_f64();
        let end = |status| MeasuredEnd { status, wall, processor: processor.unwrap_or_default() };
        Ok(status.map(end))
    }

    pub fn wait(mut self) -> Result<MeasuredEnd> {
        loop {
            if let Some(end) = self.poll()? {
                return Ok(end);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The fields that follow the program's name in `/proc/PID/stat`. The name itself may contain blanks and
/// parentheses.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace()
}

fn is_zombie(stat: &str) -> bool {
    fields(stat).next() == Some("Z")
}

/// User and system time of the process and of the children that it waited for: the 14th to 17th field of the
/// line.
fn processor_seconds(stat: &str) -> Option<f64> {
    let ticks: Vec<f64> = fields(stat).skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_after_a_name_with_parentheses() {
        let stat = "7 (a) b) Z 1 7 7 0 -1 4 0 0 0 0 150 50 200 100 20 0 1 0";
        assert!(is_zombie(stat));
        assert_eq!(processor_seconds(stat), Some(5.0));
        assert_eq!(processor_seconds("7 (x) R 1"), None);
    }

    #[test]
    fn the_status_and_the_time_of_a_child_are_known_at_its_end() {
        let child = MeasuredChild::spawn(Command::new("sh").args(["-c", "exit 3"])).expect("sh starts");
        let end = child.wait().expect("it ends");
        assert_eq!(end.status.code(), Some(3));
        assert!(end.wall > 0.0);
    }
}

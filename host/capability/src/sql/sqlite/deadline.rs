//! Deadlines of statements, calls and the disk. SQLite checks them while it works.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kubewitness_core::ports::GrantError;

use crate::sql::SqlFault;

#[derive(Clone, Copy, Debug)]
pub struct SqlitePatience {
    /// Waiting for the writer. No healthy call holds it longer.
    pub wait: Duration,
    /// One statement of a plugin, for one row.
    pub statement: Duration,
    /// One call's transaction: other calls wait for the same writer.
    pub transaction: Duration,
    /// Waiting for the disk. SQLite checks no deadline while it waits for the disk. The longest such waits
    /// are the sync of a commit, and moving 16 MiB of WAL.
    pub disk: Duration,
}

pub const PATIENCE: SqlitePatience = SqlitePatience {
    wait: Duration::from_secs(10),
    statement: Duration::from_secs(10),
    transaction: Duration::from_secs(30),
    disk: Duration::from_secs(60),
};

/// The limits of one call: its patience, and when it began.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    pub patience: SqlitePatience,
    pub began: Instant,
}

const NO_DEADLINE: u64 = u64::MAX;

pub struct StatementDeadline {
    start: Instant,
    at_ms: AtomicU64,
    /// Set when the call is dropped: nothing waits for the running statement any more.
    given_up: AtomicBool,
}

impl StatementDeadline {
    pub fn without_deadline() -> Self {
        Self { start: Instant::now(), at_ms: AtomicU64::new(NO_DEADLINE), given_up: AtomicBool::new(false) }
    }

    /// Resets the deadline for the next call that holds the writer.
    pub fn renew_for_call(&self) {
        self.given_up.store(false, Ordering::Relaxed);
        self.lift_deadline();
    }

    pub fn lift_deadline(&self) {
        self.at_ms.store(NO_DEADLINE, Ordering::Relaxed);
    }

    pub fn end_call(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Begins a statement, unless its call is over.
    pub fn start(&self, limits: &CallLimits) -> Result<(), SqlFault> {
        let CallLimits { patience, began } = limits;
        let (now, end) = (Instant::now(), *began + patience.transaction);
        if now >= end || self.given_up.load(Ordering::Relaxed) {
            let most = patience.transaction.as_secs();
            return Err(SqlFault::Lost(GrantError::Timeout(format!(
                "a call may keep the database for {most} s"
            ))));
        }
        let at = end.min(now + patience.statement).saturating_duration_since(self.start);
        self.at_ms.store(at.as_millis() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub fn has_passed(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
            || self.start.elapsed().as_millis() as u64 >= self.at_ms.load(Ordering::Relaxed)
    }
}

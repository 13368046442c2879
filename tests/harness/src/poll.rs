//! Waits for a condition with a deadline, instead of a fixed sleep.
//!
//! A deadline is for what never comes. On a machine with five times more to do than it has processors, everything takes
//! five times as long, and a test that fails then says nothing of the product. So time counts by the share of a
//! processor that a program gets. Longer deadlines for all were the alternative: each hang would then cost as much on a
//! quiet machine.

use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The file for what tests wait for.
const WAITS: &str = "KUBEWITNESS_WAITS";
const SHORTEST_RECORDED: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Beyond it a machine is taken to hang itself.
const MOST_SLOWDOWN: f64 = 10.0;

/// Processors differ by that much in speed, and those of shared machines from hour to hour.
const SLOW_PROCESSOR: f64 = 3.0;

/// How much longer a program takes here now than on a quiet machine: what wants to run, by the processors.
pub fn slowdown() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (load / processors as f64).clamp(1.0, MOST_SLOWDOWN)
}

/// A deadline of a program that shares its machine: the time that is left until it.
struct SharedDeadline {
    left: Duration,
    looked: Instant,
}

impl SharedDeadline {
    fn new(left: Duration) -> Self {
        Self { left, looked: Instant::now() }
    }

    fn is_over(&mut self) -> bool {
        let passed = self.looked.elapsed();
        self.looked += passed;
        self.left = self.left.saturating_sub(passed.div_f64(slowdown() * SLOW_PROCESSOR));
        self.left.is_zero()
    }
}

/// The answer, or `None` past the deadline.
pub async fn in_time<T>(within: Duration, asked: impl Future<Output = T>) -> Option<T> {
    let (mut asked, mut deadline) = (pin!(asked), SharedDeadline::new(within));
    loop {
        match tokio::time::timeout(LONGEST_PAUSE.min(within), &mut asked).await {
            Ok(answer) => return Some(answer),
            Err(_) if deadline.is_over() => return None,
            Err(_) => {}
        }
    }
}

/// Asks until the answer is there. An error ends it at once; past the deadline `what` is named.
pub async fn until<T>(
    within: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begin = Instant::now();
    let mut deadline = SharedDeadline::new(within);
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(answer) = ask().await? {
            record_wait(what, begin.elapsed())?;
            return Ok(answer);
        }
        if deadline.is_over() {
            bail!("waited {within:?} for {what}");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Writes down what a test waited for. The runner of tests asks for it, and prints the longest.
fn record_wait(what: &str, waited: Duration) -> Result<()> {
    let Some(file) = std::env::var_os(WAITS).filter(|_| waited >= SHORTEST_RECORDED) else { return Ok(()) };
    let mut file = std::fs::File::options().create(true).append(true).open(file)?;
    // One line, whatever the text is.
    let what = what.replace('\n', " ");
    Ok(file.write_all(format!("{:.2}\t{what}\n", waited.as_secs_f64()).as_bytes())?)
}

/// Tries until it succeeds; past the deadline the last error is told.
pub async fn until_ok<T>(within: Duration, what: &str, mut ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let mut last = None;
    let answer = until(within, what, async || match ask().await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => {
            last = Some(error);
            Ok(None)
        }
    })
    .await;
    match (answer, last) {
        (Err(timeout), Some(last)) => Err(last.context(timeout.to_string())),
        (answer, _) => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_in_vain_names_what_was_waited_for_and_the_last_error() {
        let late =
            until_ok(Duration::from_millis(30), "the moon", async || -> Result<()> { bail!("still day") });
        let text = format!("{:#}", late.await.expect_err("never"));
        assert!(text.contains("the moon") && text.contains("still day"), "{text}");
    }

    #[tokio::test]
    async fn what_never_comes_is_given_up_and_what_comes_is_had() {
        assert_eq!(in_time(Duration::from_millis(30), std::future::pending::<u8>()).await, None);
        assert_eq!(in_time(Duration::ZERO, async { 3 }).await, Some(3));
        assert!((1.0..=MOST_SLOWDOWN).contains(&slowdown()));
    }

    #[tokio::test]
    async fn the_first_answer_ends_the_waiting() {
        let mut asked = 0;
        let answer = until(Duration::from_secs(5), "three", async || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(answer.await.expect("comes"), 3);
    }
}

//! Waits for a condition with a deadline, instead of a fixed sleep.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The file for what tests wait for.
const WAITS: &str = "KUBEWITNESS_WAITS";
const SHORTEST_RECORDED: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Asks until the answer is there. An error ends it at once; past the deadline `what` is named.
pub async fn until<T>(
    within: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begin = Instant::now();
    let deadline = begin + within;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(answer) = ask().await? {
            record_wait(what, begin.elapsed())?;
            return Ok(answer);
        }
        if Instant::now() >= deadline {
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
    async fn the_first_answer_ends_the_waiting() {
        let mut asked = 0;
        let answer = until(Duration::from_secs(5), "three", async || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(answer.await.expect("comes"), 3);
    }
}

//! Waits for a condition with a deadline, instead of a fixed sleep.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Asks until the answer is there. An error ends it at once; past the deadline `what` is named.
pub async fn until<T>(
    within: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("waited {within:?} for {what}");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
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

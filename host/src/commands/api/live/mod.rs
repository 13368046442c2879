//! The commands that wait for changes: `wait` and `tap`, the stream for `get -w`, and polling for `-w` of
//! commands without a stream.
//!
//! States have positions, so a stream can resume after the last one and miss nothing; figures have none, so a
//! changed figure can only be found by asking again. The commands change nothing.

mod poll;
mod stream;
mod tap;
mod wait;

use anyhow::Result;
use kubewitness_core::views::{ObjectQuery, ObjectView};

use crate::commands::api::client::{ApiClient, is_forbidden, is_not_now, query_parameters};
use crate::commands::print::{clean_line, note};

pub use tap::run_tap;
pub use wait::{run_wait, wait_for_new};

pub(super) use poll::poll;
pub(super) use stream::{LiveStates, StreamEvent};
use stream::{RETRIES, RETRY_AFTER};

/// Retries while the controller can't answer yet, for example during its startup. The reason is shown once.
pub(super) async fn once_open<T>(mut ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        match ask().await {
            Err(error) if is_not_now(&error) && tries < RETRIES => {
                if tries == 0 {
                    note!("kubewitness: {}; it is asked again", clean_line(&format!("{error:#}")));
                }
                tries += 1;
                tokio::time::sleep(RETRY_AFTER).await;
            }
            answer => return answer,
        }
    }
}

/// Refuses a source or a kind that nobody watches, as `get` does: the stream would stay silent forever.
async fn must_be_witnessed(client: &ApiClient, query: ObjectQuery) -> Result<()> {
    if query.source.is_some() || query.kind.is_some() {
        let query = ObjectQuery { limit: Some(1), ..query };
        match client.get::<Vec<ObjectView>>("api/v1/objects", &query_parameters(&query)).await {
            // The controller can't know the owner of a namespace in which nothing was witnessed yet.
            Err(error) if is_forbidden(&error) && query.namespace.is_none() => {}
            found => drop(found?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::api::client::not_now;
    use crate::commands::api::testing;

    #[tokio::test]
    async fn a_controller_whose_journal_is_not_open_can_not_answer_now() {
        let client = testing::client_that_opens(1).await;
        let ask = async || client.get::<serde_json::Value>("api/v1/objects", &[("a", "b")]).await;
        assert!(is_not_now(&ask().await.unwrap_err()));
        assert_eq!(ask().await.unwrap(), serde_json::json!([]));
    }

    #[tokio::test(start_paused = true)]
    async fn who_can_not_answer_now_is_asked_again_and_a_refusal_is_told_at_once() {
        let mut asked = 0;
        let answer = once_open(async || {
            asked += 1;
            if asked < 3 { Err(not_now("it is being opened")) } else { Ok(asked) }
        });
        assert_eq!(answer.await.unwrap(), 3);
        let mut refused = 0;
        let answer = once_open(async || {
            refused += 1;
            Err::<(), _>(anyhow::anyhow!("refused"))
        });
        assert!(answer.await.is_err());
        assert_eq!(refused, 1);
    }
}

//! The commands that go on with the live stream: `wait` and `tap`, the stream that `get -w` reads too, and the
//! looks of `-w` where there is no stream. They change nothing.

mod poll;
mod stream;
mod tap;
mod wait;

use anyhow::Result;
use kubewitness_core::views::{ObjectQuery, ObjectView};

use crate::commands::api::client::{Client, parameters};

pub use tap::tap;
pub use wait::{wait, wait_for_new};

pub(super) use poll::poll;
pub(super) use stream::{Heard, Live};

/// Refuses a source or a kind that nobody watches, as `get` does: the stream would be silent about it for ever.
async fn must_be_witnessed(client: &Client, query: ObjectQuery) -> Result<()> {
    if query.source.is_some() || query.kind.is_some() {
        let query = ObjectQuery { limit: Some(1), ..query };
        let _: Vec<ObjectView> = client.get("api/v1/objects", &parameters(&query)).await?;
    }
    Ok(())
}

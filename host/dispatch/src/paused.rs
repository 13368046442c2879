//! An operator's pause. No call begins before a resume. Reading, counting and saving continue, so that the
//! figures stay true and retention keeps the states that the plugin has not had.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kubewitness_core::ports::{Backlog, JournalError, PluginPause};
use tokio::sync::oneshot;
use tracing::info;

use crate::DispatchError;

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseChange {
    /// False where the plugin was already so. Nothing is recorded then.
    pub changed: bool,
    /// The pause that is in force now.
    pub paused: Option<Arc<PluginPause>>,
}

type PauseReply = oneshot::Sender<Result<PauseChange, DispatchError>>;

pub(crate) struct PauseOrder {
    pub pauses: bool,
    pub who: String,
    pub why: String,
    pub reply: PauseReply,
}

/// An order that was carried out, or not.
pub(crate) struct PauseOutcome {
    pub result: Result<PauseChange, JournalError>,
    pub reply: PauseReply,
}

/// The journal decides what is in force: a former order may be durable although its answer was lost.
pub(crate) fn carry_out(
    backlog: Arc<dyn Backlog>,
    plugin: String,
    order: PauseOrder,
) -> BoxFuture<'static, PauseOutcome> {
    let PauseOrder { pauses, who, why, reply } = order;
    async move {
        let result = async {
            let before = backlog.plugin_pause(&plugin).await?;
            if before.is_some() == pauses {
                return Ok(PauseChange { changed: false, paused: before.map(Arc::new) });
            }
            backlog.mark_paused(&plugin, pauses, &who, &why).await?;
            info!(
                plugin,
                who,
                why,
                "{}",
                if pauses { "the plugin is paused" } else { "the plugin is resumed" }
            );
            Ok(PauseChange { changed: true, paused: backlog.plugin_pause(&plugin).await?.map(Arc::new) })
        };
        PauseOutcome { result: result.await, reply }
    }
    .boxed()
}

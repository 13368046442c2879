//! Reports what blocks retention, and what an operator can do about it.

use std::time::Duration;

use kubewitness_core::calendar;
use kubewitness_core::ports::PluginPause;
use kubewitness_core::views::HeldView;
use kubewitness_journal::RetentionHolder;

use crate::controller::shared::{KeptBeyond, PluginPhase, SharedStatus};

/// As long as the pause between two passes of retention.
const LASTING: Duration = Duration::from_secs(60);

const PAST_CURSORS: &str =
    "or let `retention.pastCursors: true` of the source remove them all the same, with a gap on record";

pub fn hold_views(shared: &SharedStatus, now_ms: u64) -> Vec<HeldView> {
    let held = shared.retention_holds();
    let each = held.iter().flat_map(|(source, of_source)| of_source.iter().map(move |held| (source, held)));
    each.filter_map(|(source, (holder, kept))| view(shared, source, holder, *kept, now_ms)).collect()
}

/// `None` for a holder that may well be gone by the next pass.
fn view(
    shared: &SharedStatus,
    source: &str,
    holder: &RetentionHolder,
    kept: KeptBeyond,
    now_ms: u64,
) -> Option<HeldView> {
    let is_lasting = now_ms.saturating_sub(kept.since_ms) >= LASTING.as_millis() as u64;
    let (holder, remedy) = match holder {
        RetentionHolder::Plugin(name) => match name.strip_prefix("stream/") {
            Some(stream) if is_lasting => (format!("stream {stream}"), of_stream(shared, stream)),
            None => (format!("plugin {name}"), of_plugin(shared, name, is_lasting)?),
            Some(_) => return None,
        },
        RetentionHolder::DeadLetter => {
            let remedy = "repair the cause and replay them: `kubewitness deadletters list` shows them. Later states of \
                          the same objects are kept with them. A dropped letter keeps nothing"
                .to_owned();
            ("dead letters".to_owned(), remedy)
        }
        RetentionHolder::Checkpoint if is_lasting => {
            let remedy = format!(
                "its watch would resume before them: `kubewitness status` says what holds up source {source}"
            );
            (holder.to_string(), remedy)
        }
        _ => return None,
    };
    let (states, since) = (kept.states, calendar::format_rfc3339(kept.since_ms));
    Some(HeldView { source: source.to_owned(), holder, states, since, remedy })
}

/// A running plugin has some time to catch up.
fn of_plugin(shared: &SharedStatus, name: &str, is_lasting: bool) -> Option<String> {
    let Some(plugin) = shared.plugin(name) else {
        return Some(format!(
            "it was removed, and the states that it did not get are kept for a day, in case it comes back; {PAST_CURSORS}"
        ));
    };
    if let Some(paused) = plugin.handle.as_ref().and_then(|handle| handle.dispatch_stats().paused) {
        let PluginPause { who, why, at_ms } = &*paused;
        let since = calendar::format_rfc3339(*at_ms);
        return Some(format!(
            "{who} has paused it since {since} ({why}): `kubewitness resume {name} --reason …` lets it go on, {PAST_CURSORS}"
        ));
    }
    let why = plugin.message.map(|message| format!(" ({message})")).unwrap_or_default();
    match plugin.phase {
        PluginPhase::Failed => Some(format!("it failed{why}: repair it, remove it, {PAST_CURSORS}")),
        _ if is_lasting => Some(format!(
            "it has not finished them{why}: `kubewitness plugins` says why; repair it, remove it, {PAST_CURSORS}"
        )),
        _ => None,
    }
}

fn of_stream(shared: &SharedStatus, name: &str) -> String {
    let mut streams = shared.streams().into_iter();
    let Some((_, handle)) = streams.find(|(spec, _)| spec.name == name) else {
        return format!(
            "it was removed from the settings, and holds them for a day after that; {PAST_CURSORS}"
        );
    };
    let why =
        handle.current_snapshot().condition.map(|condition| format!(" ({condition})")).unwrap_or_default();
    format!(
        "its server does not have them yet{why}: repair the connection to it, remove the stream, {PAST_CURSORS}"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::controller::shared::PluginState;

    fn hold_rows(shared: &SharedStatus, now_ms: u64) -> Vec<(String, u64, String)> {
        hold_views(shared, now_ms).into_iter().map(|held| (held.holder, held.states, held.remedy)).collect()
    }

    fn plugin(phase: PluginPhase) -> PluginState {
        PluginState::idle(phase, Some("no such table".into()))
    }

    #[test]
    fn what_holds_for_good_is_told_at_once_and_what_may_let_go_with_the_next_pass() {
        let shared = SharedStatus::default();
        shared.set_plugin("broken", plugin(PluginPhase::Failed));
        shared.set_plugin("slow", plugin(PluginPhase::Active));
        let of = |name: &str| RetentionHolder::Plugin(name.into());
        let found = BTreeMap::from([
            (of("broken"), 7),
            (of("slow"), 5),
            (of("away"), 4),
            (of("stream/cold"), 3),
            (RetentionHolder::DeadLetter, 2),
            (RetentionHolder::Checkpoint, 1),
        ]);
        shared.set_held("jobs", found.clone(), 1_000);
        let first = hold_rows(&shared, 1_000);
        let holders: Vec<_> = first.iter().map(|(holder, states, _)| (holder.as_str(), *states)).collect();
        assert_eq!(holders, [("plugin away", 4), ("plugin broken", 7), ("dead letters", 2)]);
        assert!(first[0].2.starts_with("it was removed"), "{}", first[0].2);
        assert!(first[1].2.starts_with("it failed (no such table): repair it, remove it"), "{}", first[1].2);
        assert!(first[1].2.contains("pastCursors: true") && first[2].2.contains("replay them"));
        shared.set_held("jobs", found, 61_000);
        let later = hold_views(&shared, 61_000);
        assert_eq!(later.len(), 6);
        assert!(later.iter().all(|held| held.since == calendar::format_rfc3339(1_000)), "{later:?}");
        shared.set_held("jobs", BTreeMap::from([(of("broken"), 9)]), 121_000);
        assert_eq!(hold_views(&shared, 121_000).iter().map(|held| held.states).collect::<Vec<_>>(), [9]);
        shared.forget_held("jobs");
        assert!(hold_views(&shared, 121_000).is_empty());
    }
}

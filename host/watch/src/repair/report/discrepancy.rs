//! Describes what the watch did not deliver: logs it, and makes the journal's entry.

use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::DiscrepancyView;

use crate::source::parts::SourceParts;

/// Logs a missed version or deletion. `listed` is `None` if the object was not listed, or arrived with its end.
pub(crate) fn report_discrepancy(
    parts: &SourceParts,
    object: &ObjectRef,
    witnessed: Option<&Version>,
    listed: Option<&Version>,
) -> DiscrepancyView {
    let text = |version: Option<&Version>| version.map(ToString::to_string).unwrap_or_default();
    let (witnessed, listed) = (text(witnessed), text(listed));
    let is_end = listed.is_empty() && !witnessed.is_empty();
    let what = if is_end { "its deletion was missed" } else { "a version was missed" };
    let ObjectRef { namespace, name, uid, .. } = object;
    let source = &parts.spec.name;
    tracing::warn!(%source, %namespace, %name, %uid, %witnessed, %listed, "the watch has lost something: {what}");
    let (object, found_ms) = (object.clone(), parts.clock.now_ms());
    DiscrepancyView { object, witnessed, listed, found_ms }
}

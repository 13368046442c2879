//! Reviews the rights by which a live stream shows states, again and again, while the stream goes on.
//!
//! Somebody with narrow rights may have them in thousands of places, so one review of all takes minutes on a slow API
//! server. A stream that waited for it would show nothing meanwhile. So a review is made in steps, between which
//! states are shown, each by its own right. That right is asked for anew if it [expired](ViewerVisibility::expire_rights).

use std::sync::atomic::Ordering;

use futures::stream::{self, StreamExt, TryStreamExt};
use kubewitness_core::ports::WatchedResource;
use tokio::time::Instant;

use super::visibility::{
    AT_ONCE, AccessRight, AccessVerb, DECISIONS, NAMESPACES, ViewerVisibility, VisibilityScope,
};
use crate::answer::Problem;

/// The rights that a stream has still to review. The default is the first review, which finds out which rights there
/// are.
#[derive(Default)]
pub(crate) struct RightsReview {
    /// Each with the right by which something was shown.
    rest: Vec<(VisibilityScope, Option<AccessRight>)>,
    is_listed: bool,
    /// For the first review: whether there are more rights than it notes.
    has_unasked: Option<bool>,
}

impl RightsReview {
    pub(crate) fn is_done(&self) -> bool {
        self.is_listed && self.rest.is_empty()
    }
}

impl ViewerVisibility {
    /// From now on, each right is asked for again before it is used.
    pub(crate) fn expire_rights(&self) {
        self.lock_decided().fresh_since = Some(Instant::now());
    }

    /// Whether a right was withdrawn or changed since it was first asked for: what was shown by it may no longer be
    /// shown.
    pub(crate) fn has_lost_right(&self) -> bool {
        self.has_lost_right.load(Ordering::Relaxed)
    }

    /// The rights by which a stream may show something, to be noted. A stream ends when one of them is withdrawn,
    /// however quiet it is. Rights in more namespaces than one answer checks are noted once they show something,
    /// and so are those in a namespace in which nothing was ever witnessed.
    async fn rights_to_note(&self) -> Result<(Vec<VisibilityScope>, bool), Problem> {
        // Until all are noted, a right that is missing here says nothing.
        self.has_unasked.store(true, Ordering::Relaxed);
        let kinds = stream::iter(self.witnessed.clone()).map(async |resource| {
            let WatchedResource { source, group, kind, .. } = resource;
            if self.right_in(AccessVerb::List, &group, &kind, "").await? == AccessRight::Everywhere {
                return Ok::<_, Problem>(Vec::new());
            }
            let names = self.views.known_namespaces(&source, true, NAMESPACES + 1).await?;
            let spot = |namespace| VisibilityScope {
                verb: AccessVerb::List,
                group: group.clone(),
                kind: kind.clone(),
                namespace,
            };
            Ok(names.into_iter().map(spot).collect())
        });
        let kinds: Vec<Vec<_>> = kinds.buffered(AT_ONCE).try_collect().await?;
        let mut has_unasked = kinds.iter().any(|spots| spots.len() > NAMESPACES);
        let mut spots: Vec<_> =
            kinds.into_iter().flat_map(|spots| spots.into_iter().take(NAMESPACES)).collect();
        // Decisions about whole kinds also need room.
        has_unasked |= spots.len() > DECISIONS / 2;
        spots.truncate(DECISIONS / 2);
        Ok((spots, has_unasked))
    }

    /// A review of the rights by which a stream has shown something, or could. If no right is noted, a withdrawal
    /// could not be detected: `None` ends the stream, and the next one notes the present rights. But if there were
    /// too many rights to note, the next stream would have no more of them, and this one has shown nothing yet: it
    /// continues.
    pub(crate) fn begin_review(&self) -> Option<RightsReview> {
        let decided = self.lock_decided();
        let shown = decided.of.iter().filter(|(_, decided)| decided.right != AccessRight::Nowhere);
        let rest: Vec<_> = shown.map(|(spot, decided)| (spot.clone(), Some(decided.right))).collect();
        let may_go_on = !rest.is_empty() || self.has_unasked.load(Ordering::Relaxed);
        may_go_on.then_some(RightsReview { rest, is_listed: true, has_unasked: None })
    }

    /// Makes a step of a review: a few reviews that run concurrently. A right that a state needed since
    /// [`expire_rights`](Self::expire_rights) is not asked for again. Whether one was lost is
    /// [told](Self::has_lost_right) apart.
    pub(crate) async fn review_some(&self, review: &mut RightsReview) -> Result<(), Problem> {
        if !review.is_listed {
            let (spots, has_unasked) = self.rights_to_note().await?;
            review.rest = spots.into_iter().map(|spot| (spot, None)).collect();
            (review.is_listed, review.has_unasked) = (true, Some(has_unasked));
        } else {
            let rest = review.rest.len().saturating_sub(AT_ONCE);
            let step = stream::iter(review.rest[rest..].to_vec()).map(async |(spot, before)| {
                let VisibilityScope { verb, group, kind, namespace } = &spot;
                let right = self.right_in(*verb, group, kind, namespace).await?;
                if before.is_some_and(|before| before != right) {
                    self.has_lost_right.store(true, Ordering::Relaxed);
                }
                Ok::<_, Problem>(())
            });
            step.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
            review.rest.truncate(rest);
        }
        if let Some(has_unasked) = review.has_unasked.filter(|_| review.is_done()) {
            self.has_unasked.store(has_unasked, Ordering::Relaxed);
        }
        Ok(())
    }
}

//! Logs gaps. After an outage thousands of objects can have one, and a flooded log helps nobody. The journal
//! has each of them in any case.

use kubewitness_core::state::Gap;

/// How many gaps of a round are logged individually. After that, only their number is logged.
const ONE_BY_ONE: usize = 10;

#[derive(Default)]
pub(crate) struct GapLog {
    objects: usize,
    whole: usize,
}

impl GapLog {
    pub fn note_gap(&mut self, gap: &Gap) {
        let Gap { source, after, before, reason, message, epoch, .. } = gap;
        match &gap.object {
            Some(object) if one_by_one(&mut self.objects) => {
                let (namespace, name, uid) = (&object.namespace, &object.name, &object.uid);
                tracing::warn!(%source, %namespace, %name, %uid, %after, %before, %reason, "an object has a gap");
            }
            None if one_by_one(&mut self.whole) => {
                tracing::warn!(%source, %epoch, %after, %before, %reason, "the source has a gap: {message}");
            }
            _ => {}
        }
    }

    /// Notes that nothing is being read back any more.
    pub fn note_end(&mut self, source: &str) {
        let objects = std::mem::take(&mut self.objects).saturating_sub(ONE_BY_ONE);
        let whole = std::mem::take(&mut self.whole).saturating_sub(ONE_BY_ONE);
        if objects + whole > 0 {
            tracing::warn!(%source, objects, whole, "there are more gaps; `kubewitness gaps` lists each");
        }
    }
}

fn one_by_one(logged: &mut usize) -> bool {
    *logged += 1;
    *logged <= ONE_BY_ONE
}

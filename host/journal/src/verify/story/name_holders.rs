//! Checks which object has a name. Only one object of a kind can have a name at any time. If an object took a
//! name at version S, any other object with that name ended before S or began after it. So an object with
//! versions both below and above S is a contradiction.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kubewitness_core::{Change, State};

use super::{ObjectLife, StoryContradiction};
use crate::report::code;
use crate::store::memory::chain_ends::{MarkKeys, ObjectMark};

/// The holder of a name, and since which version it holds the name.
struct NameHolder {
    epoch: u32,
    uid: ObjectMark,
    since: u64,
}

/// The newest holder of each recorded name, at about 60 bytes each.
#[derive(Default)]
pub(crate) struct NameHolders {
    marks: MarkKeys,
    of: HashMap<ObjectMark, NameHolder>,
}

impl NameHolders {
    /// Takes the next state of an object, and its history so far. Versions that are not numeric, and states
    /// that are not versions of an object, say nothing about a name.
    pub fn next(&mut self, state: &State, life: &ObjectLife) -> Result<(), StoryContradiction> {
        let State { source, epoch, object, resource_version: version, .. } = state;
        let (Change::Present | Change::Left, Some(number)) = (state.change, version.as_number()) else {
            return Ok(());
        };
        let fresh = NameHolder { epoch: *epoch, uid: self.marks.mark_of(source, object), since: number };
        let holder = match self.of.entry(self.marks.of_name(source, object)) {
            Entry::Vacant(vacant) => {
                vacant.insert(fresh);
                return Ok(());
            }
            Entry::Occupied(holder) => holder.into_mut(),
        };
        if holder.epoch != *epoch {
            *holder = fresh;
        } else if holder.uid == fresh.uid {
            holder.since = holder.since.min(number);
        } else if number > holder.since {
            let since = holder.since;
            if life.newest_number().is_some_and(|before| before < since) {
                let text = format!(
                    "version {version} of {} comes after another object took its name, {}/{}, at version {since}",
                    object.uid, object.namespace, object.name
                );
                return Err(StoryContradiction::new(code::ORDER, text));
            }
            *holder = fresh;
        }
        Ok(())
    }
}

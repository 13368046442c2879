//! Writes one transaction of retention.

use tokio::time::timeout;

use super::save::KV_DELETE;
use super::write::{GAPS, STATES, state_values};
use crate::store::rows::removal::{Removal, Sweep};
use crate::store::rows::{Answer, GapRow, checksum};
use crate::store::server::connect::session::{Session, WRITING};
use crate::store::server::engine::link::{Link, Param, Written, next};
use crate::store::server::engine::table::{Batch, Conflict, Delete, Insert, Merge, bytes, int};

const TAKE: Delete = Delete { table: "kw_states", key: &[int("seq")] };
const TAKE_GAPS: Delete = Delete { table: "kw_gaps", key: &[int("stream"), int("seq")] };
const TAKE_SNAPSHOTS: Delete = Delete { table: "kw_snapshots", key: &[int("object"), int("seq")] };
const TAKE_OBJECTS: Delete = Delete { table: "kw_objects", key: &[int("id")] };
/// A state as it lies there from now on; the rest of it stays.
const REBASE: Insert = Insert {
    conflict: Conflict::Merge(&[
        ("flags", Merge::New),
        ("back", Merge::New),
        ("anchor", Merge::New),
        ("sums", Merge::New),
        ("document", Merge::New),
    ]),
    ..STATES
};
const TAKEN: Insert = Insert {
    table: "kw_taken",
    columns: &[bytes("plugin"), int("finished"), int("untold"), int("sum")],
    key: &["plugin"],
    conflict: Conflict::Merge(&[("finished", Merge::Sum), ("untold", Merge::Sum), ("sum", Merge::Sum)]),
};

impl Session {
    /// What retention takes in one transaction.
    pub(crate) async fn remove(&mut self, removal: &Removal) -> Answer<()> {
        let done = timeout(WRITING, remove(self.ask()?, removal)).await;
        self.answered(done)
    }

    /// Rows that nothing refers to.
    pub(crate) async fn sweep(&mut self, unused: &Sweep) -> Answer<()> {
        let done = timeout(WRITING, sweep(self.ask()?, unused)).await;
        self.answered(done)
    }
}

async fn remove(link: &mut dyn Link, removal: &Removal) -> Written {
    let taken = || removal.taken.iter();
    link.delete(&TAKE, Batch::of(taken(), |one| [(one.seq as i64).into()])).await?;
    link.delete(&TAKE_GAPS, Batch::of(taken(), |one| [one.stream.into(), (one.seq as i64).into()])).await?;
    let snapshots = Batch::of(taken(), |one| [one.object.into(), (one.seq as i64).into()]);
    link.delete(&TAKE_SNAPSHOTS, snapshots).await?;
    link.insert(&REBASE, Batch::of(removal.rebased.iter().cloned(), state_values)).await?;
    link.delete(&TAKE_OBJECTS, Batch::of(&removal.objects, |object| [(*object).into()])).await?;
    figures(link, removal).await?;
    for gap in &removal.gaps {
        record(link, gap).await?;
    }
    Ok(())
}

async fn figures(link: &mut dyn Link, removal: &Removal) -> Written {
    let text =
        "UPDATE kw_tallies SET states = states - ?, bytes = bytes - ? WHERE segment = ? AND stream = ?";
    let empty = "DELETE FROM kw_tallies WHERE states = 0 AND segment = ? AND stream = ?";
    // One segment or two.
    for ((segment, stream), (states, bytes)) in removal.tallies() {
        let place = [Param::Int(segment as i64), Param::Int(stream)];
        let figures = [Param::Int(states as i64), Param::Int(bytes)];
        link.fetch(text, figures.into_iter().chain(place.clone()).collect()).await?;
        link.fetch(empty, place.to_vec()).await?;
    }
    for (stream, states) in removal.by_stream() {
        let text = "UPDATE kw_streams SET taken = taken + ? WHERE id = ?";
        link.fetch(text, vec![(states as i64).into(), stream.into()]).await?;
    }
    let plugins = Batch::of(&removal.plugins, |(name, taken)| {
        let (finished, untold) = (taken.finished as i64, taken.untold as i64);
        [name.as_str().into(), finished.into(), untold.into(), checksum::taken(finished, untold).into()]
    });
    link.insert(&TAKEN, plugins).await
}

/// One a stream, which grows with each transaction of a pass.
async fn record(link: &mut dyn Link, gap: &GapRow) -> Written {
    let GapRow { stream, seq, key, body } = gap;
    let place = || vec![(*stream).into(), (*seq as i64).into(), key.as_str().into()];
    let there = "SELECT id FROM kw_gaps WHERE stream = ? AND seq = ? AND bounds = ?";
    if link.fetch(there, place()).await?.is_empty() {
        let id = next(link, "SELECT coalesce(max(id), 0) + 1 FROM kw_gaps").await?;
        let row = Batch::of([gap], |gap| {
            let (key, body) = (gap.key.as_str(), gap.body.as_str());
            [id.into(), gap.stream.into(), (gap.seq as i64).into(), key.into(), body.into(), gap.sum().into()]
        });
        return link.insert(&GAPS, row).await;
    }
    let text = "UPDATE kw_gaps SET body = ?, sum = ? WHERE stream = ? AND seq = ? AND bounds = ?";
    let body = [body.as_str().into(), gap.sum().into()];
    link.fetch(text, body.into_iter().chain(place()).collect()).await.map(drop)
}

const OWNED: Delete = Delete { table: "kw_owned", key: &[int("owner"), int("object")] };
const BY_NUMBER: [Delete; 3] = [
    Delete { table: "kw_statuses", key: &[int("id")] },
    Delete { table: "kw_anchors", key: &[int("id")] },
    Delete { table: "kw_poison", key: &[int("id")] },
];

async fn sweep(link: &mut dyn Link, sweep: &Sweep) -> Written {
    let owned = Batch::of(&sweep.owned, |(owner, object)| [(*owner).into(), (*object).into()]);
    link.delete(&OWNED, owned).await?;
    let reports = Batch::of(&sweep.reports, |(plugin, key)| [plugin.as_str().into(), key.as_str().into()]);
    link.delete(&KV_DELETE, reports).await?;
    for (table, numbers) in BY_NUMBER.iter().zip([&sweep.statuses, &sweep.anchors, &sweep.poison]) {
        link.delete(table, Batch::of(numbers, |number| [(*number).into()])).await?;
    }
    if sweep.owners.is_empty() {
        return Ok(());
    }
    let text = "DELETE FROM kw_objects WHERE stream = 0 AND id IN (SELECT q.v FROM @numbers) \
                AND NOT EXISTS (SELECT 1 FROM kw_owned d WHERE d.owner = kw_objects.id)";
    link.fetch(text, vec![sweep.owners[..].into()]).await.map(drop)
}

//! The statements of one transaction. Rows come from `plan`, progress from dispatch; each table
//! gets one statement a batch.

use kubewitness_core::Seq;
use kubewitness_core::ports::{DeadLetter, KvWrite, Save};
use sqlx::SqliteConnection;

use super::multi::Multi;
use super::uid;
use crate::differences::{Change, Found, Numbered};
use crate::plan::Rows;
use crate::rows::{ObjectRow, Outcome, SnapshotRow};
use crate::seal::{self, Letter};
use crate::store::{Act, Replay};

// `OR FAIL`: the default would keep a journal of each statement, to undo it alone; here an error
// undoes the whole transaction.
static STREAMS: Multi = Multi::new(
    "INSERT OR FAIL INTO streams (id, source, epoch, checkpoint, states, last_event_ms, sum) VALUES",
    "(?,?,?,?,?,?,?)",
    "ON CONFLICT (id) DO UPDATE SET checkpoint = excluded.checkpoint, states = states + excluded.states, \
     last_event_ms = excluded.last_event_ms, sum = excluded.sum",
);
static KINDS: Multi =
    Multi::new("INSERT OR FAIL INTO kinds (id, api_group, version, kind, sum) VALUES", "(?,?,?,?,?)", "");
static OBJECTS: Multi = Multi::new(
    "INSERT OR FAIL INTO objects (id, stream, kind, namespace, name, uid, owner, uid_key, name_key, sum) VALUES",
    "(?,?,?,?,?,?,?,?,?,?)",
    "",
);
static OWNED: Multi = Multi::new("INSERT OR IGNORE INTO owned (owner, object, sum) VALUES", "(?,?,?)", "");
static STATUSES: Multi = Multi::new("INSERT OR FAIL INTO statuses (id, body, sum) VALUES", "(?,?,?)", "");
static ANCHORS: Multi =
    Multi::new("INSERT OR FAIL INTO anchors (id, stream, checksum, document, sum) VALUES", "(?,?,?,?,?)", "");
static STATES: Multi = Multi::new(
    "INSERT OR FAIL INTO states (seq, object, version, flags, back, status, previous, owner, observed_ms, at, \
     anchor, sums, document) VALUES",
    "(?,?,?,?,?,?,?,?,?,?,?,?,?)",
    "",
);
static LIVE: Multi = Multi::new(
    "INSERT OR FAIL INTO current (object, newest, tail) VALUES",
    "(?,?,?)",
    "ON CONFLICT (object) DO UPDATE SET newest = excluded.newest, tail = excluded.tail",
);
static SNAPSHOTS: Multi = Multi::new(
    "INSERT OR FAIL INTO snapshots (object, seq, packed) VALUES",
    "(?,?,?)",
    "ON CONFLICT (object) DO UPDATE SET seq = excluded.seq, packed = excluded.packed",
);
static NO_SNAPSHOT: Multi = Multi::new("DELETE FROM snapshots WHERE object IN (VALUES", "(?)", ")");
static NOT_CURRENT: Multi = Multi::new("DELETE FROM current WHERE object IN (VALUES", "(?)", ")");
static ENDED: Multi = Multi::new(
    "UPDATE objects SET tail = v.column2, newest = v.column3 FROM (VALUES",
    "(?,?,?)",
    ") AS v WHERE objects.id = v.column1",
);
static TALLIES: Multi = Multi::new(
    "INSERT OR FAIL INTO tallies (segment, stream, states, bytes) VALUES",
    "(?,?,?,?)",
    "ON CONFLICT (segment, stream) DO UPDATE SET states = states + excluded.states, \
     bytes = bytes + excluded.bytes",
);
static GAPS: Multi =
    Multi::new("INSERT OR IGNORE INTO gaps (stream, seq, key, body, sum) VALUES", "(?,?,?,?,?)", "");
static POISON: Multi = Multi::new(
    "INSERT OR IGNORE INTO poison (stream, digest, checksum, observed_ms, error, raw, sum) VALUES",
    "(?,?,?,?,?,?,?)",
    "",
);
static DISCREPANCIES: Multi =
    Multi::new("INSERT OR FAIL INTO discrepancies (stream, number, body, sum) VALUES", "(?,?,?,?)", "");
static OUTDATED: Multi =
    Multi::new("DELETE FROM discrepancies WHERE (stream, number) IN (VALUES", "(?,?)", ")");

pub(super) async fn rows(connection: &mut SqliteConnection, rows: Rows) -> Result<(), sqlx::Error> {
    shared(connection, &rows).await?;
    STREAMS
        .run(connection, rows.streams, |b, r| {
            let sum = r.sum();
            b.add(r.id)
                .add(r.source)
                .add(r.epoch)
                .add(r.checkpoint)
                .add(r.states as i64)
                .add(r.last_event_ms)
                .add(sum);
        })
        .await?;
    OBJECTS.run(connection, rows.objects, bind_object).await?;
    OWNED
        .run(connection, rows.owned, |b, (owner, object)| {
            b.add(owner).add(object).add(seal::owned(owner, object));
        })
        .await?;
    STATES
        .run(connection, rows.states, |b, row| {
            let e = row.envelope;
            let sums = e.sums();
            b.add(e.seq as i64).add(e.object).key(e.key).add(e.flags.pack()).add(e.back as i64).add(e.status);
            b.add(e.previous).add(e.owner).add(e.observed_ms).optional_key(e.version).add(e.anchor).add(sums);
            b.add(row.document);
        })
        .await?;
    outcomes(connection, rows.outcomes.into_iter().collect()).await?;
    snapshots(connection, rows.snapshots.into_values().collect()).await?;
    let tallies = rows.tallies.into_iter().map(|((segment, stream), states)| {
        let bytes = rows.sizes.get(&(segment, stream)).copied().unwrap_or_default();
        (segment as i64, stream, states as i64, bytes as i64)
    });
    TALLIES
        .run(connection, tallies.collect(), |b, (segment, stream, states, bytes)| {
            b.add(segment).add(stream).add(states).add(bytes);
        })
        .await?;
    GAPS.run(connection, rows.gaps, |b, r| {
        let sum = r.sum();
        b.add(r.stream).add(r.seq as i64).add(r.key).add(r.body).add(sum);
    })
    .await?;
    POISON
        .run(connection, rows.poison, |b, r| {
            let sum = r.sum();
            b.add(r.stream).add(r.digest).add(r.checksum).add(r.observed_ms).add(r.error).add(r.raw).add(sum);
        })
        .await?;
    for found in rows.differences {
        differences(connection, found).await?;
    }
    Ok(())
}

async fn differences(connection: &mut SqliteConnection, found: Found) -> Result<(), sqlx::Error> {
    let stream = found.stream;
    let kept = sqlx::query_as("SELECT number, body FROM discrepancies WHERE stream = ?").bind(stream);
    let kept: Vec<Numbered> = kept.fetch_all(&mut *connection).await?;
    let Change { insert, remove } = found.change(&kept);
    let outdated = remove.into_iter().map(|number| (stream, number)).collect();
    OUTDATED
        .run(connection, outdated, |b, (stream, number): (i64, i64)| {
            b.add(stream).add(number);
        })
        .await?;
    let fresh = insert.into_iter().map(|(number, body)| (stream, number, body)).collect();
    DISCREPANCIES
        .run(connection, fresh, |b, (stream, number, body): (i64, i64, String)| {
            let sum = seal::discrepancy(stream, number, &body);
            b.add(stream).add(number).add(body).add(sum);
        })
        .await
}

/// What other rows point to; rare once the journal has run for a while.
async fn shared(connection: &mut SqliteConnection, rows: &Rows) -> Result<(), sqlx::Error> {
    KINDS
        .run(connection, rows.kinds.clone(), |b, (id, group, version, kind)| {
            let sum = seal::kind(id, &group, &version, &kind);
            b.add(id).add(group).add(version).add(kind).add(sum);
        })
        .await?;
    STATUSES
        .run(connection, rows.statuses.clone(), |b, (id, body)| {
            let sum = seal::status(id, &body);
            b.add(id).add(body).add(sum);
        })
        .await?;
    ANCHORS
        .run(connection, rows.anchors.clone(), |b, r| {
            b.add(r.id).add(r.stream).add(r.checksum).add(r.packed.to_vec()).add(r.sum());
        })
        .await
}

fn bind_object(binds: &mut super::multi::Binds, row: ObjectRow) {
    let (uid_key, name_key, sum) = (uid::key(&row.uid), uid::key(&row.name), row.sum());
    binds.add(row.id).add(row.stream).add(row.kind).add(row.namespace).add(row.name);
    match uid::to_bytes(&row.uid) {
        Some(bytes) => binds.add(bytes.to_vec()),
        None => binds.add(row.uid),
    };
    binds.add(row.owner).add(uid_key).add(name_key).add(sum);
}

async fn outcomes(
    connection: &mut SqliteConnection,
    outcomes: Vec<(i64, Outcome)>,
) -> Result<(), sqlx::Error> {
    let mut live = Vec::new();
    let mut ended = Vec::new();
    for (object, outcome) in outcomes {
        match outcome {
            Outcome::Live { newest, tail } => live.push((object, newest, tail)),
            Outcome::Ended { newest, tail } => ended.push((object, newest, tail)),
        }
    }
    // In the order of the table, which is kinder to its pages.
    live.sort_unstable_by_key(|(object, ..)| *object);
    ended.sort_unstable_by_key(|(object, ..)| *object);
    LIVE.run(connection, live, |b, (object, newest, tail)| {
        b.add(object).add(newest as i64).add(tail as i64);
    })
    .await?;
    for table in [&NOT_CURRENT, &NO_SNAPSHOT] {
        let objects = ended.iter().map(|(object, ..)| *object).collect();
        table
            .run(connection, objects, |b, object: i64| {
                b.add(object);
            })
            .await?;
    }
    ENDED
        .run(connection, ended, |b, (object, newest, tail)| {
            b.add(object).add(tail as i64).add((newest != 0).then_some(newest as i64));
        })
        .await
}

async fn snapshots(connection: &mut SqliteConnection, mut rows: Vec<SnapshotRow>) -> Result<(), sqlx::Error> {
    rows.sort_unstable_by_key(|row| row.object);
    SNAPSHOTS
        .run(connection, rows, |b, row| {
            b.add(row.object).add(row.seq as i64).add(row.packed.to_vec());
        })
        .await
}

static PLUGIN: Multi = Multi::new(
    "INSERT OR FAIL INTO plugins (name, progress, sum) VALUES",
    "(?,?,?)",
    "ON CONFLICT (name) DO UPDATE SET progress = excluded.progress, sum = excluded.sum",
);
static LETTERS: Multi = Multi::new(
    "INSERT OR FAIL INTO letters (plugin, seq, id, attempts, error, first_ms, last_ms, replaying, tries, sum) VALUES",
    "(?,?,?,?,?,?,?,?,?,?)",
    "ON CONFLICT (plugin, seq) DO UPDATE SET attempts = excluded.attempts, error = excluded.error, \
     id = excluded.id, first_ms = excluded.first_ms, last_ms = excluded.last_ms, \
     replaying = excluded.replaying, tries = excluded.tries, sum = excluded.sum",
);
static REVIVED: Multi = Multi::new("DELETE FROM letters WHERE (plugin, seq) IN (VALUES", "(?,?)", ")");
static MARKED: Multi = Multi::new(
    "UPDATE letters SET replaying = v.column3, sum = (sum & 4294967295) | (v.column3 << 32) FROM (VALUES",
    "(?,?,?)",
    ") AS v WHERE letters.plugin = v.column1 AND letters.seq = v.column2",
);
static REPLAYS: Multi = Multi::new(
    "INSERT OR FAIL INTO replays (plugin, what, who, why, seqs, at_ms, sum) VALUES",
    "(?,?,?,?,?,?,?)",
    "",
);
static KV: Multi = Multi::new(
    "INSERT OR FAIL INTO kv (plugin, key, value, sum) VALUES",
    "(?,?,?,?)",
    "ON CONFLICT (plugin, key) DO UPDATE SET value = excluded.value, sum = excluded.sum",
);
static KV_DELETE: Multi = Multi::new("DELETE FROM kv WHERE (plugin, key) IN (VALUES", "(?,?)", ")");

/// Progress, dead letters and keys of several plugins, each with one statement a table.
pub(super) async fn saves(
    connection: &mut SqliteConnection,
    saves: &[(&str, &Save)],
) -> Result<(), sqlx::Error> {
    let mut progress = Vec::new();
    let mut parked: Vec<(String, DeadLetter)> = Vec::new();
    let mut revived = Vec::new();
    let mut kv = std::collections::BTreeMap::new();
    for (plugin, save) in saves {
        let body = serde_json::to_string(&save.progress).expect("strings and numbers always serialize");
        progress.push((plugin.to_string(), body));
        parked.extend(save.parked.iter().map(|letter| (plugin.to_string(), letter.clone())));
        revived.extend(save.revived.iter().map(|seq| (plugin.to_string(), *seq)));
        for KvWrite { key, value } in &save.kv {
            // The last write of a key is what counts.
            kv.insert((plugin.to_string(), key.clone()), value.clone());
        }
    }
    PLUGIN
        .run(connection, progress, |b, (plugin, body)| {
            let sum = seal::plugin(&plugin, &body);
            b.add(plugin).add(body).add(sum);
        })
        .await?;
    REVIVED
        .run(connection, revived, |b, (plugin, seq)| {
            b.add(plugin).add(seq as i64);
        })
        .await?;
    LETTERS
        .run(connection, parked, |b, (plugin, letter)| {
            let DeadLetter { seq, id, attempts, error, first_ms, last_ms, replaying, dropped, tries, .. } =
                letter;
            let mark = match (dropped, replaying) {
                (true, _) => Act::Drop.mark(),
                (false, true) => Act::Replay.mark(),
                (false, false) => 0,
            };
            let tries = serde_json::to_string(&tries).expect("numbers and texts always serialize");
            let sum = Letter {
                plugin: &plugin,
                seq: seq as i64,
                id: id.as_str(),
                attempts: i64::from(attempts),
                error: &error,
                first_ms: first_ms as i64,
                last_ms: last_ms as i64,
                tries: &tries,
            }
            .sum(mark);
            b.add(plugin).add(seq as i64).add(id.as_str().to_owned()).add(attempts).add(error);
            b.add(first_ms as i64).add(last_ms as i64).add(mark).add(tries).add(sum);
        })
        .await?;
    let (sets, deletes): (Vec<_>, Vec<_>) = kv.into_iter().partition(|(_, value)| value.is_some());
    KV.run(connection, sets, |b, ((plugin, key), value)| {
        let value = value.unwrap_or_default();
        let sum = seal::key_value(&plugin, &key, &value);
        b.add(plugin).add(key).add(value).add(sum);
    })
    .await?;
    KV_DELETE
        .run(connection, deletes, |b, ((plugin, key), _)| {
            b.add(plugin).add(key);
        })
        .await
}

/// Marks dead letters as taken back or dropped, and records who did it and why.
pub(super) async fn marks(connection: &mut SqliteConnection, replay: &Replay) -> Result<(), sqlx::Error> {
    let Replay { act, plugin, seqs, who, why, at_ms } = replay;
    let marks = seqs.iter().map(|seq| (plugin.clone(), *seq, act.mark())).collect();
    MARKED
        .run(connection, marks, |b, (plugin, seq, mark): (String, Seq, i64)| {
            b.add(plugin).add(seq as i64).add(mark);
        })
        .await?;
    let seqs = serde_json::to_string(seqs).expect("numbers always serialize");
    let record = (plugin.clone(), act.as_str(), who.clone(), why.clone(), seqs, *at_ms as i64);
    REPLAYS
        .run(connection, vec![record], |b, (plugin, what, who, why, seqs, at_ms)| {
            let sum = seal::replay(&plugin, what, &who, &why, &seqs, at_ms);
            b.add(plugin).add(what).add(who).add(why).add(seqs).add(at_ms).add(sum);
        })
        .await
}

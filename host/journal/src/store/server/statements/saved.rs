//! Reads figures, findings, and what plugins saved.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::{DeadLetter, JournalError, PluginProgress};
use kubewitness_core::state::gap_reason;
use kubewitness_core::views::{EpochView, GapQuery, JournalView, LetterQuery, PoisonQuery, PoisonView};
use kubewitness_core::{Gap, Seq, StateId, calendar};

use crate::report::{PoisonRecord, ReplayRecord, SourceCounters};
use crate::store::RetentionReader;
use crate::store::rows::{
    LetterRange, OperatorAct, SEGMENT, SourceEpoch, StoreResult, bounded_i64, check, decode_column,
};
use crate::store::server::connect::session::ServerSession;
use crate::store::server::engine::link::SqlRow;

/// How many gaps one query to the server reads during a search.
const PAGE: i64 = 1000;

fn optional_rfc3339(ms: Option<i64>) -> Option<String> {
    ms.filter(|ms| *ms > 0).map(|ms| calendar::format_rfc3339(ms as u64))
}

fn limit_param(limit: usize) -> i64 {
    // Engines differ in the largest allowed limit.
    limit.min(i32::MAX as usize) as i64
}

fn decode_gap(id: i64, body: &str) -> StoreResult<Gap> {
    decode_column(body, || format!("gap {id}"))
}

fn matches_query(gap: &Gap, query: &GapQuery) -> bool {
    let object = gap.object.as_ref();
    let is = |wanted: &Option<String>, has: fn(&kubewitness_core::ObjectRef) -> &String| {
        wanted.as_ref().is_none_or(|wanted| object.is_some_and(|object| has(object) == wanted))
    };
    let kind = |kind: &String| object.is_some_and(|object| is_kind(&object.group, &object.kind, kind));
    is(&query.uid, |object| &object.uid)
        && is(&query.namespace, |object| &object.namespace)
        && is(&query.name, |object| &object.name)
        && query.kind.as_ref().is_none_or(kind)
}

impl ServerSession {
    pub(super) async fn read_stats(&mut self, bytes: u64) -> StoreResult<JournalView> {
        let text = "SELECT (SELECT CAST(coalesce(sum(states), 0) AS @BIGINT) FROM kw_tallies), \
                    coalesce((SELECT min(seq) FROM kw_states), 0), coalesce((SELECT max(seq) FROM kw_states), 0), \
                    (SELECT observed_ms FROM kw_states ORDER BY seq LIMIT 1)";
        let rows = self.fetch_rows(text, Vec::new()).await?;
        let row = rows.first().ok_or_else(|| JournalError::Fatal("the server answered nothing".into()))?;
        Ok(JournalView {
            states: row.int_at(0)? as u64,
            bytes,
            oldest_seq: row.int_at(1)? as u64,
            newest_seq: row.int_at(2)? as u64,
            oldest_at: optional_rfc3339(row.optional_int(3)?),
            ..JournalView::default()
        })
    }

    async fn per_stream(&mut self, text: &str) -> StoreResult<HashMap<i64, u64>> {
        let rows = self.fetch_rows(text, Vec::new()).await?;
        rows.into_iter().map(|row| Ok((row.int_at(0)?, row.int_at(1)? as u64))).collect()
    }

    pub(super) async fn read_source_counters(&mut self) -> StoreResult<Vec<SourceCounters>> {
        let gaps = self.per_stream("SELECT stream, count(*) FROM kw_gaps GROUP BY stream").await?;
        let poison = self.per_stream("SELECT stream, count(*) FROM kw_poison GROUP BY stream").await?;
        let taken = self.taken_of_streams().await?;
        let mut sources: BTreeMap<String, SourceCounters> = BTreeMap::new();
        // Epochs ascend, so the last one's checkpoint stays.
        for stream in self.read_streams().await? {
            let counters = sources.entry(stream.source.clone()).or_default();
            let last = stream.last_event_ms.filter(|ms| *ms > 0).map(|ms| ms as u64);
            *counters = SourceCounters {
                source: stream.source,
                epoch: stream.epoch,
                checkpoint: stream.checkpoint.unwrap_or_default(),
                states: counters.states + stream.states,
                taken: counters.taken + taken.get(&stream.id).copied().unwrap_or_default(),
                gaps: counters.gaps + gaps.get(&stream.id).copied().unwrap_or_default(),
                poison: counters.poison + poison.get(&stream.id).copied().unwrap_or_default(),
                last_event_ms: counters.last_event_ms.max(last),
            };
        }
        Ok(sources.into_values().collect())
    }

    pub(super) async fn read_gaps(&mut self) -> StoreResult<Vec<Gap>> {
        let rows = self.fetch_rows("SELECT id, body FROM kw_gaps ORDER BY id", Vec::new()).await?;
        rows.into_iter().map(|mut row| decode_gap(row.int_at(0)?, &row.text(1)?)).collect()
    }

    /// Newest first, each with its number. Conditions about their objects are checked here, part by part.
    pub(super) async fn read_gaps_of(&mut self, query: &GapQuery) -> StoreResult<Vec<(u64, Gap)>> {
        let text = "SELECT g.id, g.body, t.source FROM kw_gaps g @JOIN kw_streams t ON t.id = g.stream \
                    WHERE g.id < ? ORDER BY g.id DESC LIMIT ?";
        let limit = query.limit.unwrap_or(usize::MAX);
        let (mut gaps, mut before) = (Vec::new(), query.cursor.map_or(i64::MAX, bounded_i64));
        loop {
            let rows = self.fetch_rows(text, vec![before.into(), PAGE.into()]).await?;
            let is_last = (rows.len() as i64) < PAGE;
            for mut row in rows {
                before = row.int_at(0)?;
                let (gap, source) = (decode_gap(before, &row.text(1)?)?, row.text(2)?);
                if gaps.len() < limit
                    && query.source.as_ref().is_none_or(|wanted| *wanted == source)
                    && matches_query(&gap, query)
                {
                    gaps.push((before as u64, gap));
                }
            }
            if is_last || gaps.len() >= limit {
                return Ok(gaps);
            }
        }
    }

    pub(super) async fn read_poison(
        &mut self,
        source: Option<&str>,
        limit: usize,
    ) -> StoreResult<Vec<PoisonRecord>> {
        let text = "SELECT p.id, t.source, t.epoch, p.error, p.observed_ms, p.raw FROM kw_poison p \
                   JOIN kw_streams t ON t.id = p.stream ORDER BY p.id DESC LIMIT ?";
        let of = "SELECT p.id, t.source, t.epoch, p.error, p.observed_ms, p.raw FROM kw_poison p \
                  JOIN kw_streams t ON t.id = p.stream WHERE t.source = ? ORDER BY p.id DESC LIMIT ?";
        let rows = match source {
            None => self.fetch_rows(text, vec![limit_param(limit).into()]).await?,
            Some(source) => self.fetch_rows(of, vec![source.into(), limit_param(limit).into()]).await?,
        };
        let record = |mut row: SqlRow| {
            Ok(PoisonRecord {
                number: row.int_at(0)? as u64,
                source: row.text(1)?,
                epoch: row.int_at(2)? as u32,
                error: row.text(3)?,
                observed_ms: row.int_at(4)? as u64,
                raw: row.bytes_at(5)?,
            })
        };
        rows.into_iter().map(record).collect()
    }

    pub(super) async fn read_discrepancies(&mut self, source: &str) -> StoreResult<Vec<(i64, i64, String)>> {
        let text = "SELECT d.stream, d.number, d.body FROM kw_discrepancies d \
                    JOIN kw_streams t ON t.id = d.stream WHERE t.source = ? \
                    ORDER BY d.stream DESC, d.number DESC";
        let rows = self.fetch_rows(text, vec![source.into()]).await?;
        rows.into_iter().map(|mut row| Ok((row.int_at(0)?, row.int_at(1)?, row.text(2)?))).collect()
    }

    /// With its first 160 bytes: a line and a half of a terminal.
    pub(super) async fn read_poison_of(&mut self, query: &PoisonQuery) -> StoreResult<Vec<PoisonView>> {
        let text = "SELECT p.id, t.source, t.epoch, p.error, p.observed_ms, CAST(length(p.raw) AS @BIGINT), \
                   substring(p.raw FROM 1 FOR 160) FROM kw_poison p \
                   JOIN kw_streams t ON t.id = p.stream WHERE p.id < ? ORDER BY p.id DESC LIMIT ?";
        let of = "SELECT p.id, t.source, t.epoch, p.error, p.observed_ms, CAST(length(p.raw) AS @BIGINT), \
                  substring(p.raw FROM 1 FOR 160) FROM kw_poison p \
                  JOIN kw_streams t ON t.id = p.stream WHERE t.source = ? AND p.id < ? ORDER BY p.id DESC LIMIT ?";
        let limit = limit_param(query.limit.unwrap_or(usize::MAX));
        let before = query.cursor.map_or(i64::MAX, bounded_i64);
        let rows = match &query.source {
            None => self.fetch_rows(text, vec![before.into(), limit.into()]).await?,
            Some(source) => {
                self.fetch_rows(of, vec![source.as_str().into(), before.into(), limit.into()]).await?
            }
        };
        let view = |mut row: SqlRow| {
            Ok(PoisonView {
                number: row.int_at(0)? as u64,
                source: row.text(1)?,
                epoch: row.int_at(2)? as u32,
                error: row.text(3)?,
                observed_ms: row.int_at(4)? as u64,
                bytes: row.int_at(5)? as u64,
                excerpt: String::from_utf8_lossy(&row.bytes_at(6)?).into_owned(),
            })
        };
        rows.into_iter().map(view).collect()
    }

    /// A later history begins where the end of the previous one is recorded as a hole, or at its own
    /// beginning.
    pub(super) async fn read_epochs(&mut self) -> StoreResult<Vec<(String, EpochView)>> {
        let (mut begins, mut ends) = (HashMap::new(), HashMap::new());
        let holes = self.fetch_rows("SELECT stream, id, body FROM kw_gaps WHERE seq = 0", Vec::new()).await?;
        for mut row in holes {
            let gap = decode_gap(row.int_at(1)?, &row.text(2)?)?;
            let bound = if gap.before.is_empty() { &mut ends } else { &mut begins };
            if gap.reason == gap_reason::REPLACED {
                let first: &mut u64 = bound.entry(row.int_at(0)?).or_insert(gap.recorded_ms);
                *first = gap.recorded_ms.min(*first);
            }
        }
        let streams = self.read_streams().await?;
        let before = |stream: &SourceEpoch| {
            let number = stream.epoch.checked_sub(1)?;
            let before = streams.iter().find(|other| other.source == stream.source && other.epoch == number);
            let end = before.and_then(|before| ends.get(&before.id));
            end.or_else(|| begins.get(&stream.id)).or_else(|| ends.get(&stream.id)).copied()
        };
        let replaced: Vec<Option<u64>> = streams.iter().map(before).collect();
        Ok(streams
            .into_iter()
            .zip(replaced)
            .map(|(stream, replaced)| {
                let view = EpochView {
                    epoch: stream.epoch,
                    states: stream.states,
                    checkpoint: stream.checkpoint.unwrap_or_default(),
                    replaced_at: optional_rfc3339(replaced.map(|ms| ms as i64)),
                    last_event_at: optional_rfc3339(stream.last_event_ms),
                };
                (stream.source, view)
            })
            .collect())
    }

    /// The number of states of these sources in `(after, through]`: whole segments by their tallies, the two
    /// ends by counting states.
    pub(super) async fn read_count(
        &mut self,
        sources: &[Arc<str>],
        after: Seq,
        through: Seq,
    ) -> StoreResult<u64> {
        let through = through.min(i64::MAX as u64 - 1);
        if after >= through || sources.is_empty() {
            return Ok(0);
        }
        let streams = self.read_streams().await?.into_iter();
        let is_mine = |source: &str| sources.iter().any(|wanted| **wanted == *source);
        let mine: Vec<i64> =
            streams.filter(|stream| is_mine(&stream.source)).map(|stream| stream.id).collect();
        let (first, last) = ((after + 1) / SEGMENT, through / SEGMENT);
        // (from, through) of each end. If both are in the same segment, there is only one.
        let (head, tail) = match first == last {
            true => ((after + 1, through), (1, 0)),
            false => ((after + 1, (first + 1) * SEGMENT - 1), (last * SEGMENT, through)),
        };
        let whole = "SELECT CAST(coalesce(sum(t.states), 0) AS @BIGINT) FROM kw_tallies t @JOIN @numbers \
                     ON q.v = t.stream WHERE t.segment > ? AND t.segment < ?";
        let mut count = self.count_of(whole, &mine, first as i64, last as i64).await?;
        let end = "SELECT count(*) FROM kw_states s @JOIN kw_objects o ON o.id = s.object @JOIN @numbers \
                   ON q.v = o.stream WHERE s.seq >= ? AND s.seq <= ?";
        for (from, through) in [head, tail] {
            if from <= through {
                count += self.count_of(end, &mine, from as i64, through as i64).await?;
            }
        }
        Ok(count as u64)
    }

    async fn count_of(&mut self, text: &str, streams: &[i64], from: i64, through: i64) -> StoreResult<i64> {
        let counts = self.fetch_numbers(text, vec![streams.into(), from.into(), through.into()]).await?;
        Ok(counts.first().copied().unwrap_or_default())
    }

    pub(super) async fn read_progress(&mut self, plugin: &str) -> StoreResult<Option<PluginProgress>> {
        let text = "SELECT progress, sum FROM kw_plugins WHERE name = ?";
        let Some(mut row) = self.fetch_rows(text, vec![plugin.into()]).await?.pop() else { return Ok(None) };
        check::check_progress(plugin, &row.text(0)?, row.int_at(1)?).map(Some)
    }

    pub(super) async fn read_letters(&mut self, query: &LetterQuery) -> StoreResult<Vec<DeadLetter>> {
        const OF: &str = "SELECT plugin, seq, id, attempts, error, first_ms, last_ms, replaying, tries FROM kw_letters \
                          WHERE plugin = ? AND seq > ? AND replaying BETWEEN ? AND ? ORDER BY seq LIMIT ?";
        const BEHIND: &str = "SELECT plugin, seq, id, attempts, error, first_ms, last_ms, replaying, tries FROM kw_letters \
                              WHERE plugin > ? AND replaying BETWEEN ? AND ? ORDER BY plugin, seq LIMIT ?";
        let limit = query.limit.unwrap_or(usize::MAX);
        let (lowest, highest) = OperatorAct::marks_of(query.which);
        let mut rows = Vec::new();
        for range in LetterRange::all_ranges(query) {
            let rest = limit_param(limit - rows.len()).into();
            let found = match range {
                LetterRange::Of(plugin, seq) => {
                    let values = vec![plugin.into(), seq.into(), lowest.into(), highest.into(), rest];
                    self.fetch_rows(OF, values)
                }
                LetterRange::Behind(plugin) => {
                    self.fetch_rows(BEHIND, vec![plugin.into(), lowest.into(), highest.into(), rest])
                }
            };
            rows.extend(found.await?);
        }
        let letter = |mut row: SqlRow| {
            let (seq, (replaying, dropped)) = (row.int_at(1)? as u64, OperatorAct::of_mark(row.int_at(7)?));
            let tries = decode_column(&row.text(8)?, || format!("letter {seq}"))?;
            Ok(DeadLetter {
                plugin: row.text(0)?,
                seq,
                id: StateId::parse(&row.text(2)?),
                attempts: row.int_at(3)? as u32,
                error: row.text(4)?,
                first_ms: row.int_at(5)? as u64,
                last_ms: row.int_at(6)? as u64,
                replaying,
                dropped,
                tries,
            })
        };
        rows.into_iter().map(letter).collect()
    }

    pub(super) async fn read_replays(
        &mut self,
        plugin: Option<&str>,
        before: i64,
        limit: i64,
    ) -> StoreResult<Vec<ReplayRecord>> {
        let text = "SELECT id, plugin, who, why, seqs, at_ms, what FROM kw_replays WHERE id < ? ORDER BY id DESC LIMIT ?";
        let of = "SELECT id, plugin, who, why, seqs, at_ms, what FROM kw_replays WHERE plugin = ? AND id < ? \
                  ORDER BY id DESC LIMIT ?";
        let (before, limit) = (before.into(), limit.into());
        let rows = match plugin {
            None => self.fetch_rows(text, vec![before, limit]).await?,
            Some(plugin) => self.fetch_rows(of, vec![plugin.into(), before, limit]).await?,
        };
        decode_replay_records(rows)
    }

    pub(super) async fn read_pauses(&mut self) -> StoreResult<Vec<ReplayRecord>> {
        let text = "SELECT id, plugin, who, why, seqs, at_ms, what FROM kw_replays WHERE what = 'pause' AND id IN \
                    (SELECT max(id) FROM kw_replays WHERE what IN ('pause', 'resume') GROUP BY plugin) ORDER BY id";
        decode_replay_records(self.fetch_rows(text, Vec::new()).await?)
    }
}

fn decode_replay_records(rows: Vec<SqlRow>) -> StoreResult<Vec<ReplayRecord>> {
    let record = |mut row: SqlRow| {
        let number = row.int_at(0)?;
        let seqs = decode_column(&row.text(4)?, || format!("replay {number}"))?;
        Ok(ReplayRecord {
            number: number as u64,
            plugin: row.text(1)?,
            who: row.text(2)?,
            why: row.text(3)?,
            seqs,
            at_ms: row.int_at(5)? as u64,
            what: row.text(6)?,
        })
    };
    rows.into_iter().map(record).collect()
}

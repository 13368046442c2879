//! Finds the first state that stays after each run of removed states, and makes it the first of its object.

use std::collections::{HashMap, HashSet};

use kubewitness_core::Seq;
use kubewitness_core::document::pack_document;
use kubewitness_core::ports::JournalError;

use crate::read::JournalReader;
use crate::retention::decide::RemovableRun;
use crate::store::rows::removal::RemovalPlan;
use crate::store::rows::{DocumentEncoding, RowFlags, SEGMENT, StateRow};

/// The most steps from an object's end, and the positions of one query, in the search for a state's
/// successor.
const STEPS: usize = 256;
const WINDOW: u64 = 16 * SEGMENT;

/// Finds the state that follows each run and makes it the first of its object.
pub(super) async fn rebase_successors(
    reader: &mut JournalReader<'_>,
    runs: &[RemovableRun],
    newest: Seq,
    removal: &mut RemovalPlan,
) -> Result<(), JournalError> {
    let taken: HashSet<Seq> = removal.taken.iter().map(|link| link.seq).collect();
    let followed: HashSet<Seq> = removal.taken.iter().map(|link| link.before).collect();
    let mut far = Vec::new();
    let mut found: Vec<(Seq, Seq)> = Vec::new();
    for run in runs {
        let Some(last) = run.links.last() else { continue };
        let mut has_later = followed.contains(&last.seq);
        if !has_later {
            let behind =
                reader.retention_reader().chain_after(&removal.streams, last.object, last.seq, STEPS).await?;
            let next = behind.iter().find(|(_, before)| *before == last.seq).map(|(seq, _)| *seq);
            has_later = next.is_some() || behind.len() >= STEPS;
            match next {
                Some(next) => found.push((next, run.root)),
                None if has_later => far.push((last.seq, run.root)),
                None => {}
            }
        }
        if run.is_all() {
            removal.ends.push((last.object, last.seq, has_later));
            removal.objects.push(last.object);
        } else if !has_later {
            return Err(JournalError::Fatal(format!(
                "state {}: no state of its object follows it",
                last.seq
            )));
        }
    }
    found.extend(find_successors(reader, far, newest).await?);
    for (seq, root) in found.into_iter().filter(|(seq, _)| !taken.contains(seq)) {
        let (row, stream, growth) = rebase_state(reader, seq, root).await?;
        removal.growth.push((seq, stream, growth));
        removal.rebased.push(row);
    }
    Ok(())
}

/// Finds the successors of these states if they are far from the ends of their chains. Objects with such long
/// chains change often, so the successor is near.
async fn find_successors(
    reader: &mut JournalReader<'_>,
    ends: Vec<(Seq, Seq)>,
    newest: Seq,
) -> Result<Vec<(Seq, Seq)>, JournalError> {
    let mut found = Vec::new();
    let roots: HashMap<Seq, Seq> = ends.iter().copied().collect();
    let mut seqs: Vec<Seq> = ends.iter().map(|(seq, _)| *seq).collect();
    let mut after = seqs.iter().copied().min().unwrap_or(newest);
    while !seqs.is_empty() && after < newest {
        for (before, seq) in
            reader.retention_reader().states_pointing_to(&seqs, after, after + WINDOW).await?
        {
            seqs.retain(|seq| *seq != before);
            found.push((seq, roots.get(&before).copied().unwrap_or_default()));
        }
        after += WINDOW;
    }
    match seqs.first() {
        None => Ok(found),
        Some(seq) => Err(JournalError::Fatal(format!("state {seq}: no state of its object follows it"))),
    }
}

/// Makes a state the first of its object, or the first after a hole, so that its document needs no earlier
/// state. Also returns its stream and by how many bytes it grows.
async fn rebase_state(
    reader: &mut JournalReader<'_>,
    seq: Seq,
    root: Seq,
) -> Result<(StateRow, i64, i64), JournalError> {
    let missing = || JournalError::Fatal(format!("state {seq} is missing"));
    let (mut envelope, mut document, stream) =
        reader.retention_reader().stored_at(seq).await?.ok_or_else(missing)?;
    let before = document.len() as i64;
    if envelope.flags.encoding == DocumentEncoding::Delta {
        let whole = reader.document_of(seq).await?.ok_or_else(missing)?;
        document = pack_document(&whole).to_vec();
        envelope.flags = RowFlags { encoding: DocumentEncoding::Full, depth: 0, ..envelope.flags };
        envelope.anchor = None;
    }
    envelope.back = if root == 0 { 0 } else { seq - root };
    let growth = document.len() as i64 - before;
    Ok((StateRow { envelope, document }, stream, growth))
}

//! Receipts in granted databases, against the states that they are of.

use std::path::Path;

use anyhow::{Context, Result};
use kubewitness_capability::{DatabaseProof, ReceiptProof, fingerprint, prove_receipts};
use kubewitness_core::config::HostSpec;
use kubewitness_journal::{Known, Place, VerifyReport, code, ids_at};

/// States whose ids are held at once.
const STATES: usize = 64 * 1024;

/// Adds what is found to the report. Receipts are read before the states: what has a receipt was
/// journaled before.
pub async fn check(report: &mut VerifyReport, place: &Place, host: &HostSpec, data: &Path) -> Result<()> {
    for proof in prove_receipts(host, data).await {
        let DatabaseProof { database, receipts, rows, problems, unread } = proof;
        report.receipts_checked += receipts.len() as u64;
        report.rows_checked += rows;
        for problem in problems {
            report.add(code::RECEIPT, None, format!("{database}: {problem}"));
        }
        if let Some(why) = unread {
            report.not_checked.push(format!("the receipts in the database `{database}`: {why}"));
        }
        // A receipt has at most as many states as a batch.
        let mut left = &receipts[..];
        while !left.is_empty() {
            let mut states = 0;
            let fits = |one: &&ReceiptProof| {
                states += one.marks.len();
                states <= STATES
            };
            let count = left.iter().take_while(fits).count().max(1);
            let (part, rest) = left.split_at(count);
            left = rest;
            let seqs: Vec<_> = part.iter().flat_map(|one| &one.marks).map(|(seq, _)| *seq).collect();
            let known = ids_at(place, &seqs).await.context("looking up the states of receipts")?;
            for (seq, message) in part.iter().flat_map(|one| misfits(one, &known)) {
                report.add(code::RECEIPT, Some(seq), format!("{database}: {message}"));
            }
        }
    }
    Ok(())
}

/// Of one receipt, the positions that do not have the states that it was given for.
fn misfits(receipt: &ReceiptProof, known: &Known) -> Vec<(u64, String)> {
    let ReceiptProof { plugin, marks } = receipt;
    let misfit = |(seq, print): &(u64, u32)| {
        let newest = known.newest;
        let text = match known.ids.get(seq) {
            Some(id) if fingerprint(id.as_str()) == *print => return None,
            Some(_) => format!(
                "a receipt of {plugin} is of another state than the journal's: is it another journal's?"
            ),
            None if *seq > newest => {
                format!(
                    "a receipt of {plugin} is of a state that the journal does not have: it ends at {newest}"
                )
            }
            None if known.retained => return None,
            None => format!("a receipt of {plugin} is of a state that is not there"),
        };
        Some((*seq, text))
    };
    marks.iter().filter_map(misfit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_core::StateId;

    #[test]
    fn a_receipt_fits_the_states_that_it_was_given_for_and_no_others() {
        let id = |seq: u64| StateId::parse(&format!("jobs/0/batch/Job/u/{seq}"));
        let known = Known { newest: 3, retained: false, ids: [(1, id(1)), (3, id(3))].into() };
        let receipt = |seq: u64, of: u64| ReceiptProof {
            plugin: "audit".into(),
            marks: vec![(seq, fingerprint(id(of).as_str()))],
        };
        assert_eq!(misfits(&receipt(1, 1), &known), []);
        assert!(misfits(&receipt(1, 2), &known)[0].1.contains("another state"));
        assert!(misfits(&receipt(4, 4), &known)[0].1.contains("it ends at 3"));
        assert!(misfits(&receipt(2, 2), &known)[0].1.contains("not there"));
        assert_eq!(misfits(&receipt(2, 2), &Known { retained: true, ..known }), []);
    }
}

//! Proofs: they read files and change nothing, also beside a running controller.

use std::fs::File;
use std::io::BufReader;

use anyhow::Context;

use super::print::{self, clean, mark};
use super::{End, Ended};
use crate::cli::{Audit, Journal};

pub async fn journal(command: Journal) -> Ended {
    let Journal::Verify { data, output } = command;
    let path = if data.is_dir() { data.join("journal.db") } else { data };
    let report = kubewitness_journal::verify(&path).await.with_context(|| {
        format!("verifying {}: name the controller's data folder with --data", path.display())
    })?;
    let ok = report.ok;
    print::value(output, &report, |report| {
        let mut text = format!("{} {}: {} states checked\n", mark(ok), path.display(), report.states_checked);
        for problem in &report.problems {
            let seq = problem.seq.map(|seq| format!(" at {seq}")).unwrap_or_default();
            text.push_str(&format!("  {}{seq}: {}\n", problem.code, clean(&problem.message)));
        }
        text
    })?;
    Ok(if ok { End::Fine } else { End::Failed })
}

pub fn audit(command: Audit) -> Ended {
    let Audit::Verify { file, output } = command;
    let reader = File::open(&file).with_context(|| format!("opening {}", file.display()))?;
    let report = crate::audit::verify(BufReader::new(reader))
        .with_context(|| format!("reading {}", file.display()))?;
    let ok = report.ok;
    print::value(output, &report, |report| {
        format!("{} {}: {}\n", mark(ok), file.display(), clean(&report.to_string()))
    })?;
    Ok(if ok { End::Fine } else { End::Failed })
}

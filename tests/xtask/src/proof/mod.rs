//! `cargo xtask prove`: the claims of the README, each with the tests that fail if it is not true.
//!
//! A reader who doubts a sentence should not have to know where its tests are. So each claim has a name, and
//! one command with that name runs its proof. Figures are not here: `docs/reference/figures.md` has a command
//! for each.

pub mod real;
mod servers;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::build::{LintMode, print_text, root, step};
use crate::measure::peer;
use crate::run;
use crate::suite::TestSelection;

struct ReadmeClaim {
    name: &'static str,
    sentence: &'static str,
    proof: ClaimProof,
}

enum ClaimProof {
    /// Parts of the names of tests.
    Tests(&'static [&'static str]),
    /// `cargo xtask real` with these arguments. It needs Go.
    RealServers(&'static [&'static str]),
}

const CLAIMS: [ReadmeClaim; 10] = [
    ReadmeClaim {
        name: "lost",
        sentence: "No version is lost silently: after each fault of docs/repair.md it is there, or in a gap",
        proof: ClaimProof::Tests(&["rows::", "planted_bugs::", "storage::kills::", "watching::restart::"]),
    },
    ReadmeClaim {
        name: "order",
        sentence: "States of one object reach a plugin in order, one at a time, through kills and replays",
        proof: ClaimProof::Tests(&["seeds::", "lanes::tests::model::", "simulation::"]),
    },
    ReadmeClaim {
        name: "once",
        sentence: "A state's rows in a granted database are there once, whatever is killed",
        proof: ClaimProof::Tests(&[
            "every_state_has_one_effect",
            "session::tests::kills::",
            "storage::kills::",
        ]),
    },
    ReadmeClaim {
        name: "authority",
        sentence: "A plugin has what it was granted and nothing else, also one that means harm",
        proof: ClaimProof::Tests(&[
            "limits::hostile::",
            "limits::ceiling::",
            "sql::guard::",
            "takes_for_a_read",
            "only_reads_is_held_to_it",
        ]),
    },
    ReadmeClaim {
        name: "documents",
        sentence: "Every version comes back byte for byte, or as an error that names its position",
        proof: ClaimProof::Tests(&["documents_are_exact", "proof::damage::"]),
    },
    ReadmeClaim {
        name: "accounts",
        sentence: "For each plugin, observed = delivered + filtered + dead + waiting + taken; a journal that was changed is noticed",
        proof: ClaimProof::Tests(&["lanes::tests::model::", "proof::"]),
    },
    ReadmeClaim {
        name: "access",
        sentence: "People see what Kubernetes lets them see, on each route, and no secret of a document",
        proof: ClaimProof::Tests(&["access::", "portal::secrets::"]),
    },
    ReadmeClaim {
        name: "causes",
        sentence: "An object's first line names what happened; docs/reference/causes.md says how often it is right",
        proof: ClaimProof::Tests(&[
            "causes_of_histories_that_real_controllers_wrote_are_right",
            "causes_of_held_out_histories_are_right",
            "the_reference_says_how_often_causes_are_right",
            "every_recorded_history_shows_the_facts_of_its_label",
        ]),
    },
    ReadmeClaim {
        name: "real-servers",
        sentence: "What etcd has is in the journal, once and in order, with a real API server and kills of each process",
        proof: ClaimProof::RealServers(&[]),
    },
    ReadmeClaim {
        name: "real-access",
        sentence: "The shipped roles are exactly enough, and people see what a real API server lets them see",
        proof: ClaimProof::RealServers(&["--access"]),
    },
];

pub fn command(args: &[String]) -> Result<ExitCode> {
    let claims: Vec<_> = match args {
        [] => {
            list()?;
            return Ok(ExitCode::SUCCESS);
        }
        [flag] if flag == "--all" => CLAIMS.iter().collect(),
        names => names.iter().map(|name| find(name)).collect::<Result<_>>()?,
    };
    let filters = filters(&claims);
    let runs: Vec<_> = claims.iter().filter_map(|claim| claim.real_run()).collect();
    if !runs.is_empty() {
        peer::go().context("real servers are built by Go; without it, name the other claims")?;
    }
    if !filters.is_empty() {
        let selection = TestSelection { filters, skips_nothing: true, ..TestSelection::default() };
        run::test(&selection, LintMode::Ignored)?;
    }
    for args in runs {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        if real::command(&args)? != ExitCode::SUCCESS {
            bail!("`cargo xtask real {}` found what the claim denies: it is printed above", args.join(" "));
        }
    }
    for claim in &claims {
        print_text(&claim.tables()?)?;
    }
    step("proved");
    print_text(&claims.into_iter().map(ReadmeClaim::line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> Result<()> {
    let claims: String = CLAIMS.iter().map(ReadmeClaim::line).collect();
    print_text(&format!(
        "cargo xtask prove NAME... | --all\n\n{claims}\nFigures: each has its command in docs/reference/figures.md.\n"
    ))
}

fn find(name: &str) -> Result<&'static ReadmeClaim> {
    match CLAIMS.iter().find(|claim| claim.name == name) {
        Some(claim) => Ok(claim),
        None => {
            let names: Vec<_> = CLAIMS.iter().map(|claim| claim.name).collect();
            bail!("there is no claim `{name}`, but {}", names.join(", "))
        }
    }
}

/// The parts of names of all these claims, without repetition.
fn filters(claims: &[&ReadmeClaim]) -> Vec<String> {
    let mut filters: Vec<_> =
        claims.iter().flat_map(|claim| claim.tests()).map(|&part| part.to_owned()).collect();
    filters.sort();
    filters.dedup();
    filters
}

impl ReadmeClaim {
    /// The figures that belong to the claim. Its tests have compared them with the code.
    fn tables(&self) -> Result<String> {
        const BY_HAND: &str = "## Histories that were written by hand";
        if self.name != "causes" {
            return Ok(String::new());
        }
        let page = root().join("docs/reference/causes.md");
        let page = std::fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
        let tables = page.split(BY_HAND).next().unwrap_or_default();
        Ok(tables.split_once("\n## ").map_or(String::new(), |(_, tables)| format!("## {tables}")))
    }

    /// The line of a list.
    fn line(&self) -> String {
        format!("{:<13} {}\n", self.name, self.sentence)
    }

    fn tests(&self) -> &'static [&'static str] {
        match self.proof {
            ClaimProof::Tests(parts) => parts,
            ClaimProof::RealServers(_) => &[],
        }
    }

    /// The arguments of `cargo xtask real`.
    fn real_run(&self) -> Option<&'static [&'static str]> {
        match self.proof {
            ClaimProof::Tests(_) => None,
            ClaimProof::RealServers(args) => Some(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::root;

    #[test]
    fn each_promise_of_the_readme_names_the_command_that_proves_it() {
        let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("a README");
        let (readme, chinese) = (read("README.md"), read("README.zh-CN.md"));
        let (_, rest) = readme.split_once("## What it promises").expect("the promises");
        let (promises, _) = rest.split_once("\n## ").expect("their end");
        let bullets: Vec<_> = promises.split("\n- ").skip(1).collect();
        assert!(bullets.len() > 5, "{promises}");
        for bullet in bullets {
            let (_, command) = bullet.split_once("`cargo xtask prove ").unwrap_or_else(|| panic!("{bullet}"));
            let (name, _) = command.split_once('`').expect("the end of the command");
            find(name).expect("a claim");
        }
        for claim in &CLAIMS {
            let command = format!("`cargo xtask prove {}`", claim.name);
            assert!(readme.contains(&command) && chinese.contains(&command), "{command}");
        }
    }

    #[test]
    fn what_two_claims_share_is_run_once_and_an_unknown_claim_is_refused_with_all_names() {
        let claims: Vec<_> = CLAIMS.iter().collect();
        let filters = filters(&claims);
        assert_eq!(filters.iter().filter(|part| *part == "storage::kills::").count(), 1);
        let refused = find("speed").err().expect("no such claim").to_string();
        assert!(CLAIMS.iter().all(|claim| refused.contains(claim.name)), "{refused}");
    }
}

//! Where the simulated API server deliberately differs from a real one, and why. An entry that
//! no longer matches anything fails the test, so that this list stays true.

use super::relation::AnswerDifference;

struct Differs {
    /// The recordings in which it differs; in each of them it must.
    transcripts: &'static [&'static str],
    /// Step, part and path; `*` stands for one number or name, `**` for any number of them.
    path: &'static str,
    reason: &'static str,
}

const DIFFERS: &[Differs] = &[
    Differs {
        transcripts: &[
            "auth",
            "crud",
            "job-lifecycle",
            "lease",
            "list-expired",
            "list-pages",
            "walk-back",
            "watch",
        ],
        path: "**.managedFields.**",
        reason: "which manager owns which field is recorded with the outer fields alone: all of them double an object's \
                 size, and nothing here reads them",
    },
    Differs {
        transcripts: &["job-lifecycle", "list-pages"],
        path: "*.body.columnDefinitions[*].description",
        reason: "columns have descriptions of their own: kubectl does not show them",
    },
    Differs {
        transcripts: &["discovery"],
        path: "0.body.gitVersion",
        reason: "it says that it is a simulator, so that nobody takes it for a real server",
    },
    Differs {
        transcripts: &["discovery"],
        path: "0.body.gitCommit",
        reason: "it is not built from that source",
    },
    Differs {
        transcripts: &["discovery"],
        path: "0.body.gitTreeState",
        reason: "it is not built from that source",
    },
    Differs {
        transcripts: &["discovery"],
        path: "0.body.goVersion",
        reason: "it is not written in that language",
    },
    Differs {
        transcripts: &["discovery"],
        path: "0.body.compiler",
        reason: "it is not written in that language",
    },
    Differs {
        transcripts: &["discovery"],
        path: "2.body.serverAddressByClientCIDRs[0].serverAddress",
        reason: "each server has an address of its own",
    },
    Differs {
        transcripts: &["discovery"],
        path: "3.body.resources[*].storageVersionHash",
        reason: "an opaque hash of how a real server stores the kind; clients only compare it with itself",
    },
    Differs {
        transcripts: &["lease"],
        path: "0.body.spec.holderIdentity",
        reason: "the recording holds what became of this answer later: the holder that was sent is the one that a \
                 server answers with, as the next step shows",
    },
    Differs {
        transcripts: &["lease"],
        path: "3.body.message",
        reason: "the message quotes the whole patched object, managed fields included, which are not recorded here",
    },
    Differs {
        transcripts: &["lease"],
        path: "3.body.details.causes[0].message",
        reason: "the message quotes the whole patched object, managed fields included, which are not recorded here",
    },
];

pub fn judge(transcript: &str, differences: &[AnswerDifference]) -> Vec<String> {
    let mut needed = vec![false; DIFFERS.len()];
    let mut faults = Vec::new();
    for difference in differences {
        let known = |entry: &Differs| {
            entry.transcripts.contains(&transcript) && matches(entry.path, &difference.path)
        };
        match DIFFERS.iter().position(known) {
            Some(index) => needed[index] = true,
            None => {
                faults.push(format!(
                    "{}: recorded {}, here {}",
                    difference.path, difference.recorded, difference.here
                ));
            }
        }
    }
    for (entry, needed) in DIFFERS.iter().zip(needed) {
        if entry.transcripts.contains(&transcript) && !needed {
            faults.push(format!("{} no longer differs: take it off the list ({})", entry.path, entry.reason));
        }
    }
    faults
}

/// The list itself: every entry names recordings that there are, and gives a reason.
pub fn check(transcripts: &[&str]) {
    for entry in DIFFERS {
        assert!(entry.transcripts.iter().all(|name| transcripts.contains(name)), "{}", entry.path);
        assert!(
            !entry.transcripts.is_empty() && entry.reason.len() > 20,
            "{}: say where and why",
            entry.path
        );
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let steps = |text: &str| -> Vec<String> {
        text.replace('[', ".").replace(']', "").split('.').map(str::to_owned).collect()
    };
    let (pattern, path) = (steps(pattern), steps(path));
    match_steps(&pattern, &path)
}

fn match_steps(pattern: &[String], path: &[String]) -> bool {
    match (pattern.first().map(String::as_str), path.first()) {
        (None, None) => true,
        (Some("**"), _) => (0..=path.len()).any(|skip| match_steps(&pattern[1..], &path[skip..])),
        (Some("*"), Some(_)) => match_steps(&pattern[1..], &path[1..]),
        (Some(step), Some(here)) if step == here => match_steps(&pattern[1..], &path[1..]),
        _ => false,
    }
}

#[test]
fn a_pattern_matches_whole_steps() {
    assert!(matches("3.body.items[*].metadata.**", "3.body.items[12].metadata.labels.a"));
    assert!(matches("**.managedFields", "3.body.metadata.managedFields"));
    assert!(!matches("3.body.items[*]", "3.body.items[1].name"));
    assert!(!matches("3.body", "13.body"));
}

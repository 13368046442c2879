//! Finds what looks like a measured figure and stands outside of marks.
//!
//! Pages are full of numbers: bounds, defaults, versions, sizes of examples. Those are facts of the code, and other
//! tests compare them. A measurement shows by the words around it: how many times as fast, states in a second, a
//! percentile, megabytes of something built, or about how many minutes. What is found moves between marks, or goes. A
//! number that only looks like one is named in [`ALLOWED`], with its reason.

use anyhow::{Context, Result};

use crate::pages::{PagePiece, paths, pieces};
use crate::root;

/// Words that no number of the code needs.
const SIGNS: [&str; 8] = ["p50", "p90", "p95", "p99", "median", "states/s", "requests/s", "records/s"];
/// The same in Chinese, which has no blanks.
const CHINESE_SIGNS: [&str; 4] = ["毫秒", "中位数", "倍", "分钟"];
const TIMES: [&str; 6] = ["second", "seconds", "minute", "minutes", "ms", "s"];
const NUMBERS: [&str; 12] =
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twenty", "thirty"];
const THINGS: [&str; 5] = ["states", "frames", "records", "rows", "requests"];

/// Parts of lines that look like measurements, each with what they are.
const ALLOWED: [(&str, &str); 1] = [("an object of 3 MB", "a test makes it")];

/// A line of a page, and what in it looks like a figure.
#[derive(Debug, PartialEq)]
pub struct UnsourcedFigure {
    pub line: usize,
    pub words: String,
}

/// Every page's suspects, as `PAGE:LINE: WORDS`.
pub fn suspects_of_pages() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for path in paths()? {
        let page = std::fs::read_to_string(root().join(&path))
            .with_context(|| format!("reading {}", path.display()))?;
        let found = suspects(&page).with_context(|| path.display().to_string())?;
        all.extend(found.iter().map(|one| format!("{}:{}: {}", path.display(), one.line, one.words)));
    }
    Ok(all)
}

pub fn suspects(page: &str) -> Result<Vec<UnsourcedFigure>> {
    // A measured figure is no suspect, and its line keeps its number.
    let without: String = pieces(page)?
        .into_iter()
        .map(|piece| match piece {
            PagePiece::Text(text) => text,
            PagePiece::Figure { .. } => "FIGURE",
        })
        .collect();
    let (mut found, mut is_block) = (Vec::new(), false);
    for (number, line) in without.lines().enumerate() {
        let is_fence = line.starts_with("```");
        is_block ^= is_fence;
        if is_block
            || is_fence
            || line.starts_with("<!--")
            || ALLOWED.iter().any(|(part, _)| line.contains(part))
        {
            continue;
        }
        found.extend(suspect(line).map(|words| UnsourcedFigure { line: number + 1, words }));
    }
    Ok(found)
}

/// The first few words that look like a figure.
fn suspect(line: &str) -> Option<String> {
    // A measured figure beside its unit explains its own signs.
    if line.contains("FIGURE") {
        return None;
    }
    let chinese = CHINESE_SIGNS.iter().find(|sign| is_behind_a_number(line, sign));
    if let Some(sign) = chinese {
        return Some((*sign).to_owned());
    }
    let text = without_code(line);
    let words: Vec<&str> = text.split_whitespace().map(trimmed).filter(|word| !word.is_empty()).collect();
    (0..words.len()).map(|at| &words[at..]).find_map(suspicious)
}

/// How many words, from the first one, are a figure.
fn suspicious(words: &[&str]) -> Option<String> {
    let word = |place: usize| words.get(place).copied().unwrap_or_default();
    let length = match (word(0), word(1), word(2), word(3)) {
        (sign, ..) if SIGNS.contains(&sign) => 1,
        // Bounds are products of whole numbers.
        ("×", factor, ..) if is_number(factor) && factor.contains('.') => 2,
        (factor, "times", "as" | "faster" | "slower" | "more" | "less" | "smaller" | "larger", _)
            if is_number(factor) =>
        {
            3
        }
        (size, "MB" | "GB" | "kB", ..) if is_number(size) => 2,
        (rate, thing, "a" | "per", "second") if is_number(rate) && THINGS.contains(&thing) => 4,
        ("about" | "some" | "roughly", time, unit, _) if is_number(time) && TIMES.contains(&unit) => 3,
        ("less", "than", time, unit) if is_number(time) && TIMES.contains(&unit) => 4,
        ("on", cores, "cores", _) if is_number(cores) => 3,
        _ => return None,
    };
    Some(words[..length].join(" "))
}

fn is_number(word: &str) -> bool {
    NUMBERS.contains(&word)
        || word.starts_with(|first: char| first.is_ascii_digit())
            && word.chars().all(|letter| letter.is_ascii_digit() || ",.".contains(letter))
}

fn trimmed(word: &str) -> &str {
    word.trim_matches(|letter: char| "|.,:;()*\"".contains(letter))
}

fn is_behind_a_number(line: &str, sign: &str) -> bool {
    line.match_indices(sign)
        .any(|(place, _)| line[..place].trim_end().ends_with(|last: char| last.is_ascii_digit()))
}

/// Code is a name, a command or a setting.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(page: &str) -> Vec<String> {
        suspects(page).unwrap().into_iter().map(|suspect| suspect.words).collect()
    }

    #[test]
    fn what_looks_like_a_measurement_is_found() {
        for (page, found) in [
            ("| SQLite | 5.4 times as many states |", "5.4 times as"),
            ("It takes 10,000 states a second.", "10,000 states a second"),
            ("The first start builds for about five minutes on two cores.", "about five minutes"),
            ("Later starts take less than two seconds.", "less than two seconds"),
            ("| Python | 18 MB |", "18 MB"),
            ("At p99 that is 2 ms", "p99"),
            ("从变更到调用插件 1.81 毫秒", "毫秒"),
        ] {
            assert_eq!(words(page), [found]);
        }
    }

    #[test]
    fn bounds_defaults_code_and_measured_figures_are_none() {
        let page = "An answer has 16 MiB and 10 seconds.\n`about 5 minutes` is a setting.\n\
                    ```console\nabout 5 minutes\n```\n<!-- about 5 minutes -->\n\
                    | p99 | <!--figure latency.p99-->1.81<!--/figure--> ms |\nThe lease lasts ten seconds.";
        assert_eq!(words(page), [""; 0]);
    }

    #[test]
    fn no_page_shows_a_figure_that_nobody_measures() {
        let suspects = suspects_of_pages().unwrap();
        assert!(
            suspects.is_empty(),
            "put each between marks (tests/figures/src/pages.rs), take it out, or allow it in \
             tests/figures/src/prose.rs with its reason:\n{}",
            suspects.join("\n")
        );
    }
}

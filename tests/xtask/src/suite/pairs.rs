//! Tests in pairs: the same test of MySQL and of MariaDB, or of a plugin in Python and of one in JavaScript.
//! The code under test is nearly the same for both, and both together take a sixth of the time of all tests.
//! So a run of all tests takes one of each pair. An even seed takes the tests that an odd one leaves out.

use std::collections::BTreeMap;

/// The words by which the names of two tests of a pair differ.
const WORDS: [[&str; 2]; 2] = [["mysql", "mariadb"], ["python", "javascript"]];

/// The printed names of the tests that are left out.
pub const LEFT_OUT: &str = "a pair tests the same of MySQL and MariaDB, or of Python and JavaScript";

/// Removes one test of each pair from the programs, and returns the number of removed ones.
pub fn take_one_of_each(programs: &mut [&mut Vec<String>], seed: &str) -> usize {
    let is_odd = seed.bytes().last().is_some_and(|last| last % 2 == 1);
    let mut left_out = 0;
    for words in WORDS {
        // Counted over all programs, so that each run has tests with both words.
        let mut turn = usize::from(is_odd);
        for tests in programs.iter_mut() {
            for pair in pairs(tests, words) {
                let other = &pair[(turn + 1) % 2];
                tests.retain(|test| test != other);
                (turn, left_out) = (turn + 1, left_out + 1);
            }
        }
    }
    left_out
}

/// Two tests are a pair if their names differ by one of the words. Sorted by what the names share.
fn pairs(tests: &[String], words: [&str; 2]) -> Vec<[String; 2]> {
    let mut halves: BTreeMap<Vec<&str>, [Option<&String>; 2]> = BTreeMap::new();
    for test in tests {
        let parts: Vec<_> =
            test.split_inclusive(|character: char| !character.is_ascii_alphanumeric()).collect();
        let word_of = |part: &str| words.iter().position(|word| part.trim_end_matches(['_', ':']) == *word);
        let Some(which) = parts.iter().find_map(|part| word_of(part)) else { continue };
        let shared = parts.into_iter().filter(|part| word_of(part).is_none()).collect();
        halves.entry(shared).or_default()[which] = Some(test);
    }
    let whole = halves.into_values().filter_map(|[one, other]| Some([one?.clone(), other?.clone()]));
    whole.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tests: &[&str]) -> Vec<String> {
        tests.iter().map(|&test| test.to_owned()).collect()
    }

    fn taken(seed: &str) -> (usize, Vec<String>) {
        let mut stores = names(&[
            "stores::mysql::kills",
            "stores::mariadb::kills",
            "stores::postgres::kills",
            "a_full_disk_with_mysql",
            "a_full_disk_with_mariadb",
            "mysql_alone",
            "mysqld_and_mariadbd",
        ]);
        let mut examples = names(&["an_example_in_python", "an_example_in_javascript"]);
        let mut guides = names(&["the_guide_in_javascript_is_followed", "the_guide_in_python_is_followed"]);
        let left_out = take_one_of_each(&mut [&mut stores, &mut examples, &mut guides], seed);
        (left_out, [stores, examples, guides].concat())
    }

    #[test]
    fn one_of_each_pair_is_taken_and_every_test_without_a_pair() {
        let (left_out, tests) = taken("1795878610");
        assert_eq!(left_out, 4);
        assert_eq!(
            tests,
            [
                "stores::mariadb::kills",
                "stores::postgres::kills",
                "a_full_disk_with_mysql",
                "mysql_alone",
                "mysqld_and_mariadbd",
                "an_example_in_python",
                "the_guide_in_javascript_is_followed",
            ]
        );
    }

    #[test]
    fn an_even_and_an_odd_seed_take_all_tests() {
        let all: std::collections::BTreeSet<_> =
            [taken("1795878610").1, taken("1795878611").1].into_iter().flatten().collect();
        assert_eq!(all.len(), 11);
    }
}

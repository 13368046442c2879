//! The properties over every kept input and over many changed ones, on any toolchain. The changes are others in each
//! run. What they or the fuzzer find is put into `corpus/` and stays true from then on.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use kubewitness_chance::{Dice, repeat_command, seed};
use kubewitness_fuzz::TARGETS;

/// Changed inputs a target. A wrong answer to a common shape shows within the first thousands;
/// what is rarer is left to the fuzzer.
const CHANGED: usize = 150_000;
/// Longer inputs are replayed but not changed: their time goes further with short ones.
const CHANGED_BYTES: usize = 1024;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder().join("corpus").join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    inputs
}

/// The tokens of libFuzzer's dictionary.
fn tokens() -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(folder().join("tokens.dict")).unwrap();
    let lines = text.lines().filter(|line| line.starts_with('"'));
    lines.map(|line| token(line.strip_prefix('"').unwrap().strip_suffix('"').unwrap())).collect()
}

fn token(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'\\', [b'x', digits @ ..]) => {
                let value = u8::from_str_radix(std::str::from_utf8(&digits[..2]).unwrap(), 16).unwrap();
                (value, &digits[2..])
            }
            (b'\\', [escaped, after @ ..]) => (*escaped, after),
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    bytes
}

fn change(input: &mut Vec<u8>, dice: &mut Dice, tokens: &[Vec<u8>], other: &[u8]) {
    let at = dice.index(input.len() + 1);
    let length = dice.index(12).min(input.len() - at);
    match dice.index(7) {
        0 if at < input.len() => input[at] ^= 1 << dice.index(8),
        1 if at < input.len() => input[at] = dice.index(256) as u8,
        2 => drop(input.drain(at..at + length)),
        3 => input.insert(at, b"{}[]\",:\\\n 0n"[dice.index(12)]),
        4 => {
            let piece = input[at..at + length].to_vec();
            let to = dice.index(input.len() + 1);
            input.splice(to..to, piece);
        }
        5 => {
            let from = dice.index(other.len() + 1);
            let piece = &other[from..other.len().min(from + dice.index(60))];
            input.splice(at..at + length, piece.iter().copied());
        }
        _ => {
            input.splice(at..at, tokens[dice.index(tokens.len())].iter().copied());
        }
    }
}

fn holds_for_changed_inputs(target: &str) {
    let check = TARGETS.iter().find(|(name, _)| *name == target).unwrap().1;
    let inputs: Vec<_> = corpus(target).into_iter().map(|(_, input)| input).collect();
    let short: Vec<_> = inputs.into_iter().filter(|input| input.len() <= CHANGED_BYTES).collect();
    let (tokens, mut dice) = (tokens(), Dice::new(seed()));
    for _ in 0..CHANGED {
        let mut input = short[dice.index(short.len())].clone();
        for _ in 0..=dice.index(4) {
            let other = dice.index(short.len());
            change(&mut input, &mut dice, &tokens, &short[other]);
        }
        replay_input(&format!("{:?}", input.escape_ascii().to_string()), || check(&input));
    }
}

/// Runs a property, and says which input it does not hold for.
fn replay_input(input: &str, property: impl FnOnce()) {
    struct ReplayLog<'a>(&'a str);
    impl Drop for ReplayLog<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("{}: the property does not hold for {}", repeat_command(seed()), self.0);
            }
        }
    }
    let _told = ReplayLog(input);
    property();
}

#[test]
fn every_kept_input_holds() {
    for (target, check) in TARGETS {
        for (name, input) in corpus(target) {
            replay_input(&format!("{target}/{name}"), || check(&input));
        }
    }
}

#[test]
fn changed_streams_are_split_as_they_are_at_once() {
    holds_for_changed_inputs("splitter");
}

#[test]
fn changed_objects_are_read_as_by_serde() {
    holds_for_changed_inputs("projection");
}

#[test]
fn what_is_kept_of_a_huge_frame_is_bounded_however_it_comes() {
    let check = kubewitness_fuzz::splitter::check;
    // The greatest limit, which is more than what is kept.
    let mut input = vec![7, 1];
    input.resize(2 + 70_000, b'x');
    input.extend_from_slice(b"\nnext\n");
    check(&input);
}

//! Bounds the length of pages and sentences.

use anyhow::{Result, ensure};

use super::page::{Page, pages};

/// Beyond this many words a tired reader begins again.
const SENTENCE: usize = 30;
/// Pages that have a bound, in lines.
const PAGES: [(&str, usize); 3] = [("README.md", 150), ("README.zh-CN.md", 150), ("ARCHITECTURE.md", 200)];
const GLOSSARY: (&str, usize) = ("docs/glossary.md", 25);

/// Paragraphs, list items and cells, each with the number of its first line. A sentence ends with them.
fn paragraphs(page: &Page) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in page.text() {
        let line = line.trim();
        let is_item = ["- ", "* "].iter().any(|mark| line.starts_with(mark))
            || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if line.is_empty() || line.starts_with('#') {
            goes_on = false;
        } else if line.starts_with('|') {
            paragraphs.extend(line.split('|').map(|cell| (number, cell.to_owned())));
            goes_on = false;
        } else if goes_on && !is_item {
            let last = &mut paragraphs.last_mut().expect("something goes on").1;
            last.push(' ');
            last.push_str(line);
        } else {
            paragraphs.push((number, line.to_owned()));
            goes_on = true;
        }
    }
    paragraphs
}

/// Code in backticks counts as one word. The target of a link counts as none.
fn without_code(text: &str) -> String {
    let plain = text.split('`').enumerate().map(|(place, part)| if place % 2 == 1 { "code" } else { part });
    let plain: String = plain.collect();
    let mut rest = plain.as_str();
    let mut words = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        words.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    words + rest
}

fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    for word in without_code(text).split_whitespace() {
        let last = sentences.last_mut().expect("there is one");
        last.push_str(word);
        last.push(' ');
        if word.trim_end_matches(['*', ')', '"']).ends_with(['.', '!', '?', ':', ';']) {
            sentences.push(String::new());
        }
    }
    sentences
}

#[test]
fn no_sentence_is_longer_than_a_reader_can_hold() -> Result<()> {
    let mut long = Vec::new();
    for page in pages()? {
        for (number, paragraph) in paragraphs(&page) {
            for sentence in sentences(&paragraph) {
                let words =
                    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
                if words > SENTENCE {
                    long.push(format!("{}:{number}: {words} words: {sentence}", page.name()));
                }
            }
        }
    }
    ensure!(long.is_empty(), "{}", long.join("\n"));
    Ok(())
}

#[test]
fn pages_of_one_screen_stay_so() -> Result<()> {
    for (path, most) in PAGES {
        let lines = Page::read(path.as_ref())?.lines.len();
        ensure!(lines <= most, "{path} has {lines} lines, of {most}");
    }
    let (path, most) = GLOSSARY;
    let glossary = Page::read(path.as_ref())?;
    let rows = glossary.lines.iter().filter(|line| line.starts_with("| ")).count();
    // One row is the head of the table.
    ensure!((2..=most + 1).contains(&rows), "{path} has {} words, of {most}", rows - 1);
    Ok(())
}

#[test]
fn both_readmes_have_the_same_commands_and_outputs() -> Result<()> {
    let blocks = |path: &str| -> Result<Vec<_>> {
        let blocks = Page::read(path.as_ref())?.blocks();
        Ok(blocks.into_iter().map(|block| (block.language, block.lines.join("\n"), block.not_run)).collect())
    };
    let (english, chinese) = (blocks("README.md")?, blocks("README.zh-CN.md")?);
    ensure!(english.len() > 2, "README.md has {} blocks", english.len());
    for (own, other) in english.iter().zip(&chinese) {
        ensure!(own == other, "README.md has\n{}\nand README.zh-CN.md has\n{}", own.1, other.1);
    }
    ensure!(english.len() == chinese.len(), "one of them has more blocks than the other");
    Ok(())
}

#[test]
fn a_sentence_ends_at_its_mark_and_code_is_one_word() {
    assert_eq!(
        sentences("One `a b. c` two. [Three](x.md#y) four: five")[..2],
        ["One code two. ", "[Three four: "]
    );
}

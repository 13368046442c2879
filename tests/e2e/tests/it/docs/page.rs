//! A page of the documentation: its lines, and the blocks of commands in it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kubewitness_harness::project_root;

/// Begins the line before a block that a test can't run. The reason follows.
const NOT_RUN: &str = "<!-- not run: ";
/// Generated pages are compared by the command that generates them.
const GENERATED: &str = "docs/reference";

pub struct Page {
    /// From the root of the project.
    pub path: PathBuf,
    pub lines: Vec<String>,
}

/// The lines between two fences.
pub struct Block {
    pub language: String,
    /// The line of its first fence, counted from 1.
    pub line: usize,
    pub lines: Vec<String>,
    /// Why a test can't run it.
    pub not_run: Option<String>,
}

impl Page {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(project_root().join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { path: path.to_path_buf(), lines: text.lines().map(str::to_owned).collect() })
    }

    pub fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// The blocks between fences, in order.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open = false;
        for (index, line) in self.lines.iter().enumerate() {
            match (line.strip_prefix("```"), open) {
                (Some(_), true) => open = false,
                (Some(language), false) => {
                    open = true;
                    let before = index.checked_sub(1).map_or("", |before| self.lines[before].as_str());
                    let reason = before.strip_prefix(NOT_RUN).and_then(|reason| reason.strip_suffix(" -->"));
                    blocks.push(Block {
                        language: language.trim().to_owned(),
                        line: index + 1,
                        lines: Vec::new(),
                        not_run: reason.map(str::to_owned),
                    });
                }
                (None, true) => blocks.last_mut().expect("a block is open").lines.push(line.clone()),
                (None, false) => {}
            }
        }
        blocks
    }

    /// The lines outside of all blocks, with their numbers.
    pub fn text(&self) -> Vec<(usize, &str)> {
        self.outside().filter(|(_, line)| !line.starts_with("<!--")).collect()
    }

    /// The lines that a reader of the page does not see, with their numbers: reasons why a block is not run.
    pub fn remarks(&self) -> Vec<(usize, &str)> {
        self.outside().filter(|(_, line)| line.starts_with("<!--")).collect()
    }

    fn outside(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut open = false;
        self.lines.iter().enumerate().filter_map(move |(index, line)| {
            let is_fence = line.starts_with("```");
            open ^= is_fence;
            (!open && !is_fence).then_some((index + 1, line.as_str()))
        })
    }
}

impl Block {
    pub fn is_console(&self) -> bool {
        self.language == "console"
    }

    /// Returns the commands that a reader types: lines after `$ `. A backslash continues a line.
    pub fn commands(&self) -> Vec<String> {
        let mut commands: Vec<String> = Vec::new();
        let mut goes_on = false;
        for line in &self.lines {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push(command.to_owned()),
                None if goes_on => {
                    let command = commands.last_mut().expect("something goes on");
                    command.push('\n');
                    command.push_str(line);
                }
                None => continue,
            }
            goes_on = line.ends_with('\\');
        }
        commands
    }

    /// The lines that a command prints.
    pub fn output(&self) -> Vec<&str> {
        let mut typed = false;
        let mut output = Vec::new();
        for line in &self.lines {
            let is_typed = typed || line.starts_with("$ ");
            typed = is_typed && line.ends_with('\\');
            if !is_typed {
                output.push(line.as_str());
            }
        }
        output
    }
}

/// Every page that a person wrote.
pub fn pages() -> Result<Vec<Page>> {
    let mut paths = Vec::new();
    find(Path::new(""), false, &mut paths)?;
    find(Path::new("docs"), true, &mut paths)?;
    paths.sort();
    paths.iter().map(|path| Page::read(path)).collect()
}

fn find(folder: &Path, deeper: bool, paths: &mut Vec<PathBuf>) -> Result<()> {
    let place = project_root().join(folder);
    for entry in std::fs::read_dir(&place).with_context(|| format!("reading {}", place.display()))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if deeper && path != Path::new(GENERATED) {
                find(&path, true, paths)?;
            }
        } else if path.extension().is_some_and(|ending| ending == "md") {
            paths.push(path);
        }
    }
    Ok(())
}

#[test]
fn a_block_has_its_commands_its_output_and_its_reason() {
    let text = "a\n<!-- not run: needs a cluster -->\n```console\n$ one \\\n    --two\nout\n$ three\n```\nb";
    let page = Page { path: PathBuf::from("x.md"), lines: text.lines().map(str::to_owned).collect() };
    let [block] = &page.blocks()[..] else { panic!("one block") };
    assert_eq!(block.commands(), ["one \\\n    --two", "three"]);
    assert_eq!((block.output(), block.line), (vec!["out"], 3));
    assert_eq!(block.not_run.as_deref(), Some("needs a cluster"));
    assert_eq!(page.text(), [(1, "a"), (9, "b")]);
    assert_eq!(page.remarks(), [(2, "<!-- not run: needs a cluster -->")]);
}

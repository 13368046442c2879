//! Figures in pages: a value stands between `<!--figure NAME-->` and `<!--/figure-->`, and nobody types it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::catalog::figure_of;
use crate::root;
use crate::store::FigureStore;

const BEGINS: &str = "<!--figure ";
const NAMED: &str = "-->";
const ENDS: &str = "<!--/figure-->";
/// The sign for a figure that was not measured yet. No release has one.
const UNMEASURED: &str = "–";
/// Generated, so it has no marks.
const REFERENCE: &str = "docs/reference";

/// A part of a page.
#[derive(Debug, PartialEq)]
pub enum PagePiece<'p> {
    /// Text that a person wrote.
    Text(&'p str),
    Figure {
        name: &'p str,
        shown: &'p str,
    },
}

/// Splits a page at its marks.
pub fn pieces(page: &str) -> Result<Vec<PagePiece<'_>>> {
    let (mut pieces, mut rest) = (Vec::new(), page);
    while let Some((text, after)) = rest.split_once(BEGINS) {
        let (name, after) = after.split_once(NAMED).context("a mark of a figure has no end")?;
        let (shown, after) = after.split_once(ENDS).with_context(|| format!("`{name}` has no {ENDS}"))?;
        if shown.contains('\n') || shown.contains(BEGINS) {
            bail!("`{name}` has no {ENDS} in its line");
        }
        pieces.push(PagePiece::Text(text));
        pieces.push(PagePiece::Figure { name, shown });
        rest = after;
    }
    if rest.contains(ENDS) {
        bail!("there is a {ENDS} without a beginning");
    }
    pieces.push(PagePiece::Text(rest));
    Ok(pieces)
}

/// The page with the values of the store.
pub fn written(page: &str, store: &FigureStore) -> Result<String> {
    let mut text = String::with_capacity(page.len());
    for piece in pieces(page)? {
        match piece {
            PagePiece::Text(part) => text.push_str(part),
            PagePiece::Figure { name, .. } => {
                let (_, figure) = figure_of(name).with_context(|| format!("no figure is called `{name}`"))?;
                let value =
                    store.value(name).map_or_else(|| UNMEASURED.to_owned(), |value| figure.unit.text(value));
                text.push_str(&format!("{BEGINS}{name}{NAMED}{value}{ENDS}"));
            }
        }
    }
    Ok(text)
}

/// Every page that a person wrote: those of the root, and those of `docs`. A changelog tells what once was.
pub fn paths() -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    find(Path::new(""), false, &mut paths)?;
    find(Path::new("docs"), true, &mut paths)?;
    paths.retain(|path| path != Path::new("CHANGELOG.md"));
    paths.sort();
    Ok(paths)
}

fn find(folder: &Path, is_deep: bool, paths: &mut Vec<PathBuf>) -> Result<()> {
    let place = root().join(folder);
    for entry in std::fs::read_dir(&place).with_context(|| format!("reading {}", place.display()))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if is_deep && path != Path::new(REFERENCE) {
                find(&path, true, paths)?;
            }
        } else if path.extension().is_some_and(|ending| ending == "md") {
            paths.push(path);
        }
    }
    Ok(())
}

/// Writes the values into all pages. Returns those that changed.
pub fn write(store: &FigureStore) -> Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    for path in paths()? {
        let place = root().join(&path);
        let page = std::fs::read_to_string(&place).with_context(|| format!("reading {}", path.display()))?;
        let text = written(&page, store).with_context(|| path.display().to_string())?;
        if text != page {
            std::fs::write(&place, text).with_context(|| format!("writing {}", path.display()))?;
            changed.push(path);
        }
    }
    Ok(changed)
}

/// Lists the figures that each page shows and that were not measured.
pub fn differences(store: &FigureStore) -> Result<Vec<String>> {
    let mut different = Vec::new();
    for path in paths()? {
        let page = std::fs::read_to_string(root().join(&path))
            .with_context(|| format!("reading {}", path.display()))?;
        let text = written(&page, store).with_context(|| path.display().to_string())?;
        let lines =
            page.lines().zip(text.lines()).enumerate().filter(|(_, (shown, measured))| shown != measured);
        for (number, (shown, measured)) in lines {
            different.push(format!(
                "{}:{}:\n  {shown}\nwas measured as\n  {measured}",
                path.display(),
                number + 1
            ));
        }
    }
    Ok(different)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::KeptFigure;

    fn store(name: &str, value: f64) -> FigureStore {
        let mut store = FigureStore::default();
        store.figures.insert(name.into(), KeptFigure { value, run: String::new() });
        store
    }

    #[test]
    fn the_measured_value_stands_between_the_marks_and_nothing_else_changes() {
        let page = "p99 <!--figure latency.p99-->9<!--/figure--> ms\nand more";
        let text = written(page, &store("latency.p99", 1.814)).unwrap();
        assert_eq!(text, "p99 <!--figure latency.p99-->1.81<!--/figure--> ms\nand more");
        assert_eq!(written(&text, &store("latency.p99", 1.814)).unwrap(), text);
    }

    #[test]
    fn a_figure_that_was_not_measured_yet_shows_a_dash() {
        let text = written("<!--figure restart.warm-->1<!--/figure--> ms", &FigureStore::default()).unwrap();
        assert_eq!(text, "<!--figure restart.warm-->–<!--/figure--> ms");
    }

    #[test]
    fn a_mark_without_an_end_and_an_unknown_name_are_refused() {
        let refused = |page: &str| written(page, &store("latency.p99", 1.0)).unwrap_err().to_string();
        assert!(refused("<!--figure latency.p99-->1\n<!--/figure-->").contains("in its line"));
        assert!(refused("<!--figure latency.p99-->1").contains("has no"));
        assert!(refused("1<!--/figure-->").contains("without a beginning"));
        assert!(refused("<!--figure speed-->1<!--/figure-->").contains("no figure is called"));
    }

    #[test]
    fn every_page_shows_what_was_measured() {
        let different = differences(&FigureStore::read().unwrap()).unwrap();
        assert!(different.is_empty(), "`cargo xtask figures --write` writes them:\n{}", different.join("\n"));
    }
}

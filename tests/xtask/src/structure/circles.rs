//! Finds circles in a graph of names: groups in which every name leads to every other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::modules::FileEdges;

/// Folders that use each other, also through files beside them.
#[derive(Debug, PartialEq, Eq)]
pub struct FolderCircle {
    pub folder: PathBuf,
    /// Its folders and files. A folder stands for everything below it.
    pub parts: BTreeSet<String>,
    /// For each step from one part to another, the number of uses and an example.
    pub steps: BTreeMap<(String, String), (usize, (PathBuf, PathBuf))>,
}

/// All circles. Every folder that contains folders is searched.
pub fn of_folders(edges: &FileEdges) -> Vec<FolderCircle> {
    let files = edges.iter().flat_map(|(from, to)| [from, to]);
    let folders: BTreeSet<&Path> = files.flat_map(|file| file.ancestors().skip(1)).collect();
    folders.into_iter().flat_map(|folder| inside(folder, edges)).collect()
}

fn inside(folder: &Path, edges: &FileEdges) -> Vec<FolderCircle> {
    let mut steps: BTreeMap<(String, String), (usize, (PathBuf, PathBuf))> = BTreeMap::new();
    for edge in edges {
        let (Some(from), Some(to)) = (part(folder, &edge.0), part(folder, &edge.1)) else { continue };
        if from != to {
            steps.entry((from, to)).or_insert_with(|| (0, edge.clone())).0 += 1;
        }
    }
    let groups = groups(&steps.keys().cloned().collect());
    // Files of one folder that use each other are read together anyway.
    let has_folder = |parts: &BTreeSet<String>| parts.iter().any(|part| !part.ends_with(".rs"));
    let circle = |parts: BTreeSet<String>| {
        let within = |(from, to): &(String, String)| parts.contains(from) && parts.contains(to);
        let steps = steps.iter().filter(|(step, _)| within(step));
        let steps = steps.map(|(step, example)| (step.clone(), example.clone())).collect();
        FolderCircle { folder: folder.to_path_buf(), parts, steps }
    };
    groups.into_iter().filter(has_folder).map(circle).collect()
}

/// The part of the folder to which a file belongs.
fn part(folder: &Path, file: &Path) -> Option<String> {
    let inner = file.strip_prefix(folder).ok()?;
    Some(inner.components().next()?.as_os_str().to_string_lossy().into_owned())
}

pub fn of_files(edges: &FileEdges) -> Vec<BTreeSet<PathBuf>> {
    groups(edges)
}

/// Groups of two and more in which every one leads to every other.
fn groups<T: Ord + Clone>(edges: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
    let mut next: BTreeMap<&T, Vec<&T>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&T, BTreeSet<&T>> = next.keys().map(|&from| (from, reach(from, &next))).collect();
    let mut groups: Vec<BTreeSet<T>> = Vec::new();
    for (one, theirs) in &reached {
        if theirs.contains(*one) && !groups.iter().any(|group| group.contains(*one)) {
            let back = |other: &&&T| reached.get(**other).is_some_and(|theirs| theirs.contains(*one));
            groups.push(theirs.iter().filter(back).map(|other| (*other).clone()).collect());
        }
    }
    groups
}

fn reach<'a, T: Ord>(from: &'a T, next: &BTreeMap<&'a T, Vec<&'a T>>) -> BTreeSet<&'a T> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        open.extend(next.get(at).into_iter().flatten().filter(|to| reached.insert(**to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(edges: &[(&str, &str)]) -> FileEdges {
        edges.iter().map(|(from, to)| (PathBuf::from(from), PathBuf::from(to))).collect()
    }

    fn circles(list: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let circles = of_folders(&edges(list)).into_iter();
        circles
            .map(|circle| (circle.folder.display().to_string(), circle.parts.into_iter().collect()))
            .collect()
    }

    #[test]
    fn folders_in_one_direction_are_no_circle() {
        assert_eq!(
            circles(&[("s/a/x.rs", "s/b/y.rs"), ("s/b/y.rs", "s/c/z.rs"), ("s/a/x.rs", "s/c/z.rs")]),
            []
        );
    }

    #[test]
    fn folders_are_a_circle_also_through_different_files_and_through_others() {
        assert_eq!(
            circles(&[("s/a/1.rs", "s/b/1.rs"), ("s/b/2.rs", "s/c/deep/1.rs"), ("s/c/2.rs", "s/a/2.rs")]),
            [("s".to_string(), vec!["a".to_string(), "b".to_string(), "c".to_string()])]
        );
    }

    #[test]
    fn a_folder_and_a_file_beside_it_are_a_circle() {
        let down = ("s/a/mod.rs", "s/a/in/x.rs");
        assert_eq!(
            circles(&[down, ("s/a/in/x.rs", "s/a/mod.rs")]),
            [("s/a".to_string(), vec!["in".to_string(), "mod.rs".to_string()])]
        );
        assert_eq!(circles(&[down, ("s/a/in/x.rs", "s/a/words.rs")]), [], "the words are below both");
    }

    #[test]
    fn a_circle_of_files_in_one_folder_is_one_of_files_alone() {
        let list = [("s/a/x.rs", "s/a/y.rs"), ("s/a/y.rs", "s/a/x.rs"), ("s/a/y.rs", "s/a/z.rs")];
        assert_eq!(circles(&list), []);
        assert_eq!(of_files(&edges(&list)), [["s/a/x.rs", "s/a/y.rs"].map(PathBuf::from).into()]);
    }
}

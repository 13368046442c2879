//! Reads the modules of a crate, and finds the file to which each path leads.
//!
//! A re-export is followed to its definition. So a folder's first file may offer what is in the folder
//! without counting as a user of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::syntax::{self, ModuleBody, ModuleImport};

pub struct ModuleTree(Vec<ModuleFile>);

struct ModuleFile {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    body: ModuleBody,
}

type AskedNames = BTreeSet<(usize, String)>;

/// The thing that a name leads to: a module, or an item that a module defines.
#[derive(Clone, Copy)]
enum NamedThing {
    Module(usize),
    Item(usize),
}

/// Which file uses which other.
pub type FileEdges = BTreeSet<(PathBuf, PathBuf)>;

impl ModuleTree {
    /// Reads everything that a crate's `lib.rs` or `main.rs` declares.
    pub fn read(root: &Path) -> Result<Self> {
        let mut modules = Self(Vec::new());
        modules.file(root, None)?;
        Ok(modules)
    }

    fn file(&mut self, file: &Path, parent: Option<usize>) -> Result<usize> {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let body = syntax::read(&text).with_context(|| format!("reading {}", file.display()))?;
        self.add(file, &folder_of(file), parent, body)
    }

    fn add(
        &mut self,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
        mut body: ModuleBody,
    ) -> Result<usize> {
        let id = self.0.len();
        let (files, inline) = (std::mem::take(&mut body.files), std::mem::take(&mut body.inline));
        self.0.push(ModuleFile { file: file.to_path_buf(), parent, children: BTreeMap::new(), body });
        for name in files {
            let (flat, deep) = (folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs"));
            let Some(found) = [flat, deep].into_iter().find(|path| path.is_file()) else {
                bail!("{} declares `mod {name}`, and there is no such file", file.display());
            };
            let child = self.file(&found, Some(id))?;
            self.0[id].children.insert(name, child);
        }
        for (name, body) in inline {
            let child = self.add(file, &folder.join(&name), Some(id), body)?;
            self.0[id].children.insert(name, child);
        }
        Ok(id)
    }

    pub fn edges(&self) -> FileEdges {
        let mut edges = FileEdges::new();
        for (id, module) in self.0.iter().enumerate() {
            let imports = module.body.imports.iter();
            let imported = imports.filter(|import| !self.is_offer(id, import)).map(|import| &import.path);
            for path in imported.chain(&module.body.paths) {
                let to = self.resolve(id, path).map(|to| &self.0[to.module()].file);
                edges.extend(to.filter(|to| **to != module.file).map(|to| (module.file.clone(), to.clone())));
            }
        }
        edges
    }

    /// Whether an import only re-exports what lies below and is not used in its own module.
    fn is_offer(&self, id: usize, import: &ModuleImport) -> bool {
        let is_below = self.resolve(id, &import.path).is_some_and(|to| self.is_below(to.module(), id));
        let is_used = import.name.as_ref().is_some_and(|name| self.0[id].body.names.contains(name));
        import.is_public && is_below && !is_used
    }

    fn is_below(&self, mut id: usize, above: usize) -> bool {
        while let Some(parent) = self.0[id].parent {
            if parent == above {
                return true;
            }
            id = parent;
        }
        false
    }

    /// The place where a path's target is defined; `None` for other crates.
    fn resolve(&self, from: usize, path: &[String]) -> Option<NamedThing> {
        self.follow_path(from, path, &mut BTreeSet::new())
    }

    /// `asked`: the names already looked up, with their modules. Each is looked up once, so that circles of
    /// re-exports end.
    fn follow_path(&self, from: usize, path: &[String], asked: &mut AskedNames) -> Option<NamedThing> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => NamedThing::Module(0),
            "self" => NamedThing::Module(from),
            "super" => NamedThing::Module(self.0[from].parent?),
            name => self.resolve_name(from, name, asked)?,
        };
        rest.iter().try_fold(start, |at, name| match (at, name.as_str()) {
            (NamedThing::Item(_), _) => Some(at),
            (NamedThing::Module(module), "super") => self.0[module].parent.map(NamedThing::Module),
            // An item of another crate counts as the item of the module through which it was named.
            (NamedThing::Module(module), name) => {
                Some(self.resolve_name(module, name, asked).unwrap_or(NamedThing::Item(module)))
            }
        })
    }

    fn resolve_name(&self, at: usize, name: &str, asked: &mut AskedNames) -> Option<NamedThing> {
        let module = &self.0[at];
        if let Some(child) = module.children.get(name) {
            return Some(NamedThing::Module(*child));
        }
        if module.body.items.contains(name) {
            return Some(NamedThing::Item(at));
        }
        if !asked.insert((at, name.to_string())) {
            return None;
        }
        let imports = &module.body.imports;
        if let Some(import) = imports.iter().find(|import| import.name.as_deref() == Some(name)) {
            return self.follow_path(at, &import.path, asked);
        }
        imports.iter().filter(|import| import.name.is_none()).find_map(|glob| {
            match self.follow_path(at, &glob.path, asked)? {
                NamedThing::Module(to) if to != at => self.resolve_name(to, name, asked),
                _ => None,
            }
        })
    }
}

impl NamedThing {
    fn module(self) -> usize {
        match self {
            Self::Module(module) | Self::Item(module) => module,
        }
    }
}

fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().unwrap_or(file).to_path_buf();
    match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") | None => folder,
        Some(stem) => folder.join(stem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The edges of a crate with these files, as `from > to`.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfolder();
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let edges = ModuleTree::read(&folder.join("lib.rs")).unwrap().edges();
        let name = |path: &Path| path.strip_prefix(&folder).unwrap().display().to_string();
        let edges = edges.iter().map(|(from, to)| format!("{} > {}", name(from), name(to))).collect();
        std::fs::remove_dir_all(&folder).unwrap();
        edges
    }

    fn tempfolder() -> PathBuf {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        std::env::temp_dir().join(format!("xtask-structure-{}-{number}", std::process::id()))
    }

    #[test]
    fn a_re_export_leads_to_where_the_thing_is_defined() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::{A, Inner};"),
            (
                "a/mod.rs",
                "mod inner; mod other; pub use inner::Inner; pub(crate) use other::*; pub struct A;",
            ),
            ("a/inner.rs", "pub struct Inner;"),
            ("a/other.rs", "pub fn other() {}"),
            ("b.rs", "use crate::a::{self, Inner}; fn f() { a::other() } use crate::A;"),
        ];
        assert_eq!(
            edges(&files),
            ["b.rs > a/inner.rs", "b.rs > a/mod.rs", "b.rs > a/other.rs"],
            "offering what lies below is no use of it"
        );
    }

    #[test]
    fn a_first_file_that_uses_what_it_re_exports_depends_on_it() {
        let files = [
            ("lib.rs", "mod a; pub use a::A; pub fn f() -> A { todo!() }"),
            ("a.rs", "pub struct A; fn g() { crate::f(); }"),
        ];
        assert_eq!(edges(&files), ["a.rs > lib.rs", "lib.rs > a.rs"]);
    }

    #[test]
    fn other_crates_lead_nowhere_and_circles_of_globs_end() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use tokio::sync::Mutex; pub use crate::b::*; fn f() { crate::b::lost(); }"),
            ("b.rs", "pub use crate::a::*; use serde; use anyhow::Result as R;"),
        ];
        assert_eq!(edges(&files), ["a.rs > b.rs", "b.rs > a.rs"]);
    }

    #[test]
    fn a_module_inside_a_file_belongs_to_the_file() {
        let files = [
            ("lib.rs", "mod a; mod c;"),
            ("a.rs", "pub mod inner { use super::super::c::C; pub struct D; } "),
            ("c.rs", "pub struct C; fn f() { crate::a::inner::D; }"),
        ];
        assert_eq!(edges(&files), ["a.rs > c.rs", "c.rs > a.rs"]);
    }
}

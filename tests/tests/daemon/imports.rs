//! The files of a crate do not import each other in a circle: a file can be read after those that it imports.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, UseTree, Visibility,
    visit::{self, Visit},
};

/// Maximum number of re-exports through which a name is followed: an import that names itself (`use log::log`) has no end.
const REEXPORTS: usize = 8;

/// Names of a path, from the root of its crate.
type Names = Vec<String>;

/// Arrows between modules that are files.
type Graph = BTreeMap<Names, BTreeSet<Names>>;

/// State of a walk through the modules of a library or a program.
#[derive(Default)]
struct Modules {
    /// Module that owns the file of each module: itself, or the file's module for one in braces.
    files: BTreeMap<Names, Names>,
    /// Path that a name is imported from, by the module that imports it.
    imports: BTreeMap<(Names, String), Names>,
    /// Path named in a module.
    named: Vec<(Names, Names)>,
    /// Module that is walked.
    at: Names,
    /// Folder of the modules without braces in `at`.
    folder: PathBuf,
}

impl Modules {
    /// Reads the modules below a root, such as src/lib.rs.
    fn of(root: &Path) -> Modules {
        let mut modules = Modules {
            folder: root.parent().unwrap().to_owned(),
            ..Modules::default()
        };
        modules.read(root);
        modules
    }

    fn read(&mut self, file: &Path) {
        let source = fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&source).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.files.insert(self.at.clone(), self.at.clone());
        self.visit_file(&parsed);
    }

    /// Returns a path of the present module from the crate's root, if it begins with a keyword.
    fn absolute(&self, path: &[String]) -> Option<Names> {
        let (first, mut rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Names::new(),
            "self" => self.at.clone(),
            "super" => parent(&self.at),
            _ => return None,
        };
        while let Some((_, behind)) = rest.split_first().filter(|(name, _)| *name == "super") {
            (base, rest) = (parent(&base), behind);
        }
        Some([base, rest.to_vec()].concat())
    }

    fn name(&mut self, path: &[String]) {
        if path.len() > 1
            && let Some(path) = self.absolute(path)
        {
            self.named.push((self.at.clone(), path));
        }
    }

    fn import(&mut self, tree: &UseTree, mut path: Names) {
        let known_as = match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                return self.import(&tree.tree, path);
            }
            UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|tree| self.import(tree, path.clone()));
            }
            UseTree::Glob(_) => return self.name(&path),
            UseTree::Name(name) if name.ident == "self" => path.last().unwrap().clone(),
            UseTree::Name(name) => {
                path.push(name.ident.to_string());
                name.ident.to_string()
            }
            UseTree::Rename(name) => {
                path.push(name.ident.to_string());
                name.rename.to_string()
            }
        };
        self.name(&path);
        // Without a keyword it may begin with a module below this one.
        let path = self
            .absolute(&path)
            .unwrap_or_else(|| [self.at.clone(), path].concat());
        self.imports.insert((self.at.clone(), known_as), path);
    }

    /// Names the paths in a macro, which is no syntax of Rust: keyword, `::`, name, and so on.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(sign) if sign.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Ident(name) if colons == 2 => {
                    path.push(name.to_string());
                    colons = 0;
                }
                token => {
                    self.name(&path);
                    (path, colons) = (Names::new(), 0);
                    match token {
                        TokenTree::Ident(name) => path.push(name.to_string()),
                        TokenTree::Group(group) => self.scan(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.name(&path);
    }

    /// Adds the modules that a path from the root leads to: the longest module in it and, through re-exports, that of the
    /// definition.
    fn resolve(&self, path: &[String], reexports: usize, found: &mut BTreeSet<Names>) {
        let is_module = |length: &usize| self.files.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module).unwrap_or(0);
        let (module, rest) = path.split_at(length);
        found.extend(self.files.get(module).cloned());
        if let Some((name, behind)) = rest.split_first()
            && let Some(from) = self.imports.get(&(module.to_vec(), name.clone()))
            && reexports > 0
        {
            self.resolve(&[from, behind].concat(), reexports - 1, found);
        }
    }

    /// Returns the arrows between files. One to a module around the file or within it does not count.
    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (from, path) in &self.named {
            let from = &self.files[from];
            let mut found = BTreeSet::new();
            self.resolve(path, REEXPORTS, &mut found);
            found.retain(|to| !to.starts_with(from) && !from.starts_with(to));
            graph.entry(from.clone()).or_default().append(&mut found);
        }
        graph
    }
}

impl Visit<'_> for Modules {
    fn visit_item(&mut self, item: &Item) {
        if !attributes(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            _ => &[],
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &ItemMod) {
        let name = module.ident.to_string();
        let (file, folder) = (self.files[&self.at].clone(), self.folder.join(&name));
        let outer = std::mem::replace(&mut self.folder, folder.clone());
        self.at.push(name);
        if module.content.is_some() {
            self.files.insert(self.at.clone(), file);
            visit::visit_item_mod(self, module);
        } else if !module.attrs.iter().any(|a| a.path().is_ident("path")) {
            let files = [folder.with_extension("rs"), folder.join("mod.rs")];
            let file = files.iter().find(|file| file.is_file());
            self.read(file.unwrap_or_else(|| panic!("{} has no file", folder.display())));
        }
        self.at.pop();
        self.folder = outer;
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        self.import(&item.tree, Names::new());
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        self.name(&names.collect::<Names>());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &Macro) {
        visit::visit_macro(self, called);
        self.scan(called.tokens.clone());
    }

    /// Ignores `pub(super)`: it names a module, and imports nothing of it.
    fn visit_visibility(&mut self, _: &Visibility) {}
}

fn parent(module: &[String]) -> Names {
    module[..module.len().saturating_sub(1)].to_vec()
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list)
        if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

/// Returns the modules that can be reached from one, by one arrow at least.
fn reached<'a>(graph: &'a Graph, from: &Names) -> BTreeSet<&'a Names> {
    let mut reached = BTreeSet::new();
    let mut ahead: Vec<&Names> = graph.get(from).into_iter().flatten().collect();
    while let Some(module) = ahead.pop() {
        if reached.insert(module) {
            ahead.extend(graph.get(module).into_iter().flatten());
        }
    }
    reached
}

/// Returns the circles of a graph: sets of modules that all reach each other.
fn circles(graph: &Graph) -> BTreeSet<BTreeSet<&Names>> {
    let reached: BTreeMap<&Names, BTreeSet<&Names>> = graph.keys().map(|m| (m, reached(graph, m))).collect();
    let mut circles = BTreeSet::new();
    for (module, there) in &reached {
        let mut circle = there.clone();
        circle.retain(|other| reached.get(other).is_some_and(|back| back.contains(module)));
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    circles
}

/// Returns a line for each file of each circle in a library or program, with the files of the circle that it imports.
fn complaints(root: &Path) -> Vec<String> {
    let graph = Modules::of(root).graph();
    let file = |module: &Names| {
        let path = root.with_file_name(module.join("/"));
        let own = path.with_extension("rs");
        let file = if own.is_file() { own } else { path.join("mod.rs") };
        file.strip_prefix(root.parent().unwrap())
            .unwrap()
            .display()
            .to_string()
    };
    let mut lines = Vec::new();
    for circle in circles(&graph) {
        lines.push(format!("{}: a circle of {} files", root.display(), circle.len()));
        for &module in &circle {
            let within = graph[module].iter().filter(|to| circle.contains(to));
            let imports: Vec<String> = within.map(file).collect();
            lines.push(format!("    {} imports {}", file(module), imports.join(", ")));
        }
    }
    lines
}

/// Returns the roots of the library and the programs in a folder src.
fn roots(src: &Path) -> Vec<PathBuf> {
    let bins = fs::read_dir(src.join("bin")).into_iter().flatten();
    let bins = bins
        .map(|entry| entry.unwrap().path())
        .map(|path| match path.is_dir() {
            true => path.join("main.rs"),
            false => path,
        });
    let mut roots: Vec<PathBuf> = bins
        .chain(["lib.rs", "main.rs"].map(|name| src.join(name)))
        .collect();
    roots.retain(|root| root.is_file());
    roots
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = fs::read_dir(workspace.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    let sources: Vec<PathBuf> = crates
        .chain(["bench", "tests"].map(|name| workspace.join(name)))
        .flat_map(|path| roots(&path.join("src")))
        .collect();
    assert!(sources.len() > 4, "{sources:?}");
    let found: Vec<String> = sources.iter().flat_map(|root| complaints(root)).collect();
    assert!(found.is_empty(), "circles of imports:\n{}", found.join("\n"));
}

/// Writes the files of a library, and returns the circles that are found in it.
fn circles_in(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    for (name, source) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, source).unwrap();
    }
    let graph = Modules::of(&folder.path().join("lib.rs")).graph();
    let named = |circle: BTreeSet<&Names>| circle.into_iter().map(|m| m.join("/")).collect();
    circles(&graph).into_iter().map(named).collect()
}

#[test]
fn a_circle_is_found_however_its_files_are_named() {
    let lib = ("lib.rs", "mod a; mod b; mod c; mod d; pub use c::deep::Third;");
    let second = (
        "b.rs",
        "pub struct Second; pub fn f() { println!(\"{}\", super::c::deep::third()) }",
    );
    let third = |import| ("c/deep.rs", import);
    let found = |first, back| {
        circles_in(&[
            lib,
            ("a.rs", first),
            second,
            ("c/mod.rs", "pub mod deep;"),
            third(back),
            ("d.rs", "use crate::{a, b, c};"),
        ])
    };
    let whole = vec![vec!["a".to_owned(), "b".to_owned(), "c/deep".to_owned()]];
    let to_second = "use crate::b::{self, Second};";
    for back in [
        "use crate::a::First;",
        "use super::super::a;",
        "fn f() -> crate::a::First { loop {} }",
        "macro_rules! first { () => { $crate::a::First } }",
        "mod inner { use super::super::super::a::First; }",
    ] {
        assert_eq!(found(to_second, back), whole, "{back}");
    }
    for none in [
        "",
        "use super::*;",
        "pub(in crate::c) struct Third;",
        "#[cfg(test)] mod tests { use crate::a::First; }",
        "#[cfg(test)] use crate::a::First;",
        "// use crate::a::First;",
    ] {
        assert_eq!(found(to_second, none), Vec::<Vec<String>>::new(), "{none}");
    }
    // What the root of the crate exports on is its definition's.
    let pair = vec![vec!["a".to_owned(), "c/deep".to_owned()]];
    assert_eq!(found("use crate::Third;", "use crate::a;"), pair);
}

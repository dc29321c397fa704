//! Finds the uses between the modules of a crate: parses `use` and paths.
//!
//! Module A uses module B if A names an item that B defines, by any path.

use std::collections::BTreeMap;

use super::source::Module;
use super::words::is_name;

/// The names on the path of a module, from the root of its crate.
pub type ModulePath = Vec<String>;

/// The modules of a crate.
pub struct Crate {
    /// The modules by their paths.
    pub modules: BTreeMap<ModulePath, Module>,
    /// The names that a module imports by `use`, with their paths.
    imports: BTreeMap<(ModulePath, String), ModulePath>,
}

/// A use of a module by another module.
pub struct Use {
    /// The module that contains the use.
    pub from: ModulePath,
    /// The path as written, from the root of the crate.
    pub path: ModulePath,
    /// The module that defines the item.
    pub to: ModulePath,
    /// The item's name in that module; empty if the module itself is used.
    pub item: String,
    /// Whether the use is a re-export by `pub use`.
    pub public: bool,
}

impl Crate {
    /// Returns the crate that consists of these modules.
    pub fn of(modules: Vec<Module>) -> Self {
        let mut this = Self { modules: BTreeMap::new(), imports: BTreeMap::new() };
        for mut module in modules {
            // Two modules with the same path are for different platforms, and count as one module.
            let earlier = this.modules.remove(&module.path);
            module.words.extend(earlier.into_iter().flat_map(|earlier| earlier.words));
            this.modules.insert(module.path.clone(), module);
        }
        for module in this.modules.values() {
            for import in imports(&module.words) {
                if let Some(path) = this.absolute(&module.path, &import.path) {
                    this.imports.insert((module.path.clone(), import.name), path);
                }
            }
        }
        this
    }

    /// Returns the path from the root of the crate, or `None` if the path leads out of the crate. Ignores
    /// imports.
    fn absolute(&self, from: &[String], path: &[String]) -> Option<ModulePath> {
        let mut base = from.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
            child => {
                base.push(child.into());
                let is_child = self.modules.contains_key(&base);
                base.pop();
                if !is_child {
                    return None;
                }
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// Returns the module that defines the item at this path, and the item's name there; `None` if the path
    /// is a module.
    fn definition(&self, path: &[String]) -> Option<(ModulePath, String)> {
        let mut path = path.to_vec();
        // No reasonable path passes 16 imports.
        for _ in 0..16 {
            let len = (0..=path.len()).rev().find(|&len| self.modules.contains_key(&path[..len]))?;
            let item = path.get(len)?;
            match self.imports.get(&(path[..len].to_vec(), item.clone())) {
                Some(import) if *import != path => {
                    path = import.iter().chain(&path[len + 1..]).cloned().collect();
                }
                _ => return Some((path[..len].to_vec(), item.clone())),
            }
        }
        None
    }

    /// Returns all uses, each as often as it is written. Uses of a module's own items are left out.
    pub fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for module in self.modules.values() {
            let inner = inner_paths(&module.words).into_iter().map(|path| (path, false));
            let imported = imports(&module.words).into_iter().map(|import| (import.path, import.public));
            for (path, public) in inner.chain(imported) {
                let Some(path) = self.resolved(&module.path, &path) else { continue };
                let (to, item) = self.definition(&path).unwrap_or_else(|| (path.clone(), String::new()));
                if to != module.path {
                    uses.push(Use { from: module.path.clone(), path, to, item, public });
                }
            }
        }
        uses
    }

    /// Returns the types of the inherent `impl` blocks, each with the module of the block and the path of the
    /// type.
    pub fn inherent_impls(&self) -> Vec<Use> {
        let mut found = Vec::new();
        for module in self.modules.values() {
            for path in impls(&module.words) {
                let Some(path) = self.resolved(&module.path, &path) else { continue };
                if let Some((to, item)) = self.definition(&path) {
                    found.push(Use { from: module.path.clone(), path, to, item, public: false });
                }
            }
        }
        found
    }

    /// Returns the path from the root of the crate, or `None` if the path leads out of the crate. The first
    /// name may be an import.
    fn resolved(&self, from: &[String], path: &[String]) -> Option<ModulePath> {
        match self.imports.get(&(from.to_vec(), path.first()?.clone())) {
            Some(import) => Some(import.iter().chain(&path[1..]).cloned().collect()),
            None => self.absolute(from, path),
        }
    }
}

/// A name that a `use` brings into its module.
#[derive(Debug, PartialEq)]
struct Import {
    name: String,
    path: ModulePath,
    public: bool,
}

/// Returns all imports of a module.
fn imports(words: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    for at in (0..words.len()).filter(|&at| is_import(words, at)) {
        let public = at > 0 && (words[at - 1] == "pub" || words[at - 1] == ")");
        branches(&words[at + 1..], Vec::new(), public, &mut found);
    }
    found
}

/// Whether an import begins at `at`, and not the `use<'_>` of a return type.
fn is_import(words: &[String], at: usize) -> bool {
    words[at] == "use" && words.get(at + 1).is_some_and(|word| word != "<")
}

/// Reads a tree of paths that follows `prefix`. Adds its paths to `found`, and returns the number of its
/// words.
fn branches(words: &[String], prefix: ModulePath, public: bool, found: &mut Vec<Import>) -> usize {
    let mut path = prefix;
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match word.as_str() {
            "{" => {
                at += 1;
                while words.get(at).is_some_and(|word| word != "}") {
                    at += match words[at].as_str() {
                        "," => 1,
                        _ => branches(&words[at..], path.clone(), public, found).max(1),
                    };
                }
                return at + 1;
            }
            "::" => {}
            "self" if !path.is_empty() => {}
            ";" | "," | "}" => break,
            "as" => {
                found.push(Import { name: words[at + 1].clone(), path, public });
                return at + 2;
            }
            name => path.push(name.into()),
        }
        at += 1;
    }
    if let Some(name) = path.last() {
        found.push(Import { name: name.clone(), path, public });
    }
    at
}

/// Returns the paths that have at least two names and are not in a `use`.
fn inner_paths(words: &[String]) -> Vec<ModulePath> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < words.len() {
        if is_import(words, at) {
            at += branches(&words[at + 1..], Vec::new(), false, &mut Vec::new());
        }
        let mut path = vec![words[at].clone()];
        while words.get(at + 1).is_some_and(|word| word == "::")
            && words.get(at + 2).is_some_and(|word| is_name(word))
        {
            path.push(words[at + 2].clone());
            at += 2;
        }
        if path.len() > 1 {
            found.push(path);
        }
        at += 1;
    }
    found
}

/// Returns the types of the blocks `impl Type { .. }`, without those of `impl Trait for Type`.
fn impls(words: &[String]) -> Vec<ModulePath> {
    let mut found = Vec::new();
    for start in (0..words.len()).filter(|&at| words[at] == "impl") {
        // A block `impl` follows one of these words; `impl Trait` in a signature or in a type does not.
        let before = start.checked_sub(1).map_or("", |before| words[before].as_str());
        if !["", "}", ";", "]", "unsafe"].contains(&before) {
            continue;
        }
        let mut at = start + 1;
        if words.get(at).is_some_and(|word| word == "<") {
            at += generics(&words[at..]);
        }
        let head = words[at..].iter().take_while(|word| *word != "{" && *word != "where");
        if head.clone().any(|word| word == "for") {
            continue;
        }
        found.push(head.take_while(|word| *word != "<").filter(|word| *word != "::").cloned().collect());
    }
    found
}

/// Returns the number of words of the `<..>` at the front.
fn generics(words: &[String]) -> usize {
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate() {
        match word.as_str() {
            "<" => depth += 1,
            ">" if words[at - 1] != "-" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    words.len()
}

#[test]
fn inherent_impls_are_found() {
    let text = "fn f() -> impl A { g } impl B { fn h(x: impl I) {} } #[c] impl<T: Fn() -> U> super::d::E<T> {} \
        impl F for G {} unsafe impl<T> H for J<T> {}";
    assert_eq!(impls(&super::words::words(text)), [vec!["B"], vec!["super", "d", "E"]]);
}

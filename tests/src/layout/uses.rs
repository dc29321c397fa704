//! The uses between the modules of a crate: parses `use` and paths.
//!
//! Module A uses module B if A names an item that is defined in B, by any path.

use std::collections::BTreeMap;

use super::source::Module;
use super::words::is_name;

/// The names on the way to a module, from the root of its crate.
pub type ModulePath = Vec<String>;

/// The modules of a crate, by path.
pub struct Crate {
    /// The modules by their paths.
    pub modules: BTreeMap<ModulePath, Module>,
    /// The names that a module imports by `use`, with their paths.
    imports: BTreeMap<(ModulePath, String), ModulePath>,
}

/// `A uses B: C`.
pub struct Use {
    /// The using module.
    pub from: ModulePath,
    /// The written path, from the root of the crate.
    pub path: ModulePath,
    /// The module that defines the item.
    pub to: ModulePath,
    /// Its name there; empty for the module itself.
    pub item: String,
    /// True for a re-export by `pub use`.
    pub public: bool,
}

impl Crate {
    /// The crate of these modules.
    pub fn of(modules: Vec<Module>) -> Self {
        let mut this = Self { modules: BTreeMap::new(), imports: BTreeMap::new() };
        for mut module in modules {
            // Two modules of one name are for different platforms.
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

    /// A path from the root of the crate, if it leads into the crate, ignoring imports.
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

    /// The module that defines the item at this path, and the item's name there; none for a module.
    fn definition(&self, path: &[String]) -> Option<(ModulePath, String)> {
        let mut path = path.to_vec();
        // No sensible path passes as many imports.
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

    /// All uses, each as often as it is written, except uses of a module's own items.
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

    /// The types of the inherent `impl` blocks, each with its module and the path of the type.
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

    /// A path from the root of the crate, if it leads into the crate. The first name may be an import.
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

/// All imports of a file.
fn imports(words: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    for at in (0..words.len()).filter(|&at| is_import(words, at)) {
        let public = at > 0 && (words[at - 1] == "pub" || words[at - 1] == ")");
        branches(&words[at + 1..], Vec::new(), public, &mut found);
    }
    found
}

/// Whether an import begins here, not `use<'_>` of a return type.
fn is_import(words: &[String], at: usize) -> bool {
    words[at] == "use" && words.get(at + 1).is_some_and(|word| word != "<")
}

/// Reads a tree of paths behind `prefix`; returns how many words it has.
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

/// The paths of several names that are not in a `use`.
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

/// The types of the blocks `impl Type { .. }`, not those of `impl Trait for Type`.
fn impls(words: &[String]) -> Vec<ModulePath> {
    let mut found = Vec::new();
    for start in (0..words.len()).filter(|&at| words[at] == "impl") {
        // `impl Trait` in a signature or in a type begins behind one of these.
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

/// Words of the `<..>` at the front.
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

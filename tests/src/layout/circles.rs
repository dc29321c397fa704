//! No circles: file modules of a crate use each other in one direction only.
//!
//! Module A uses module B if A names something that is defined in B, by whatever path. A parent that only
//! hands on the items of its children (`pub use`) does not use them.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Module, modules};

/// The crates that have no circle, by their root files.
const CRATES: [&str; 3] = ["dp/src/lib.rs", "benches/src/lib.rs", "benches/measure/src/main.rs"];

type ModulePath = Vec<String>;

/// The modules of a crate, by path.
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
    /// The names that a module has by `use`, with the paths that they stand for.
    imports: BTreeMap<(ModulePath, String), ModulePath>,
}

/// `A uses B: C`.
struct Use {
    from: ModulePath,
    to: ModulePath,
    item: String,
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let mut bad = Vec::new();
    for root in CRATES {
        let circles = Crate::of(modules(root)).circles();
        bad.extend(circles.into_iter().map(|circle| format!("{root}:\n{circle}")));
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

impl Crate {
    fn of(modules: Vec<Module>) -> Self {
        let modules: BTreeMap<_, _> =
            modules.into_iter().map(|module| (module.path.clone(), module)).collect();
        let mut this = Self { modules, imports: BTreeMap::new() };
        for module in this.modules.values() {
            for import in imports(&module.words) {
                if let Some(path) = this.absolute(&module.path, &import.path) {
                    this.imports.insert((module.path.clone(), import.name), path);
                }
            }
        }
        this
    }

    /// A path from the root of the crate, if it leads into the crate. Without regard to imports.
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

    /// The module where the thing at this path is defined, and its name there; none for a module.
    fn definition(&self, path: &[String]) -> Option<(ModulePath, String)> {
        let mut path = path.to_vec();
        // As many imports on the way as no sane path has.
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

    fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for module in self.modules.values() {
            let mut paths = inner_paths(&module.words);
            paths.extend(imports(&module.words).into_iter().filter(|import| !import.public).map(|i| i.path));
            for path in paths {
                let first = (module.path.clone(), path[0].clone());
                let absolute = match self.imports.get(&first) {
                    Some(import) => Some(import.iter().chain(&path[1..]).cloned().collect()),
                    None => self.absolute(&module.path, &path),
                };
                if let Some((to, item)) = absolute.and_then(|path| self.definition(&path))
                    && to != module.path
                {
                    uses.push(Use { from: module.path.clone(), to, item });
                }
            }
        }
        uses
    }

    /// The circles, each with the uses that it consists of.
    fn circles(&self) -> Vec<String> {
        let uses = self.uses();
        let mut direct = BTreeMap::<&ModulePath, BTreeSet<&ModulePath>>::new();
        for each in &uses {
            direct.entry(&each.from).or_default().insert(&each.to);
        }
        let reached: BTreeMap<&ModulePath, _> =
            self.modules.keys().map(|from| (from, reached(&direct, from))).collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for (module, below) in reached.iter().filter(|(module, below)| below.contains(**module)) {
            if !seen.insert(*module) {
                continue;
            }
            let circle: BTreeSet<&ModulePath> =
                below.iter().copied().filter(|other| reached[other].contains(module)).collect();
            seen.extend(&circle);
            let mut lines = BTreeMap::<_, BTreeSet<_>>::new();
            for each in uses.iter().filter(|each| circle.contains(&each.from) && circle.contains(&each.to)) {
                lines.entry((each.from.join("::"), each.to.join("::"))).or_default().insert(&*each.item);
            }
            let lines = lines.into_iter().map(|((from, to), items)| {
                let items: Vec<_> = items.into_iter().collect();
                format!("    {from} uses {to}: {}", items.join(", "))
            });
            circles.push(lines.collect::<Vec<_>>().join("\n"));
        }
        circles
    }
}

/// The modules that `from` uses, directly or by others.
fn reached<'a>(
    direct: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
    from: &'a ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        let new = direct.get(module).into_iter().flatten().filter(|to| reached.insert(**to));
        next.extend(new);
    }
    reached
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
            && words
                .get(at + 2)
                .is_some_and(|word| word.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
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

#[test]
fn a_circle_is_found_however_it_is_written() {
    let module = |path: &str, text: &str| Module {
        path: path.split("::").filter(|name| !name.is_empty()).map(String::from).collect(),
        file: path.into(),
        words: super::paths::tokens(text),
    };
    for (a, b, circle) in [
        ("use crate::b::B;", "use super::a::A;", true),
        ("use crate::{b::{B, C}, c::D};", "fn f() { crate::a::g() }", true),
        ("use super::b; fn f() { b::g() }", "use crate::A;", true),
        ("use super::b; fn f() { b::g() }", "use super::a as other; fn f() { other::g() }", true),
        ("use crate::b::B;", "struct B;", false),
        ("use crate::b::B;", "use super::c::C;", false),
        ("pub use crate::b::B;", "use crate::A;", false),
        ("use super::b::B;", "use super::Root;", false),
    ] {
        let root = module("", "mod a; mod b; mod c; pub use a::A; struct Root;");
        let parts = Crate::of(vec![root, module("a", a), module("b", b), module("c", "")]);
        assert_eq!(!parts.circles().is_empty(), circle, "{a} and {b}");
    }
    let parent = module("p", "mod child; use child::Child; struct Parent;");
    let child = module("p::child", "use super::Parent; struct Child;");
    assert_eq!(Crate::of(vec![module("", "mod p;"), parent, child]).circles().len(), 1);
}

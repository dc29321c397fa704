//! The modules of a crate, each with its file and the words in its source.
//!
//! This is not a parser of Rust: it recognises only items, braces and attributes in the format of rustfmt.

use std::fs;
use std::path::{Path, PathBuf};

use super::words::words;

/// A module: a file, or a module inside a file.
#[derive(Debug)]
pub struct Module {
    /// The path of the module in its crate; empty for the root.
    pub path: Vec<String>,
    /// The path of the module that the file contains: the same path, or the path of an outer module.
    pub of_file: Vec<String>,
    /// The path of the file, relative to the root of the repository.
    pub file: PathBuf,
    /// Names, `::` and single other characters of the module, without the words of its inner modules.
    pub words: Vec<String>,
}

/// Whether test-only code counts as part of the modules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tests {
    /// Test-only code is kept.
    Kept,
    /// Test-only code is left out.
    LeftOut,
}

/// Returns all modules of a crate. `root` is the path of the crate's root file, relative to the root of the
/// repository.
pub fn modules(root: &str, tests: Tests) -> Vec<Module> {
    modules_in(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), root, tests)
}

/// Returns all modules of a crate in the checkout at `checkout`. `root` is relative to the root of this
/// checkout.
pub fn modules_in(checkout: &Path, root: &str, tests: Tests) -> Vec<Module> {
    let mut modules = Vec::new();
    read(checkout, Vec::new(), Path::new(root), tests, &mut modules);
    modules
}

fn read(checkout: &Path, path: Vec<String>, file: &Path, tests: Tests, modules: &mut Vec<Module>) {
    let text =
        fs::read_to_string(checkout.join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let is_folder = path.is_empty() || file.ends_with("mod.rs");
    let folder = if is_folder { file.parent().expect("a folder").into() } else { file.with_extension("") };
    for module in split(&path, file, &text, tests) {
        let inside = &module.path[path.len()..];
        let folder = inside.iter().fold(folder.clone(), |folder, name| folder.join(name));
        let children: Vec<String> = declared(&module.words).map(String::from).collect();
        let base = module.path.clone();
        modules.push(module);
        for child in children {
            let beside = folder.join(&child).with_extension("rs");
            let below = folder.join(&child).join("mod.rs");
            let file = if checkout.join(&beside).is_file() { beside } else { below };
            read(checkout, base.iter().cloned().chain([child]).collect(), &file, tests, modules);
        }
    }
}

/// Returns the module of a file, and its inner modules.
pub fn split(path: &[String], file: &Path, text: &str, tests: Tests) -> Vec<Module> {
    let mut words = words(text);
    if tests == Tests::LeftOut {
        words = without_tests(&words);
    }
    let mut found = Vec::new();
    let mut open = vec![(path.to_vec(), Vec::<String>::new())];
    // The depth of braces inside each open module.
    let mut depths = vec![0_usize];
    let mut at = 0;
    while at < words.len() {
        let word = &words[at];
        let next = |ahead: usize| words.get(at + ahead).map_or("", String::as_str);
        if word == "mod" && next(2) == "{" {
            let inside = open.last().expect("the file").0.iter().cloned().chain([next(1).into()]).collect();
            open.push((inside, Vec::new()));
            depths.push(0);
            at += 3;
            continue;
        }
        let depth = depths.last_mut().expect("the file");
        match word.as_str() {
            "{" => *depth += 1,
            "}" if *depth == 0 && open.len() > 1 => {
                depths.pop();
                found.extend(open.pop());
                at += 1;
                continue;
            }
            "}" => *depth = depth.saturating_sub(1),
            _ => {}
        }
        open.last_mut().expect("the file").1.push(word.clone());
        at += 1;
    }
    found.extend(open.into_iter().rev());
    let module = |(inside, words)| Module { path: inside, of_file: path.to_vec(), file: file.into(), words };
    found.into_iter().rev().map(module).collect()
}

/// Returns the names of the declared modules that are in other files of the crate. A module with a `path`
/// attribute belongs to another crate.
fn declared(words: &[String]) -> impl Iterator<Item = &str> {
    let ends = |word: &String| [";", "{", "}"].contains(&word.as_str());
    let mods = (2..words.len()).filter(|&at| words[at - 2] == "mod" && words[at] == ";");
    mods.filter(move |&at| {
        let begin = words[..at].iter().rposition(ends).map_or(0, |end| end + 1);
        !words[begin..at].windows(2).any(|pair| pair[0] == "path" && pair[1] == "=")
    })
    .map(|at| words[at - 1].as_str())
}

/// Returns the words without the items that have an attribute with `cfg` and `test`, but not with `not`.
fn without_tests(words: &[String]) -> Vec<String> {
    let mut left = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let attribute = attribute_len(&words[at..]);
        let has = |word: &str| words[at..at + attribute].iter().any(|other| other == word);
        if has("cfg") && has("test") && !has("not") {
            at += attribute;
            at += item_len(&words[at..]);
        } else {
            let end = at + attribute.max(1);
            left.extend_from_slice(&words[at..end]);
            at = end;
        }
    }
    left
}

/// Returns the number of words of the attribute at the front; 0 if there is no attribute.
fn attribute_len(words: &[String]) -> usize {
    match words {
        [hash, open, ..] if hash == "#" && open == "[" => {
            words.iter().position(|word| word == "]").map_or(words.len(), |end| end + 1)
        }
        _ => 0,
    }
}

/// Returns the number of words of the item at the front, from its attributes to its semicolon, its comma or
/// its closing brace.
fn item_len(words: &[String]) -> usize {
    let mut at = 0;
    while attribute_len(&words[at..]) > 0 {
        at += attribute_len(&words[at..]);
    }
    let is_use = words[at..].iter().take_while(|word| *word != "{" && *word != ";").any(|word| word == "use");
    let mut depth = 0_usize;
    for (offset, word) in words[at..].iter().enumerate() {
        match word.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && word == "}" && !is_use {
                    return at + offset + 1;
                }
            }
            ";" | "," if depth == 0 => return at + offset + 1,
            _ => {}
        }
    }
    words.len()
}

#[test]
fn items_for_tests_are_left_out() {
    let text = "#[cfg(test)]\nmod tests;\nuse a::B;\n#[cfg(test)]\nuse c::{D, E};\nmod f;\n\
        #[cfg(test)]\n#[path = \"x\"]\nmod g { struct H; }\nstruct I { #[cfg(test)] j: u8, k: u8 }";
    let left = without_tests(&words(text)).join(" ");
    assert_eq!(left, "use a :: B ; mod f ; struct I { k : u8 }");
}

#[test]
fn modules_inside_of_a_file_are_modules() {
    let text = "mod a; fn b() { { c } } mod d { mod e { f } mod g; h {} } i";
    let found = split(&["p".into()], Path::new("p.rs"), text, Tests::Kept);
    let found: Vec<_> =
        found.iter().map(|it| format!("{}: {}", it.path.join("::"), it.words.join(" "))).collect();
    assert_eq!(found, ["p: mod a ; fn b ( ) { { c } } i", "p::d: mod g ; h { }", "p::d::e: f"]);
    let text = words("mod a; #[path = \"x\"] #[allow(e)] mod b; pub mod c;");
    assert_eq!(declared(&text).collect::<Vec<_>>(), ["a", "c"]);
}

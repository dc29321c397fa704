//! The modules of a package, each with its file and its words. Code for tests only is left out.
//!
//! Not a parser of Rust: it knows items, braces and attributes, as rustfmt leaves them.

use std::fs;
use std::path::{Path, PathBuf};

use super::paths;

/// A module that is a file.
pub(super) struct Module {
    /// Its path in its crate; empty for the root.
    pub(super) path: Vec<String>,
    /// Its file, from the root of the repository.
    pub(super) file: PathBuf,
    /// Names, `::`, and single other characters.
    pub(super) words: Vec<String>,
}

/// All modules of a crate, from its root file; its path begins at the root of the repository.
pub(super) fn modules(root: &str) -> Vec<Module> {
    let mut modules = Vec::new();
    read(Vec::new(), Path::new(root), &mut modules);
    modules
}

fn read(path: Vec<String>, file: &Path, modules: &mut Vec<Module>) {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = fs::read_to_string(repository.join(file)).expect("a source file");
    let words = without_tests(&paths::tokens(&text));
    let is_folder = path.is_empty() || file.ends_with("mod.rs");
    let folder = if is_folder { file.parent().expect("a folder").into() } else { file.with_extension("") };
    let children: Vec<String> = declared(&words).map(String::from).collect();
    modules.push(Module { path: path.clone(), file: file.into(), words });
    for child in children {
        let (beside, below) = (folder.join(&child).with_extension("rs"), folder.join(&child).join("mod.rs"));
        let file = if repository.join(&beside).is_file() { beside } else { below };
        let path = path.iter().cloned().chain([child]).collect();
        read(path, &file, modules);
    }
}

/// The names of the modules that are other files.
fn declared(words: &[String]) -> impl Iterator<Item = &str> {
    words.windows(3).filter(|three| three[0] == "mod" && three[2] == ";").map(|three| three[1].as_str())
}

/// Takes out each item that has an attribute with `cfg` and `test`.
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

/// Words of the attribute at the front; 0 if there is none.
fn attribute_len(words: &[String]) -> usize {
    match words {
        [hash, open, ..] if hash == "#" && open == "[" => {
            words.iter().position(|word| word == "]").map_or(words.len(), |end| end + 1)
        }
        _ => 0,
    }
}

/// Words of the item, with its attributes, up to its semicolon or its closing brace.
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
    let left = without_tests(&paths::tokens(text)).join(" ");
    assert_eq!(left, "use a :: B ; mod f ; struct I { k : u8 }");
}

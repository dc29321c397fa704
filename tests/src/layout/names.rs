//! One name, one thing: no two types of a package have the same name.
//!
//! Types are structures, enumerations, traits, unions and aliases at the top of a file. Associated types are
//! none, nor is anything for tests only.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Module, Tests, modules};
use super::words::words;

/// The crates of each package, by their root files.
const PACKAGES: [(&str, &[&str]); 6] = [
    ("dp", &["dp/src/lib.rs"]),
    ("dpdk-sys", &["ffi/dpdk-sys/src/lib.rs"]),
    ("tcp-lite", &["tcp-lite/src/lib.rs"]),
    ("iwarp", &["iwarp/src/lib.rs"]),
    ("benches", &["benches/src/lib.rs", "benches/src/main.rs", "benches/src/bin/instructions/main.rs"]),
    ("measure", &["benches/measure/src/main.rs"]),
];

/// Names that several types of a package may have: the package, the name, and the reason.
const ALLOWED: [(&str, &str, &str); 1] =
    [("dp", "Scope", "one type: a build has either that of `profile/on.rs` or that of `profile/off.rs`")];

#[test]
fn a_type_name_stands_for_one_type() {
    let mut bad = Vec::new();
    let mut used = BTreeSet::new();
    for (package, roots) in PACKAGES {
        let modules: Vec<Module> = roots.iter().flat_map(|root| modules(root, Tests::LeftOut)).collect();
        let mut places = BTreeMap::<&str, Vec<String>>::new();
        for module in &modules {
            for name in types(&module.words) {
                places.entry(name).or_default().push(module.file.display().to_string());
            }
        }
        for (name, places) in places.into_iter().filter(|(_, places)| places.len() > 1) {
            match ALLOWED.iter().find(|allowed| (allowed.0, allowed.1) == (package, name)) {
                Some(allowed) => drop(used.insert(allowed)),
                None => bad.push(format!("{package}: {name} in {}", places.join(", "))),
            }
        }
    }
    assert!(bad.is_empty(), "names of several types:\n{}", bad.join("\n"));
    let unused: Vec<_> = ALLOWED.iter().filter(|allowed| !used.contains(allowed)).collect();
    assert!(unused.is_empty(), "no longer needed: {unused:?}");
}

/// The names of the types that are not inside of braces.
fn types(words: &[String]) -> Vec<&str> {
    let mut depth = 0_usize;
    let mut types = Vec::new();
    for (at, word) in words.iter().enumerate() {
        match word.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            "struct" | "enum" | "trait" | "type" | "union" if depth == 0 => {
                let name = words.get(at + 1).filter(|name| name.starts_with(char::is_alphabetic));
                types.extend(name.map(String::as_str));
            }
            _ => {}
        }
    }
    types
}

#[test]
fn types_at_the_top_of_a_file_are_found() {
    let text = "pub(crate) struct A<T> { x: u8 }\ntype B = u8;\nimpl C for A { type Item = u8; }\n\
        unsafe trait D {}\n// struct E;\nfn f() { enum G {} }\npub union H { a: u8 }\n\
        const I: u8 = J.union(K);";
    let words = words(text);
    assert_eq!(types(&words), ["A", "B", "D", "H"]);
}

//! Checks that the modules of this crate use each other in one direction only, as the tables at the heads of
//! `src/lib.rs` and `src/tcp/mod.rs` say. This test parses those tables.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of a folder with their layers, and the names that the folder's file re-exports.
struct Folder {
    path: PathBuf,
    /// Its name in code outside of the folder.
    name: &'static str,
    floors: BTreeMap<String, usize>,
    /// Names that it re-exports, with the module that each comes from.
    exports: BTreeMap<String, String>,
}

impl Folder {
    fn read(root_file: &str, name: &'static str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(root_file);
        let text = fs::read_to_string(&file).expect("the file that has the table");
        let path = file.parent().expect("a folder").to_owned();
        Self { path, name, floors: floors(&text), exports: exports(&text) }
    }

    /// The module that a path behind the folder's name leads into.
    fn target(&self, path: &str) -> Option<&str> {
        let first = path.split("::").next()?.trim();
        let module = self.exports.get(first).map_or(first, String::as_str);
        self.floors.get_key_value(module).map(|(module, _)| module.as_str())
    }

    /// The uses in a module's code that its layer does not allow.
    fn arrows_back(&self) -> Vec<String> {
        let mut back = Vec::new();
        for (module, floor) in &self.floors {
            for file in files_of(&self.path, module) {
                let text = code(&fs::read_to_string(&file).expect("a source file"));
                let depth = file.strip_prefix(&self.path).expect("in the folder").components().count();
                for path in paths(&text, self.name, &file, depth) {
                    match self.target(&path) {
                        Some(target) if target != module && self.floors[target] >= *floor => {
                            back.push(format!("{} uses {target} ({path})", file.display()));
                        }
                        _ => {}
                    }
                }
            }
        }
        back
    }
}

/// The rows `| floor | modules | what |` of a table in the head of a file.
fn floors(text: &str) -> BTreeMap<String, usize> {
    let mut floors = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let mut cells = line.split('|').map(str::trim);
        let Some(Ok(floor)) = cells.next().map(str::parse) else { continue };
        for module in cells.next().expect("modules").split(',') {
            floors.insert(module.trim().trim_matches('`').to_owned(), floor);
        }
    }
    floors
}

/// The names that `pub use module::{Name, ...}` re-exports.
fn exports(text: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for statement in statements(text).filter(|statement| statement.starts_with("pub")) {
        let Some((_, path)) = statement.split_once("use ") else { continue };
        for path in expand(path.trim_end_matches(';')) {
            let path = path.trim_start_matches("crate::").trim_start_matches("self::");
            if let (Some((module, _)), Some(name)) = (path.split_once("::"), path.rsplit("::").next()) {
                exports.insert(name.to_owned(), module.to_owned());
            }
        }
    }
    exports
}

/// The `use` statements of a file, each on one line.
fn statements(text: &str) -> impl Iterator<Item = String> {
    let mut all = Vec::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let line = line.trim();
        let begins = line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ");
        if current.is_none() && begins {
            current = Some(String::new());
        }
        if let Some(statement) = &mut current {
            statement.push_str(line);
            if line.ends_with(';') {
                all.extend(current.take());
            }
        }
    }
    all.into_iter()
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn expand(path: &str) -> Vec<String> {
    let Some((prefix, rest)) = path.split_once('{') else { return vec![path.trim().to_owned()] };
    let inner = rest.trim().strip_suffix('}').expect("a closed brace");
    let (mut parts, mut depth, mut part) = (Vec::new(), 0, String::new());
    for letter in inner.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match letter {
            ',' if depth == 0 => parts.push(std::mem::take(&mut part)),
            _ => part.push(letter),
        }
    }
    parts.push(part);
    let named = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    named.flat_map(expand).map(|part| format!("{}{part}", prefix.trim())).collect()
}

/// The code of a file: without comments, and without everything after the first item that is for tests only.
fn code(text: &str) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.take_while(|line| !line.starts_with("#[cfg(test)]")).collect::<Vec<_>>().join("\n")
}

/// The paths into the folder `name` that a file uses, without the name: absolute ones, and relative ones by
/// `super`.
fn paths(text: &str, name: &str, file: &Path, depth: usize) -> Vec<String> {
    let is_root = file.ends_with("mod.rs");
    // The number of `super` that lead from the file's module to the folder.
    let ups = if is_root { depth - 1 } else { depth };
    let up = "super::".repeat(ups);
    let mut paths = Vec::new();
    for statement in statements(text) {
        let path = statement.split_once("use ").expect("a use").1.trim_end_matches(';');
        for path in expand(path) {
            let inside = path.strip_prefix(name).or_else(|| path.strip_prefix(&up).filter(|_| ups > 0));
            paths.extend(inside.filter(|inside| !inside.starts_with("super")).map(str::to_owned));
        }
    }
    // Paths inside of code.
    for line in text.lines().filter(|line| !line.trim_start().starts_with("use ")) {
        for (at, _) in line.match_indices(name) {
            let rest = &line[at + name.len()..];
            let end = rest.find(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter));
            paths.push(rest[..end.unwrap_or(rest.len())].to_owned());
        }
    }
    paths
}

/// The files of a module, except for its tests.
fn files_of(folder: &Path, module: &str) -> Vec<PathBuf> {
    let mut files = vec![folder.join(module).with_extension("rs")];
    let mut folders = vec![folder.join(module)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_of_tests = ["tests", "tests.rs", "test_access.rs"].iter().any(|name| path.ends_with(name));
            match path.is_dir() {
                _ if is_of_tests => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.retain(|file| file.is_file());
    files
}

/// The modules that a folder's file declares, except for tests.
fn declared(text: &str) -> Vec<String> {
    let modules = text.lines().filter_map(|line| {
        let (visibility, module) = line.strip_suffix(';')?.split_once("mod ")?;
        (visibility.is_empty() || visibility.starts_with("pub")).then(|| module.to_owned())
    });
    modules.filter(|module| module != "tests").collect()
}

fn no_arrows_back(root_file: &str, name: &'static str) {
    let folder = Folder::read(root_file, name);
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(root_file)).expect("read before");
    let without: Vec<_> =
        declared(&text).into_iter().filter(|module| !folder.floors.contains_key(module)).collect();
    assert!(without.is_empty(), "modules without a floor in {root_file}: {without:?}");
    let back = folder.arrows_back();
    assert!(back.is_empty(), "not downwards:\n{}", back.join("\n"));
}

#[test]
fn modules_of_the_crate_use_lower_floors_only() {
    no_arrows_back("src/lib.rs", "crate::");
}

#[test]
fn modules_of_tcp_use_lower_floors_only() {
    no_arrows_back("src/tcp/mod.rs", "crate::tcp::");
}

#[test]
fn an_arrow_back_would_be_seen() {
    let text = "use super::super::send::{SendHalf, ack::AckInfo};\nuse crate::tcp::{\n    State,\n};\nlet x = crate::tcp::send::y();\n";
    let file = Path::new("tcp/receive/window.rs");
    assert_eq!(
        paths(text, "crate::tcp::", file, 2),
        ["send::SendHalf", "send::ack::AckInfo", "State", "send::y"]
    );
    assert_eq!(expand("a::{b, c::{d, e}}"), ["a::b", "a::c::d", "a::c::e"]);
}

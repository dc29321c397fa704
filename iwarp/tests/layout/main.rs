//! The layout of the sources: the folders of a crate are floors, and a file knows only the floors
//! that the table allows. A floor knows none of those behind it, so that there is no circle of
//! floors.
//!
//! Read from the paths that begin with `crate` or `super` in the sources, those of unit tests
//! included. Links in comments are no arrows. What a floor knows by the name that another one gives
//! it (`pub use`) is an arrow to that other one.

mod paths;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The sources of a crate.
struct Layout {
    /// Its `src`, from the folder of this crate.
    src: &'static str,
    /// Its floors, the lowest first.
    floors: &'static [Floor],
}

/// A folder, without those below it that are floors of their own.
struct Floor {
    folder: &'static str,
    /// The floors that its files may name.
    knows: &'static [&'static str],
}

/// Crates whose layout is fixed. The file `lib.rs` of a crate is the roof above all floors.
const LAYOUTS: [Layout; 1] = [Layout {
    src: "src",
    floors: &[
        Floor { folder: "memory", knows: &[] },
        Floor { folder: "ddp", knows: &["memory"] },
        Floor { folder: "mpa", knows: &["memory"] },
        Floor { folder: "rdmap", knows: &["memory", "ddp"] },
        Floor { folder: "queues", knows: &["memory", "mpa", "rdmap"] },
        Floor { folder: "rdmap/stream", knows: &["memory", "ddp", "mpa", "rdmap", "queues"] },
        Floor { folder: "verbs", knows: &["memory", "mpa", "rdmap", "queues"] },
        Floor { folder: "engine", knows: &["memory", "mpa", "rdmap", "queues", "rdmap/stream", "verbs"] },
    ],
}];

#[test]
fn floors_know_only_those_before_them() {
    for layout in &LAYOUTS {
        for (at, floor) in layout.floors.iter().enumerate() {
            for known in floor.knows {
                let is_before = layout.floors[..at].iter().any(|before| before.folder == *known);
                assert!(is_before, "the table has {known} known by {}, which is not behind it", floor.folder);
            }
        }
    }
}

#[test]
fn the_sources_keep_to_the_table() {
    for layout in &LAYOUTS {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(layout.src);
        let mut seen = BTreeSet::new();
        let mut bad = Vec::new();
        for file in files(&root, "") {
            let text = fs::read_to_string(root.join(&file)).expect("a source file");
            for arrow in layout.arrows(&file, &text) {
                if !layout.allows(&arrow) {
                    bad.push(format!("{file}: {} may not know {}", arrow.from, arrow.to));
                }
                seen.insert((arrow.from, arrow.to));
            }
        }
        assert!(bad.is_empty(), "{}", bad.join("\n"));
        for floor in layout.floors {
            for known in floor.knows {
                assert!(
                    seen.contains(&(floor.folder.into(), (*known).into())),
                    "the table lets {} know {known}, which it does not: take it out",
                    floor.folder
                );
            }
        }
    }
}

#[test]
fn an_arrow_back_is_found_however_it_is_written() {
    let [layout, ..] = &LAYOUTS;
    for (file, text, to) in [
        ("memory/table.rs", "use crate::verbs::Context;", Some("verbs")),
        ("memory/table.rs", "use crate::{memory::Stag, engine::{Engine, EngineConfig}};", Some("engine")),
        ("memory/table.rs", "fn f(x: &crate::ddp::Header) {}", Some("ddp")),
        ("memory/sum/mod.rs", "use super::super::mpa::Crc32c;", Some("mpa")),
        ("mpa/mod.rs", "mod tests {\n    use super::super::rdmap::Opcode;\n}", Some("rdmap")),
        ("rdmap/control.rs", "use crate::rdmap::stream::Failure;", Some("rdmap/stream")),
        ("queues/qp.rs", "use super::super::verbs;", Some("verbs")),
        ("rdmap/stream/mod.rs", "use crate::verbs::QueuePair;", Some("verbs")),
        ("memory/table.rs", "// use crate::verbs::Context;\n/* crate::engine */", None),
        ("memory/table.rs", "const TEXT: &str = \"crate::engine::Engine\";", None),
        ("memory/table.rs", "use super::stag::Stag;\nuse crate::memory::copy;", None),
        ("rdmap/stream/inbound/send.rs", "use super::super::message::Message;", None),
        ("rdmap/stream/inbound/send.rs", "use crate::rdmap::Opcode;", None),
        ("lib.rs", "pub use crate::engine::Engine;", None),
    ] {
        let found: Vec<String> = layout
            .arrows(file, text)
            .into_iter()
            .filter(|arrow| !layout.allows(arrow))
            .map(|arrow| arrow.to)
            .collect();
        assert_eq!(found, to.into_iter().collect::<Vec<_>>(), "{file}: {text}");
    }
}

/// A file of one floor names another floor.
struct Arrow {
    from: String,
    to: String,
}

impl Layout {
    /// The arrows of a file, each once, without those to its own floor.
    fn arrows(&self, file: &str, text: &str) -> Vec<Arrow> {
        let module = module_of(file);
        let Some(from) = self.floor_of(&module) else {
            assert!(module.is_empty(), "{file} is on no floor: give its folder one");
            return Vec::new();
        };
        let to: BTreeSet<&str> =
            paths::named(text, &module).iter().filter_map(|path| self.floor_of(path)).collect();
        to.into_iter().filter(|to| *to != from).map(|to| Arrow { from: from.into(), to: to.into() }).collect()
    }

    /// The floor that a path within the crate is on; the innermost.
    fn floor_of(&self, path: &[String]) -> Option<&'static str> {
        let holds = |floor: &&Floor| {
            let folders: Vec<&str> = floor.folder.split('/').collect();
            folders.len() <= path.len() && folders.iter().zip(path).all(|(folder, name)| folder == name)
        };
        self.floors.iter().filter(holds).max_by_key(|floor| floor.folder.len()).map(|floor| floor.folder)
    }

    fn allows(&self, arrow: &Arrow) -> bool {
        self.floors.iter().any(|floor| floor.folder == arrow.from && floor.knows.contains(&arrow.to.as_str()))
    }
}

/// The module that a file is.
fn module_of(file: &str) -> Vec<String> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').map(String::from).collect() }
}

/// All Rust files below `root/folder`, by their paths from `root`.
fn files(root: &Path, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(folder)).expect("a folder of sources") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name in ASCII");
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type().expect("a type").is_dir() {
            found.extend(files(root, &path));
        } else if path.ends_with(".rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

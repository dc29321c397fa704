//! The layout of the sources: the folders of a crate are layers, and a file may name only the layers that
//! the table allows. A layer names none above it, so there is no circle of layers.
//!
//! The names come from the paths that begin with `crate` or `super` in the sources, including unit tests.
//! Links in comments do not count. A name that another layer re-exports (`pub use`) belongs to that other
//! layer.

mod paths;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The sources of a crate.
struct Layout {
    /// Its `src`, from the folder of this crate.
    src: &'static str,
    /// Its layers, the lowest first.
    layers: &'static [Layer],
}

/// A folder, without its subfolders that are layers of their own.
struct Layer {
    folder: &'static str,
    /// The layers that its files may name.
    knows: &'static [&'static str],
}

/// Crates whose layout is fixed. The file `lib.rs` of a crate is above all layers.
const LAYOUTS: [Layout; 1] = [Layout {
    src: "src",
    layers: &[
        Layer { folder: "memory", knows: &[] },
        Layer { folder: "ddp", knows: &["memory"] },
        Layer { folder: "mpa", knows: &["memory"] },
        Layer { folder: "rdmap", knows: &["memory", "ddp"] },
        Layer { folder: "queues", knows: &["memory", "mpa", "rdmap"] },
        Layer { folder: "rdmap/stream", knows: &["memory", "ddp", "mpa", "rdmap", "queues"] },
        Layer { folder: "verbs", knows: &["memory", "mpa", "rdmap", "queues"] },
        Layer { folder: "engine", knows: &["memory", "mpa", "rdmap", "queues", "rdmap/stream", "verbs"] },
    ],
}];

#[test]
fn floors_know_only_those_before_them() {
    for layout in &LAYOUTS {
        for (at, layer) in layout.layers.iter().enumerate() {
            for known in layer.knows {
                let is_before = layout.layers[..at].iter().any(|before| before.folder == *known);
                assert!(is_before, "the table has {known} known by {}, which is not behind it", layer.folder);
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
        for layer in layout.layers {
            for known in layer.knows {
                assert!(
                    seen.contains(&(layer.folder.into(), (*known).into())),
                    "the table lets {} know {known}, which it does not: take it out",
                    layer.folder
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
        ("rdmap/opcode.rs", "use crate::rdmap::stream::Failure;", Some("rdmap/stream")),
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

/// A file of one layer that names another layer.
struct Arrow {
    from: String,
    to: String,
}

impl Layout {
    /// The arrows of a file, each once, without those to its own layer.
    fn arrows(&self, file: &str, text: &str) -> Vec<Arrow> {
        let module = module_of(file);
        let Some(from) = self.layer_of(&module) else {
            assert!(module.is_empty(), "{file} is on no layer: give its folder one");
            return Vec::new();
        };
        let to: BTreeSet<&str> =
            paths::named(text, &module).iter().filter_map(|path| self.layer_of(path)).collect();
        to.into_iter().filter(|to| *to != from).map(|to| Arrow { from: from.into(), to: to.into() }).collect()
    }

    /// The innermost layer of a path within the crate.
    fn layer_of(&self, path: &[String]) -> Option<&'static str> {
        let holds = |layer: &&Layer| {
            let folders: Vec<&str> = layer.folder.split('/').collect();
            folders.len() <= path.len() && folders.iter().zip(path).all(|(folder, name)| folder == name)
        };
        self.layers.iter().filter(holds).max_by_key(|layer| layer.folder.len()).map(|layer| layer.folder)
    }

    fn allows(&self, arrow: &Arrow) -> bool {
        self.layers.iter().any(|layer| layer.folder == arrow.from && layer.knows.contains(&arrow.to.as_str()))
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

//! Layers ("floors"): a module names only modules of the floors that
//! [`LAYOUTS`](super::table::LAYOUTS) allows.
//!
//! A name counts as a use of the floor that defines it and of the floor on the written path. So if a path
//! names an item that another floor re-exports (`pub use`), the path uses both floors. Links in comments do
//! not count.
//!
//! The inherent methods of a type have to be on the type's floor. Otherwise lower floors could call the
//! methods of another floor's `impl`, and no path in the source would show this use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::source::{Tests, modules_in};
#[cfg(test)]
use super::table::LAYOUTS;
use super::table::{Floors, Folder, Layout};
use super::uses::{Crate, ModulePath};

/// What breaks the rules for the floors of a crate.
#[derive(Debug, Default)]
pub struct Broken {
    /// The arrows back: the pairs of floors of which the first uses the second and may not know it, each with
    /// the number of uses.
    pub back: BTreeMap<(String, String), usize>,
    /// The modules that are on no floor.
    pub without_floor: Vec<String>,
}

/// Returns what breaks the rules for the floors of a crate in the checkout at `checkout`. Floors that are
/// folders are those of the table. Floors in the head of a file are those that the checkout has there.
pub fn broken(checkout: &Path, layout: &Layout) -> Broken {
    let parts = Crate::of(modules_in(checkout, layout.root, tests(layout)));
    let mut broken = Broken::default();
    for plan in plans(checkout, layout) {
        broken.without_floor.extend(plan.without_floor(&parts).map(|module| module.join("::")));
        for Arrow { from, to, .. } in plan.arrows(&parts).iter().filter(|arrow| !plan.allows(arrow)) {
            *broken.back.entry((from.join("::"), to.join("::"))).or_default() += 1;
        }
    }
    broken
}

/// The floors of the modules below one folder of a crate.
struct Plan {
    /// The path of the folder, which is above all floors.
    folder: ModulePath,
    floors: Vec<Floor>,
}

struct Floor {
    module: ModulePath,
    knows: Vec<ModulePath>,
}

/// A use of a floor by a module of another floor.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: ModulePath,
    to: ModulePath,
    what: String,
}

#[test]
fn floors_know_only_those_before_them() {
    for folders in LAYOUTS.iter().filter_map(folders) {
        for (at, folder) in folders.iter().enumerate() {
            for known in folder.knows {
                let is_before = folders[..at].iter().any(|before| before.path == *known);
                assert!(is_before, "the table has {known} known by {}, which is not behind it", folder.path);
            }
        }
    }
}

#[test]
fn modules_use_only_the_floors_that_they_may_know() {
    let mut bad = Vec::new();
    for layout in &LAYOUTS {
        let parts = Crate::of(modules_in(repository(), layout.root, tests(layout)));
        for plan in plans(repository(), layout) {
            bad.extend(
                plan.without_floor(&parts).map(|module| format!("{} has no floor", module.join("::"))),
            );
            let arrows = plan.arrows(&parts);
            let back = arrows.iter().filter(|arrow| !plan.allows(arrow));
            bad.extend(back.map(|arrow| {
                format!(
                    "{}: {} may not know {}: {}",
                    layout.root,
                    arrow.from.join("::"),
                    arrow.to.join("::"),
                    arrow.what
                )
            }));
            // A floor of the table has to use every floor that it may use.
            for floor in plan.floors.iter().filter(|_| folders(layout).is_some()) {
                let unused = floor.knows.iter().filter(|known| {
                    !arrows.iter().any(|arrow| arrow.from == floor.module && arrow.to == **known)
                });
                bad.extend(unused.map(|known| {
                    format!(
                        "the table lets {} know {}: take it out",
                        floor.module.join("::"),
                        known.join("::")
                    )
                }));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn a_type_has_its_methods_on_its_own_floor() {
    let mut bad = Vec::new();
    for layout in &LAYOUTS {
        let parts = Crate::of(modules_in(repository(), layout.root, Tests::LeftOut));
        for Arrow { from, to, what } in
            plans(repository(), layout).iter().flat_map(|plan| plan.methods(&parts))
        {
            bad.push(format!(
                "{}: {} has methods for {what} of {}",
                layout.root,
                from.join("::"),
                to.join("::")
            ));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

fn folders(layout: &Layout) -> Option<&'static [Folder]> {
    match layout.floors {
        Floors::Folders(folders) => Some(folders),
        Floors::None | Floors::Heads(_) => None,
    }
}

fn tests(layout: &Layout) -> Tests {
    if folders(layout).is_some() { Tests::Kept } else { Tests::LeftOut }
}

#[cfg(test)]
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn plans(checkout: &Path, layout: &Layout) -> Vec<Plan> {
    match layout.floors {
        Floors::None => Vec::new(),
        Floors::Folders(folders) => vec![Plan::of_folders(folders)],
        Floors::Heads(files) => {
            let src = Path::new(layout.root).parent().expect("a folder");
            files.iter().map(|file| Plan::of_head(checkout, src, Path::new(file))).collect()
        }
    }
}

impl Plan {
    fn of_folders(folders: &[Folder]) -> Self {
        let module = |path: &&str| path.split('/').map(String::from).collect();
        let floor =
            |it: &Folder| Floor { module: module(&it.path), knows: it.knows.iter().map(module).collect() };
        Self { folder: Vec::new(), floors: folders.iter().map(floor).collect() }
    }

    fn of_head(checkout: &Path, src: &Path, file: &Path) -> Self {
        let text = fs::read_to_string(checkout.join(file)).expect("the file that has the table");
        let folder = file.parent().and_then(|folder| folder.strip_prefix(src).ok()).expect("below `src`");
        let folder: ModulePath =
            folder.components().map(|name| name.as_os_str().to_string_lossy().into_owned()).collect();
        let module = |name: &String| folder.iter().chain([name]).cloned().collect::<ModulePath>();
        let rows = rows(&text);
        let floor = |(name, floor): (&String, &usize)| Floor {
            module: module(name),
            knows: rows.iter().filter(|(_, below)| *below < floor).map(|(name, _)| module(name)).collect(),
        };
        Self { floors: rows.iter().map(floor).collect(), folder }
    }

    /// Returns the innermost floor that contains a path of the crate.
    fn floor_of(&self, path: &[String]) -> Option<&Floor> {
        self.floors.iter().filter(|floor| path.starts_with(&floor.module)).max_by_key(|it| it.module.len())
    }

    /// Returns the modules in the folder that are on no floor.
    fn without_floor<'a>(&'a self, parts: &'a Crate) -> impl Iterator<Item = &'a ModulePath> {
        parts.modules.keys().filter(|path| {
            path.starts_with(&self.folder) && **path != self.folder && self.floor_of(path).is_none()
        })
    }

    /// Returns all uses of a floor by a module of another floor.
    fn arrows(&self, parts: &Crate) -> BTreeSet<Arrow> {
        let mut arrows = BTreeSet::new();
        for each in parts.uses() {
            let Some(from) = self.floor_of(&each.from) else { continue };
            for to in [self.floor_of(&each.path), self.floor_of(&each.to)].into_iter().flatten() {
                if to.module != from.module {
                    let (from, to) = (from.module.clone(), to.module.clone());
                    arrows.insert(Arrow {
                        from,
                        to,
                        what: format!("{} in {}", each.path.join("::"), each.from.join("::")),
                    });
                }
            }
        }
        arrows
    }

    fn allows(&self, arrow: &Arrow) -> bool {
        self.floors.iter().any(|floor| floor.module == arrow.from && floor.knows.contains(&arrow.to))
    }

    /// Returns the `impl` blocks for types of another floor.
    #[cfg(test)]
    fn methods(&self, parts: &Crate) -> Vec<Arrow> {
        let arrow = |from: &Floor, to: &Floor, what| {
            let (from, to) = (from.module.clone(), to.module.clone());
            (from != to).then_some(Arrow { from, to, what })
        };
        let impls = parts.inherent_impls().into_iter();
        impls
            .filter_map(|it| {
                arrow(
                    self.floor_of(&it.from)?,
                    self.floor_of(&it.to).or_else(|| self.floor_of(&it.path))?,
                    it.item,
                )
            })
            .collect()
    }
}

/// Returns the floor of each module from the table `| floor | modules | what |` in the head of a file.
fn rows(text: &str) -> BTreeMap<String, usize> {
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

/// Returns a crate with only the module at `path`, below empty modules.
#[cfg(test)]
fn only(path: &str, text: &str, tests: Tests) -> Crate {
    let names: ModulePath = path.split("::").filter(|name| !name.is_empty()).map(String::from).collect();
    let mut all = super::source::split(&names, path.as_ref(), text, tests);
    let of_folder = |len| super::source::split(&names[..len], path.as_ref(), "", tests);
    all.extend((0..names.len()).flat_map(of_folder));
    Crate::of(all)
}

#[test]
fn an_arrow_back_is_found_however_it_is_written() {
    let folders = LAYOUTS.iter().find_map(folders).expect("a crate with folders");
    let plan = Plan::of_folders(folders);
    for (path, text, to) in [
        ("memory::table", "use crate::verbs::Context;", Some("verbs")),
        ("memory::table", "use crate::{memory::Stag, engine::{Engine, EngineConfig}};", Some("engine")),
        ("memory::table", "fn f(x: &crate::ddp::Header) {}", Some("ddp")),
        ("memory::crc32c", "use super::super::mpa::Crc32c;", Some("mpa")),
        ("mpa", "#[cfg(test)] mod tests {\n    use super::super::rdmap::Opcode;\n}", Some("rdmap")),
        ("rdmap::opcode", "use crate::stream::Failure;", Some("stream")),
        ("queues::qp", "use super::super::verbs;", Some("verbs")),
        ("stream", "use crate::verbs::QueuePair;", Some("verbs")),
        ("memory::table", "// use crate::verbs::Context;\n/* crate::engine */", None),
        ("memory::table", "const TEXT: &str = \"crate::engine::Engine\";", None),
        ("memory::table", "use super::stag::Stag;\nuse crate::memory::copy;", None),
        ("stream::inbound::send", "use super::super::message::Message;", None),
        ("stream::inbound::send", "use crate::rdmap::Opcode;", None),
        ("", "pub use crate::engine::Engine;", None),
    ] {
        let arrows = plan.arrows(&only(path, text, Tests::Kept));
        let back = arrows.iter().filter(|arrow| !plan.allows(arrow));
        let found: BTreeSet<String> = back.map(|arrow| arrow.to.join("::")).collect();
        assert_eq!(found, to.into_iter().map(String::from).collect(), "{path}: {text}");
    }
    let text = "use crate::memory::Stag; impl Stag {} impl Copy for Stag {} struct A; impl A {}";
    let methods = plan.methods(&only("verbs::mr", text, Tests::Kept));
    assert_eq!(methods.iter().map(|arrow| arrow.to.join("::")).collect::<Vec<_>>(), ["memory"]);
}

#[test]
fn an_arrow_back_is_found_by_the_table_of_a_head() {
    let src = Path::new("tcp-lite/src");
    let [root, tcp] = ["lib.rs", "tcp/mod.rs"].map(|file| Plan::of_head(repository(), src, &src.join(file)));
    for (path, text, to) in [
        ("tcp::send", "#[cfg(test)]\nmod test_access;\nuse crate::stack::Stack;", Some("stack")),
        ("tcp::send", "use super::receive::{ReceiveHalf, window};", Some("tcp::receive")),
        ("tcp::receive::window", "use super::super::send::SendHalf;", Some("tcp::send")),
        ("tcp::receive::window", "fn f() {} // end\nfn g() { crate::tcp::send::y() }", Some("tcp::send")),
        (
            "tcp::receive::window",
            "#[cfg(test)] use super::super::send::SendHalf;\nuse crate::tcp::seq::SeqNum;",
            None,
        ),
        ("stack", "use crate::tcp::{Tcb, ctx::Ctx};", None),
    ] {
        let parts = only(path, text, Tests::LeftOut);
        let mut found = BTreeSet::new();
        for plan in [&root, &tcp] {
            let arrows = plan.arrows(&parts);
            found.extend(arrows.iter().filter(|arrow| !plan.allows(arrow)).map(|arrow| arrow.to.join("::")));
        }
        assert_eq!(found, to.into_iter().map(String::from).collect(), "{path}: {text}");
    }
}

#[test]
fn what_breaks_the_rules_is_counted_in_any_checkout() {
    let root = testkit::folder::Folder::new("uwarp-floors");
    let src = root.join("iwarp/src");
    fs::create_dir_all(&src).unwrap();
    for (file, text) in [
        ("lib.rs", "mod memory; mod other; mod verbs;"),
        ("memory.rs", "use crate::verbs::{A, B};\npub struct C;"),
        ("other.rs", ""),
        ("verbs.rs", "use crate::memory::C;\npub struct A;\npub struct B;"),
    ] {
        fs::write(src.join(file), text).unwrap();
    }
    let layout = LAYOUTS.iter().find(|layout| layout.root == "iwarp/src/lib.rs").expect("a layout");
    let broken = broken(&root, layout);
    assert_eq!(broken.back, BTreeMap::from([(("memory".into(), "verbs".into()), 2)]));
    assert_eq!(broken.without_floor, ["other"]);
}

//! Statistics of the sources, such as their size, their largest types, the number of places that repeat one
//! decision, and the number of files through which a packet passes. `scripts/structure` prints the statistics
//! of any checkout, so that a change can be compared with the state before it.

pub mod records;
pub mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use syn::visit::{self, Visit};

use crate::layout::circles::circles;
use crate::layout::floors::{self, Broken};
use crate::layout::source::{self, Tests};
use crate::layout::table::{Floors, LAYOUTS, Layout};
use crate::layout::uses::Crate;

/// Folders and files whose sources, except their tests, are the product.
const PRODUCT: [&str; 8] = [
    "dp/src",
    "tcp-lite/src",
    "iwarp/src",
    "iwarp/wire/src",
    "iwarp/tokio/src",
    "ffi/dpdk-sys",
    "ffi/verbs/src",
    "ffi/verbs/build.rs",
];

/// Folders of tools.
const TOOLS: [&str; 3] = ["benches", "scripts", ".ci"];

/// Extensions of the files that count as sources.
const SOURCES: [&str; 6] = ["rs", "c", "h", "py", "sh", "bash"];

/// A part of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Sources that a user builds.
    Product,
    /// Tests, and programs for tests.
    Tests,
    /// Measurements and scripts.
    Tools,
}

/// A type, and the numbers of its fields, methods and files. Types of the same name in a crate count as one
/// type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeSize {
    /// The crate and the name of the type.
    pub name: String,
    /// Number of fields of a struct, or of variants of an enum.
    pub fields: usize,
    /// Number of inherent methods.
    pub methods: usize,
    /// Number of files with inherent methods of the type.
    pub files: usize,
}

/// The extent to which the product mentions something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mentions {
    /// Number of lines, or of places in the code.
    pub lines: usize,
    /// Number of files.
    pub files: usize,
}

/// The numbers of a checkout.
#[derive(Debug)]
pub struct Structure {
    /// Number of lines of source.
    pub lines: BTreeMap<Part, usize>,
    /// The structs and enums of the product, the largest first.
    pub types: Vec<TypeSize>,
    /// Places below `iwarp/src/engine` that ask for the phase of a connection: by `Phase::` in a pattern, by
    /// `Self::` in a pattern of the phase's own methods, or by calls such as `is_rdma()`.
    pub phase_matches: Mentions,
    /// The places that mention InfiniBand's semantics.
    pub ib_semantics: Mentions,
    /// The places that mention sending without a copy of the payload.
    pub zero_copy: Mentions,
    /// For each crate with cycles, the number of modules in each.
    pub circles: Vec<(String, Vec<usize>)>,
    /// For each crate with floors, the arrows back and the modules on no floor.
    pub floors: Vec<(String, Broken)>,
}

impl Structure {
    /// Reads the checkout at `root`.
    ///
    /// # Errors
    /// If a file cannot be read, or is not Rust.
    pub fn of(root: &Path) -> io::Result<Self> {
        let mut lines = BTreeMap::new();
        let mut types = BTreeMap::<String, (TypeSize, BTreeSet<PathBuf>)>::new();
        let mut phase_matches = Mentions::default();
        let [mut ib_semantics, mut zero_copy] = [Mentions::default(); 2];
        for file in files(root)? {
            let text = fs::read_to_string(root.join(&file))?;
            let part = part_of(&file);
            let in_tests = if part == Part::Product { lines_of_tests(&text) } else { 0 };
            *lines.entry(part).or_default() += text.lines().count() - in_tests;
            *lines.entry(Part::Tests).or_default() += in_tests;
            if part != Part::Product || file.extension().is_none_or(|ending| ending != "rs") {
                continue;
            }
            ib_semantics.add(text.lines().filter(|line| line.contains("ib_semantics")).count());
            zero_copy.add(text.lines().filter(|line| is_zero_copy(line)).count());
            let parsed = syn::parse_file(&text)
                .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
            let mut seen = Seen::default();
            seen.visit_file(&parsed);
            if file.starts_with("iwarp/src/engine") {
                phase_matches.add(seen.phase_matches);
            }
            let of = crate_of(&file);
            for (name, (fields, methods)) in seen.types {
                let (size, files) = types.entry(format!("{of}::{name}")).or_default();
                size.fields += fields;
                size.methods += methods;
                if methods > 0 {
                    files.insert(file.clone());
                }
            }
        }
        let mut types: Vec<TypeSize> = types
            .into_iter()
            .map(|(name, (size, files))| TypeSize { name, files: files.len(), ..size })
            .collect();
        types.sort_by_key(|size| std::cmp::Reverse(size.fields + size.methods));
        let (circles, floors) = (circles_in(root), floors_in(root));
        Ok(Self { lines, types, phase_matches, ib_semantics, zero_copy, circles, floors })
    }
}

impl Mentions {
    fn add(&mut self, lines: usize) {
        self.lines += lines;
        self.files += usize::from(lines > 0);
    }
}

/// Returns the crates with cycles of modules, each with the number of modules in each cycle.
fn circles_in(root: &Path) -> Vec<(String, Vec<usize>)> {
    layouts_in(root)
        .map(|layout| {
            let parts = Crate::of(source::modules_in(root, layout.root, Tests::LeftOut));
            (layout.root.to_owned(), circles(&parts).iter().map(|circle| circle.modules).collect::<Vec<_>>())
        })
        .filter(|(_, circles)| !circles.is_empty())
        .collect()
}

/// Returns the crates with floors, each with what breaks the rules of its floors.
fn floors_in(root: &Path) -> Vec<(String, Broken)> {
    let with_floors = layouts_in(root).filter(|layout| !matches!(layout.floors, Floors::None));
    with_floors.map(|layout| (layout.root.to_owned(), floors::broken(root, layout))).collect()
}

/// Returns the layouts of the crates that the checkout has.
fn layouts_in(root: &Path) -> impl Iterator<Item = &'static Layout> {
    LAYOUTS.iter().filter(|layout| root.join(layout.root).is_file())
}

/// Returns the text of a file, or `None` if the file does not exist.
fn text_if_any(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the source files below `root`, without build output and fuzzing corpora.
fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if entry.file_type()?.is_dir() {
                let is_ours = !["target", ".git", "node_modules", "corpus"].contains(&&*name);
                folders.extend(is_ours.then_some(path));
                continue;
            }
            let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned());
            let is_script = ending.is_none() && ["scripts", ".ci"].iter().any(|of| folder.ends_with(of));
            if is_script || ending.is_some_and(|ending| SOURCES.contains(&&*ending)) {
                found.push(path.strip_prefix(root).map_err(io::Error::other)?.to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn part_of(file: &Path) -> Part {
    let is_test = file.file_stem().is_some_and(|stem| stem == "tests")
        || file.components().any(|part| part.as_os_str() == "tests");
    match is_test {
        true => Part::Tests,
        false if TOOLS.iter().any(|folder| file.starts_with(folder)) => Part::Tools,
        false if PRODUCT.iter().any(|folder| file.starts_with(folder)) => Part::Product,
        // Other files, such as examples, count as tests.
        false => Part::Tests,
    }
}

/// Returns the name of a file's crate: the path of the crate's folder.
fn crate_of(file: &Path) -> String {
    let parts = file.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    parts.take_while(|part| part != "src").collect::<Vec<_>>().join("/")
}

/// Returns the number of lines in the test modules of a file formatted by rustfmt.
fn lines_of_tests(text: &str) -> usize {
    let mut lines = text.lines().peekable();
    let mut count = 0;
    while let Some(line) = lines.next() {
        let begins = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.peek().is_some_and(begins) {
            // The module ends at the closing brace without indentation.
            count += 2 + lines.by_ref().take_while(|line| *line != "}").count();
        }
    }
    count
}

fn is_zero_copy(line: &str) -> bool {
    let line = line.to_lowercase().replace(['_', '-'], " ");
    line.contains("zero copy") || line.contains("without a copy") || line.contains("zerocopy")
}

/// The types and matches of a file, without those of its test modules.
#[derive(Default)]
struct Seen {
    /// For each type, the number of fields or variants, and of methods.
    types: BTreeMap<String, (usize, usize)>,
    phase_matches: usize,
    /// Whether the methods of a phase are being visited.
    is_of_phase: bool,
}

/// The names of a connection's phases, as in the names of methods.
const PHASES: [&str; 5] = ["opening", "streaming", "startup", "rdma", "closing"];

impl Seen {
    fn fields(&mut self, name: &syn::Ident, fields: usize) {
        self.types.entry(name.to_string()).or_default().0 += fields;
    }

    /// Counts one place if any of these patterns, which belong to one `match` or other construct, names a
    /// phase.
    fn patterns(&mut self, patterns: &[&syn::Pat]) {
        let mut phase = NamesPhase { is_self: self.is_of_phase, found: false };
        patterns.iter().for_each(|pattern| phase.visit_pat(pattern));
        self.phase_matches += usize::from(phase.found);
    }
}

/// Finds a path that begins with `Phase::`, or with `Self::` in a method of the phase.
struct NamesPhase {
    is_self: bool,
    found: bool,
}

impl<'ast> Visit<'ast> for NamesPhase {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let first = &path.segments[0].ident;
        let is_phase = first == "Phase" || self.is_self && first == "Self";
        self.found |= path.segments.len() > 1 && is_phase;
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = |nested: syn::Path| nested.is_ident("test");
        attribute.path().is_ident("cfg") && attribute.parse_args().is_ok_and(is_test)
    })
}

impl<'ast> Visit<'ast> for Seen {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.fields(&item.ident, item.fields.len());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.fields(&item.ident, item.variants.len());
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_for_tests(&item.attrs) {
            return;
        }
        if let syn::Type::Path(of) = &*item.self_ty
            && let Some(name) = of.path.segments.last()
        {
            if item.trait_.is_none() {
                let methods = item.items.iter().filter(|it| matches!(it, syn::ImplItem::Fn(_))).count();
                self.types.entry(name.ident.to_string()).or_default().1 += methods;
            }
            self.is_of_phase = name.ident == "Phase";
        }
        visit::visit_item_impl(self, item);
        self.is_of_phase = false;
    }

    fn visit_expr_match(&mut self, item: &'ast syn::ExprMatch) {
        let patterns: Vec<&syn::Pat> = item.arms.iter().map(|arm| &arm.pat).collect();
        self.patterns(&patterns);
        visit::visit_expr_match(self, item);
    }

    fn visit_expr_let(&mut self, item: &'ast syn::ExprLet) {
        self.patterns(&[&*item.pat]);
        visit::visit_expr_let(self, item);
    }

    fn visit_local(&mut self, item: &'ast syn::Local) {
        self.patterns(&[&item.pat]);
        visit::visit_local(self, item);
    }

    fn visit_expr_method_call(&mut self, item: &'ast syn::ExprMethodCall) {
        let name = item.method.to_string();
        let asks = |prefix| name.strip_prefix(prefix).is_some_and(|phase| PHASES.contains(&phase));
        self.phase_matches += usize::from(asks("is_") || asks("as_"));
        visit::visit_expr_method_call(self, item);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let is_self = self.is_of_phase;
        let names_phase = || {
            let tokens = item.tokens.to_string();
            tokens.contains("Phase ::") || is_self && tokens.contains("Self ::")
        };
        self.phase_matches += usize::from(item.path.is_ident("matches") && names_phase());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_matches_are_counted() {
        let text = "struct A { b: u8, c: u8 } enum D { E, F(u8) }\n\
            impl A { fn g(&self) { match p { Phase::X => {} _ => {} } if let Phase::Y = p {} } }\n\
            impl Clone for A { fn clone(&self) -> A { let Phase::Z = p else { return }; } }\n\
            impl A { fn h() { matches!(p, Phase::X); let q = Phase::new(); other!(Phase::X); } }\n\
            impl Phase { fn k(&self) { match self { Self::X => {} _ => {} } matches!(self, Self::X); } }\n\
            impl B for Phase { fn l(&self) { let Self::X = self; } }\n\
            impl A { fn m(&self) { let Self::X = self; p.is_rdma(); p.is_other(); } }\n\
            #[cfg(test)] mod tests { impl A { fn i() { let Phase::X = p; } } }";
        let mut seen = Seen::default();
        seen.visit_file(&syn::parse_file(text).unwrap());
        let types = BTreeMap::from([("A".into(), (2, 3)), ("D".into(), (2, 0)), ("Phase".into(), (0, 1))]);
        assert_eq!((seen.types, seen.phase_matches), (types, 8));
    }

    #[test]
    fn each_file_is_of_one_part() {
        for (file, part) in [
            ("dp/src/port.rs", Part::Product),
            ("dp/src/local/tests/growth.rs", Part::Tests),
            ("iwarp/src/queues/qp/tests.rs", Part::Tests),
            ("iwarp/tests/it/main.rs", Part::Tests),
            ("tests/src/lib.rs", Part::Tests),
            ("benches/src/main.rs", Part::Tools),
            ("scripts/run", Part::Tools),
        ] {
            assert_eq!(part_of(file.as_ref()), part, "{file}");
        }
        let of_tests = "#[cfg(test)]\nuse a;\nb\n#[cfg(test)]\nmod tests {\n    b\n}\nc\n";
        assert_eq!(lines_of_tests(of_tests), 4);
        assert_eq!(lines_of_tests("a\n#[cfg(test)]\nmod tests;\nb\n"), 0);
    }

    #[test]
    fn mentions_are_counted_by_line_and_file() {
        let texts = ["a zero-copy send\nZERO_COPY\nzero copies", "", "sent without a copy\nZeroCopy"];
        let mut mentions = Mentions::default();
        texts.iter().for_each(|text| mentions.add(text.lines().filter(|line| is_zero_copy(line)).count()));
        assert_eq!((mentions.lines, mentions.files), (4, 2));
    }

    #[test]
    fn this_checkout_has_numbers() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let found = Structure::of(root).unwrap();
        assert!(found.lines[&Part::Product] > 10_000 && found.lines[&Part::Tests] > 10_000);
        assert!(found.lines[&Part::Tools] > 1000);
        assert!(found.types[0].methods > 10 && found.phase_matches.lines > 0);
        assert!(found.floors.iter().all(|(_, broken)| broken.back.is_empty()), "{:?}", found.floors);
        assert!(found.circles.iter().any(|(root, circles)| root == "iwarp/src/lib.rs" && circles[0] > 1));
    }
}

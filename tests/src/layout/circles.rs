//! Cycles of modules. The file modules of a crate use each other in one direction only, except for the cycles
//! that [`LAYOUTS`](super::table::LAYOUTS) allows.
//!
//! A parent that only re-exports the items of its children (`pub use`) does not count as a user of the
//! children. A file uses everything that its inner modules use.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use super::source::{Tests, modules};
#[cfg(test)]
use super::table::LAYOUTS;
use super::uses::{Crate, ModulePath};

/// A cycle: file modules that use each other.
pub struct Circle {
    /// The number of modules.
    pub modules: usize,
    /// The uses within the cycle, one on each line.
    pub uses: String,
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let mut bad = Vec::new();
    for layout in &LAYOUTS {
        let circles = circles(&Crate::of(modules(layout.root, Tests::LeftOut)));
        let largest = circles.iter().map(|circle| circle.modules).max().unwrap_or(0);
        for circle in circles.iter().filter(|circle| circle.modules > layout.largest_circle.0) {
            bad.push(format!("{}: a circle of {} modules:\n{}", layout.root, circle.modules, circle.uses));
        }
        if largest < layout.largest_circle.0 {
            bad.push(format!("{}: the largest circle has {largest} modules now: say so", layout.root));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// The parts of a queue pair use each other in one direction: no cycle of modules contains `queues`.
#[test]
fn the_queues_of_iwarp_have_no_circle() {
    let circles = circles(&Crate::of(modules("iwarp/src/lib.rs", Tests::LeftOut)));
    let bad: Vec<_> = circles.iter().filter(|circle| circle.uses.contains(" queues")).collect();
    assert!(bad.is_empty(), "{}", bad.iter().map(|circle| &*circle.uses).collect::<Vec<_>>().join("\n"));
}

/// Returns the cycles of a crate, each with its uses.
pub fn circles(parts: &Crate) -> Vec<Circle> {
    let file = |path: &ModulePath| {
        let len = (0..=path.len()).rev().find(|&len| parts.modules.contains_key(&path[..len]));
        parts.modules[&path[..len.expect("the root")]].of_file.clone()
    };
    // A module does not count as used if it is only on the path of a use.
    let uses: Vec<(ModulePath, ModulePath, String)> = parts
        .uses()
        .into_iter()
        .filter(|each| !each.public && !each.item.is_empty())
        .map(|each| (file(&each.from), file(&each.to), each.item))
        .filter(|(from, to, _)| from != to)
        .collect();
    let mut direct = BTreeMap::<&ModulePath, BTreeSet<&ModulePath>>::new();
    for (from, to, _) in &uses {
        direct.entry(from).or_default().insert(to);
    }
    let reached: BTreeMap<&ModulePath, _> =
        direct.keys().map(|from| (*from, reached(&direct, from))).collect();
    let mut seen = BTreeSet::<&ModulePath>::new();
    let mut circles = Vec::new();
    for (module, below) in reached.iter().filter(|(module, below)| below.contains(**module)) {
        if seen.contains(module) {
            continue;
        }
        let reaches = |other: &&ModulePath| reached.get(other).is_some_and(|all| all.contains(module));
        let circle: BTreeSet<&ModulePath> = below.iter().copied().filter(reaches).collect();
        seen.extend(&circle);
        let mut lines = BTreeMap::<_, BTreeSet<_>>::new();
        for (from, to, item) in uses.iter().filter(|it| circle.contains(&it.0) && circle.contains(&it.1)) {
            lines.entry((from.join("::"), to.join("::"))).or_default().insert(&**item);
        }
        let lines = lines.into_iter().map(|((from, to), items)| {
            let items: Vec<_> = items.into_iter().collect();
            format!("    {from} uses {to}: {}", items.join(", "))
        });
        circles.push(Circle { modules: circle.len(), uses: lines.collect::<Vec<_>>().join("\n") });
    }
    circles
}

/// Returns the modules that `from` uses, directly or through other modules.
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

#[test]
fn a_circle_is_found_however_it_is_written() {
    let module = |path: &str, text: &str| {
        let names: Vec<String> = path.split("::").filter(|name| !name.is_empty()).map(String::from).collect();
        super::source::split(&names, path.as_ref(), text, Tests::LeftOut).remove(0)
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
        assert_eq!(!circles(&parts).is_empty(), circle, "{a} and {b}");
    }
    let parent = module("p", "mod child; use child::Child; struct Parent;");
    let child = module("p::child", "use super::Parent; struct Child;");
    let found = circles(&Crate::of(vec![module("", "mod p;"), parent, child]));
    assert_eq!(found.iter().map(|circle| circle.modules).collect::<Vec<_>>(), [2]);
}

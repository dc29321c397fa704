//! Defects: edits that break the stack or iWARP, each to be found by the simulator. A rule that finds none is
//! no rule.
//!
//! They are kept in `tests/sim-defects/*.toml`, a table each:
//!
//! ```toml
//! [[defect]]
//! name = "sack-not-learned"
//! file = "tcp-lite/src/tcp/send/ack.rs"
//! find = "self.queue.sack("
//! replace = "let _ = ("
//! found = "random-loss 0"
//! ```
//!
//! `cargo run -p tests --bin mutate simulator` applies each to a copy of the tree, runs the simulator built
//! from it, first the scenario and seed that found it when it was last tried, and says by which rule. That
//! takes a build for each; that they still apply is seen by an ordinary test. `tests/sim-defects/found.csv`
//! has a digest of each that its run found, of the edit and of what the scenario draws: one of them changed,
//! it has to be tried again (`conformance-report --check` says so).
//!
//! Each of those kept was found when it was last tried. What was tried and is not kept, since another test
//! finds it:
//!
//! - Keepalive probes count on though they are answered (`rfc9293/keepalive.pkt`): no connection rests for
//!   hundreds of them.
//! - The answer to a SYN sent before is measured (`answers_lost_in_the_handshake_make_no_long_round_trip`):
//!   the RTO is longer, by a wait that has happened.
//! - Bytes that overtake the end of a handshake by cookie are refused
//!   (`bytes_that_overtake_the_acknowledgement_of_a_cookie_do_not_refuse_the_connection`): not in 2000 runs
//!   of `backlog`.
//!
//! Nor is a timeout that does not arm its timer again: what it sends does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::scenario::Scenario;
use crate::mutation::{Edit, function_text};

/// Where they are kept, from the top of the repository.
pub const DEFECTS: &str = "tests/sim-defects";
/// Digests of those that were found.
pub const FOUND: &str = "tests/sim-defects/found.csv";
/// What the scenarios draw.
const DRAWN: &str = "tests/src/sim/scenario/faults.rs";

/// An edit, and what finds it.
#[derive(Clone, Debug)]
pub struct Defect {
    /// The edit.
    pub edit: Edit,
    /// A scenario and a seed that find it.
    pub found: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    defect: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    file: String,
    find: String,
    replace: String,
    found: String,
}

impl From<Entry> for Defect {
    fn from(Entry { name, file, find, replace, found }: Entry) -> Self {
        Self { edit: Edit { name, file, find, replace }, found }
    }
}

impl Defect {
    /// The run that finds it.
    ///
    /// # Errors
    /// In words, when it is no scenario and seed.
    pub fn run(&self) -> Result<(Scenario, u64), String> {
        let run = self
            .found
            .split_once(' ')
            .and_then(|(scenario, seed)| Some((Scenario::find(scenario)?, seed.parse().ok()?)));
        run.ok_or_else(|| format!("{}: {} is no scenario with a seed", self.edit.name, self.found))
    }

    /// Eight hexadecimal digits that change with the edit, with the run that finds it and with what its
    /// scenario draws.
    ///
    /// # Errors
    /// In words, when it names no run, or the scenario draws nothing.
    pub fn digest(&self, root: &Path) -> Result<String, String> {
        let (scenario, _) = self.run()?;
        let text = std::fs::read_to_string(root.join(DRAWN)).map_err(|error| format!("{DRAWN}: {error}"))?;
        let draws = function_text(&text, &scenario.name.replace('-', "_"))
            .ok_or_else(|| format!("{DRAWN}: {} has no function of its name", scenario.name))?;
        Ok(self.edit.digest([self.found.clone(), draws]))
    }
}

/// Every defect, in the order of files and tables.
///
/// # Errors
/// In words, when a file cannot be read, is not of the form, or names one twice.
pub fn load(root: &Path) -> Result<Vec<Defect>, String> {
    let entries = std::fs::read_dir(root.join(DEFECTS)).map_err(|error| format!("{DEFECTS}: {error}"))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let mut defects: Vec<Defect> = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file: File = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        defects.extend(file.defect.into_iter().map(Defect::from));
    }
    let names: BTreeSet<_> = defects.iter().map(|defect| &defect.edit.name).collect();
    if names.len() != defects.len() {
        return Err("a defect is there twice".into());
    }
    Ok(defects)
}

/// The digests of those that were found, by name; none where there is no record.
///
/// # Errors
/// In words, when the record is not of the form.
pub fn found(root: &Path) -> Result<BTreeMap<String, String>, String> {
    if !root.join(FOUND).exists() {
        return Ok(BTreeMap::new());
    }
    let told = |error: csv::Error| format!("{FOUND}: {error}");
    csv::Reader::from_path(root.join(FOUND))
        .map_err(told)?
        .deserialize()
        .map(|row| row.map_err(told))
        .collect()
}

/// Replaces the record.
///
/// # Errors
/// In words, when it cannot be written.
pub fn record(root: &Path, found: &BTreeMap<String, String>) -> Result<(), String> {
    let lines: String = found.iter().map(|(name, digest)| format!("{name},{digest}\n")).collect();
    std::fs::write(root.join(FOUND), format!("defect,digest\n{lines}"))
        .map_err(|error| format!("{FOUND}: {error}"))
}

/// Those that have not been found as they are, and records of none that is there, one line each.
///
/// # Errors
/// In words, when something cannot be read.
pub fn stale(root: &Path) -> Result<Vec<String>, String> {
    let (defects, found) = (load(root)?, found(root)?);
    let mut findings = Vec::new();
    for defect in &defects {
        if found.get(&defect.edit.name) != Some(&defect.digest(root)?) {
            findings.push(format!(
                "{} has not been found as it and its scenario are: `scripts/mutate --new` tries all such",
                defect.edit.name
            ));
        }
    }
    for name in found.keys().filter(|name| !defects.iter().any(|defect| defect.edit.name == **name)) {
        findings.push(format!("{FOUND}: there is no defect {name}"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::root;

    #[test]
    fn every_defect_still_applies_and_names_a_run() {
        let defects = load(root()).unwrap();
        assert!(defects.len() >= 30, "{} defects", defects.len());
        for defect in &defects {
            let text = std::fs::read_to_string(root().join(&defect.edit.file))
                .unwrap_or_else(|error| panic!("{}: {}: {error}", defect.edit.name, defect.edit.file));
            defect.edit.apply(&text).unwrap_or_else(|reason| panic!("{reason}"));
            defect.run().unwrap_or_else(|reason| panic!("{reason}"));
        }
    }

    #[test]
    fn a_find_is_stale_when_the_defect_or_its_run_changes() {
        let defect = load(root()).unwrap().remove(0);
        let digest = |defect: &Defect| defect.digest(root()).unwrap();
        let before = digest(&defect);
        assert_eq!(digest(&defect), before);
        let other = Edit { replace: "other".into(), ..defect.edit.clone() };
        assert_ne!(digest(&Defect { edit: other, ..defect.clone() }), before);
        assert_ne!(digest(&Defect { found: "clean 7".into(), ..defect }), before);
    }
}

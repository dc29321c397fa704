//! Defects: edits that break TCP or iWARP. The simulator has to find each of them: this shows that its rules
//! can find defects at all.
//!
//! `tests/sim-defects/*.toml` has a table for each defect:
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
//! `cargo run -p tests --bin mutate simulator` applies each defect to a copy of the tree, builds the
//! simulator from the copy, and runs it. The first run has the scenario and seed in `found`, with which the
//! defect was found last time. The program prints the broken rule. The program needs a build for each defect,
//! so an ordinary test checks only that the edits still apply. `tests/sim-defects/found.csv` has a digest for
//! each defect that was found. The digest covers the edit, the scenario and seed (`found`), and the code that
//! draws the parameters of this scenario. If one of them changes, the defect has to be tried again
//! (`conformance-report --check` says so).
//!
//! All defects in these files were found when they were last tried. The following defects were tried but are
//! not in the files, since another test finds them:
//!
//! - Keepalive probes are counted although the peer answers them (`rfc9293/keepalive.pkt`). In the simulator,
//!   no connection is idle for hundreds of probes.
//! - The answer to an earlier SYN is measured as a round trip
//!   (`answers_lost_in_the_handshake_make_no_long_round_trip`). This defect only makes the RTO longer, by a
//!   wait that really occurred.
//! - Bytes that overtake the end of a handshake by cookie are refused
//!   (`bytes_that_overtake_the_acknowledgement_of_a_cookie_do_not_refuse_the_connection`). No such bytes
//!   occurred in 2000 runs of `backlog`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::scenario::Scenario;
use crate::mutation::{Edit, function_text};

/// The path of the folder with the files of defects, relative to the root of the repository.
pub const DEFECTS: &str = "tests/sim-defects";
/// The file with the digests of the defects that were found.
pub const FOUND: &str = "tests/sim-defects/found.csv";
/// The file with the code that draws the parameters of the scenarios.
const SCENARIO_CODE: &str = "tests/src/sim/scenario/faults.rs";

/// An edit, and a run that finds it.
#[derive(Clone, Debug)]
pub struct Defect {
    /// The edit.
    pub edit: Edit,
    /// The scenario and the seed of a run that finds the defect.
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
    /// Returns the scenario and the seed of the run that finds the defect.
    ///
    /// # Errors
    /// If `found` is not a scenario and a seed.
    pub fn run(&self) -> Result<(Scenario, u64), String> {
        let run = self
            .found
            .split_once(' ')
            .and_then(|(scenario, seed)| Some((Scenario::find(scenario)?, seed.parse().ok()?)));
        run.ok_or_else(|| {
            format!("{}: `found` has to be a scenario and a seed, not {}", self.edit.name, self.found)
        })
    }

    /// Returns eight hexadecimal digits. The digits change with the edit, with the run that finds the edit,
    /// and with the code that draws the run's scenario.
    ///
    /// # Errors
    /// If `found` names no run, or no code draws the scenario.
    pub fn digest(&self, root: &Path) -> Result<String, String> {
        let (scenario, _) = self.run()?;
        let text = std::fs::read_to_string(root.join(SCENARIO_CODE))
            .map_err(|error| format!("{SCENARIO_CODE}: {error}"))?;
        let draws = function_text(&text, &scenario.name.replace('-', "_"))
            .ok_or_else(|| format!("{SCENARIO_CODE}: {} has no function of this name", scenario.name))?;
        Ok(self.edit.digest([self.found.clone(), draws]))
    }
}

/// Returns all defects, in the order of files and tables.
///
/// # Errors
/// If a file cannot be read or parsed, or if a defect is listed twice.
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
        return Err("a defect is listed twice".into());
    }
    Ok(defects)
}

/// Returns the digests of the defects that were found, by name. There are none if there is no record.
///
/// # Errors
/// If the record cannot be parsed.
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

/// Replaces the file [`FOUND`] with these digests.
///
/// # Errors
/// If the record cannot be written.
pub fn record(root: &Path, found: &BTreeMap<String, String>) -> Result<(), String> {
    let lines: String = found.iter().map(|(name, digest)| format!("{name},{digest}\n")).collect();
    std::fs::write(root.join(FOUND), format!("defect,digest\n{lines}"))
        .map_err(|error| format!("{FOUND}: {error}"))
}

/// Lists the defects that have changed since they were found, and the records of defects that no longer
/// exist, one on each line.
///
/// # Errors
/// If a file cannot be read.
pub fn stale(root: &Path) -> Result<Vec<String>, String> {
    let (defects, found) = (load(root)?, found(root)?);
    let mut findings = Vec::new();
    for defect in &defects {
        if found.get(&defect.edit.name) != Some(&defect.digest(root)?) {
            findings.push(format!(
                "{} or its scenario has changed, it has to be tried again: run `scripts/mutate --new`",
                defect.edit.name
            ));
        }
    }
    for name in found.keys().filter(|name| !defects.iter().any(|defect| defect.edit.name == **name)) {
        findings.push(format!("{FOUND}: there is no defect {name}: remove the line"));
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

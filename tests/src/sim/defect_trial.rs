//! Tests one deliberate defect (a mutation): applies the defect's edit to a copy of the source tree, and
//! builds the simulator there. The run that the defect names has to fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::defect::{self, Defect};
use crate::lab::{Ended, LabError, Result, Run, Scratch};
use crate::mutation::{Suite, Tree};
use crate::{ensure, lab_error};

/// Maximum duration of a build, or of the runs of one defect, on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(1200);

/// Maximum duration of one run. A run takes a second, but a defect may cause an endless loop.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// All defects, and the tree in which they are tried.
#[derive(Debug)]
pub struct Defects {
    tree: Tree,
    root: PathBuf,
    defects: Vec<Defect>,
    /// The digests of the defects that were found, by name.
    found: BTreeMap<String, String>,
    /// Number of further runs for a defect that the named run does not find, over all scenarios.
    runs: u64,
}

impl Defects {
    /// Reads the defects of the repository at `root`, and updates the copy of the tree in cargo's target
    /// folder.
    ///
    /// # Errors
    /// If the defects cannot be read, or the tree cannot be copied.
    pub fn new(root: &Path, runs: u64) -> Result<Self> {
        let defects = defect::load(root).map_err(LabError)?;
        let mut found = defect::found(root).map_err(LabError)?;
        found.retain(|name, _| defects.iter().any(|defect| defect.edit.name == *name));
        Ok(Self { tree: Tree::beside(root)?, root: root.to_owned(), defects, found, runs })
    }

    fn defect(&self, name: &str) -> Option<&Defect> {
        self.defects.iter().find(|defect| defect.edit.name == name)
    }
}

impl Suite for Defects {
    fn names(&self) -> Vec<String> {
        self.defects.iter().map(|defect| defect.edit.name.clone()).collect()
    }

    fn is_recorded(&self, name: &str) -> bool {
        self.found.contains_key(name)
    }

    fn is_current(&self, name: &str) -> bool {
        let digest = self.defect(name).and_then(|defect| defect.digest(&self.root).ok());
        digest.is_some() && digest.as_ref() == self.found.get(name)
    }

    fn attempt(&mut self, name: &str, again: bool) -> Result<String> {
        let defect = self.defect(name).ok_or_else(|| lab_error!("there is no defect of this name"))?;
        let runs = if again { 0 } else { self.runs };
        let outcome = self.tree.broken(&defect.edit, || attempt(&self.tree, defect, runs))?;
        let digest = defect.digest(&self.root).map_err(LabError)?;
        let missed = lab_error!("not found by {}{}", defect.found, outcome.many.unwrap_or_default());
        self.found.remove(name);
        let line = outcome.named.ok_or(missed)?;
        self.found.insert(name.to_owned(), digest);
        Ok(line)
    }

    fn record(&self) -> Result<()> {
        defect::record(&self.root, &self.found).map_err(LabError)
    }
}

/// The outcome of a trial of one defect.
struct TrialOutcome {
    /// The report of the named run, if it failed.
    named: Option<String>,
    /// If the named run passed: the number of other runs that failed, and the first failed run.
    many: Option<String>,
}

/// Builds the simulator, and makes the named run. If this run passes, makes `runs` other runs.
fn attempt(tree: &Tree, defect: &Defect, runs: u64) -> Result<TrialOutcome> {
    let outcome =
        tree.cargo("build", &["-p", "tests", "--no-default-features", "--bin", "simulate"], TIME_LIMIT)?;
    if !outcome.status.success() {
        return Err(lab_error!("does not build: {}", outcome.text));
    }
    let program = tree.program("simulate");
    let (scenario, seed) = defect.run().map_err(LabError)?;
    let named = simulate(&program, &["--scenario", scenario.name, "--seed", &seed.to_string()], RUN_LIMIT)?;
    let first = format!("{} {seed} at ", scenario.name);
    if let Some(line) = named.lines().find(|line| line.starts_with(&first)) {
        return Ok(TrialOutcome { named: Some(line.to_owned()), many: None });
    }
    if runs == 0 {
        return Ok(TrialOutcome { named: None, many: None });
    }
    let many = simulate(&program, &["--runs", &runs.to_string()], TIME_LIMIT)?;
    let mut failures = many.lines().filter(|line| line.starts_with("scenario "));
    let first = failures.next().map(str::to_owned);
    let many = first.map(|first| {
        let count = 1 + failures.count();
        format!(", but by {count} of {runs} runs: name the first with it, {first}")
    });
    Ok(TrialOutcome { named: None, many })
}

/// Runs the built simulator and returns its output.
fn simulate(program: &Path, arguments: &[&str], limit: Duration) -> Result<String> {
    // The captures of failed runs are not needed, so they go to a temporary folder.
    let captures = Scratch::new()?;
    let ran = Run::new("env")
        .arg(program)
        .args(arguments)
        .env("RUST_BACKTRACE", "0")
        .env("TMPDIR", captures.path())
        .spawn()?
        .finish(limit)?;
    whole(ran)
}

/// Returns the output of a simulator that has made all its runs, with or without failures. If the simulator
/// was killed, its output says nothing about the defect, so this is an error.
fn whole(ran: Ended) -> Result<String> {
    ensure!(ran.text.contains("\nseeds: "), "the simulator did not end: {}\n{}", ran.status, ran.text);
    Ok(ran.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulator_that_did_not_end_is_an_error() {
        let run = |script| {
            let run = Run::new("sh").args(["-c", script]);
            whole(run.spawn().unwrap().finish(Duration::from_secs(10)).unwrap())
        };
        assert!(run("echo; echo seeds: 1, failures: 0").is_ok());
        assert!(run("echo; echo seeds: 1, failures: 1; exit 1").is_ok());
        let killed = run("echo ecn 0; kill -KILL $$").unwrap_err().to_string();
        assert!(killed.contains("signal: 9") && killed.contains("ecn 0"), "{killed}");
        let refused = run("echo no scenario ecn; exit 2").unwrap_err().to_string();
        assert!(refused.contains("no scenario ecn"), "{refused}");
    }
}

//! Tests one mutation: applies its edit to a copy of the source tree, and runs there the tests of the
//! protocol crates that name the mutation's requirements. For each of these requirements, at least one of the
//! tests that name the requirement has to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::mutation::{self, Mutation, Trial, Trials, killer_text};
use super::proof::Test;
use super::ran::is_path_of;
use super::{Ledger, RowId};
use crate::lab::{LabError, Result, Run};
use crate::lab_error;
use crate::mutation::{Suite, Tree};

/// Maximum duration of a build on a busy machine.
const BUILD: Duration = Duration::from_secs(900);
/// Maximum duration of the tests of one program. Broken code may hang, which counts as a failure.
const TESTS: Duration = Duration::from_secs(120);

/// The tests of one file. They run separately from the tests of other files, so that a hang or a crash
/// affects only these tests.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    package: String,
    /// cargo's arguments for the target: `--lib`, or `--test` and the test's name.
    target: Vec<String>,
    tests: Vec<Test>,
}

/// All mutations, and the tree in which they are tried.
#[derive(Debug)]
pub struct Requirements {
    tree: Tree,
    root: PathBuf,
    ledger: Ledger,
    trials: Trials,
    /// Tests that have passed on the tree without a mutation.
    sound: BTreeSet<Test>,
}

impl Requirements {
    /// Reads the mutations of the repository at `root`, and updates the copy of the tree in cargo's target
    /// folder.
    ///
    /// # Errors
    /// If the ledger cannot be read or the tree cannot be copied.
    pub fn new(root: &Path) -> Result<Self> {
        let ledger = Ledger::load(root).map_err(|error| LabError::new(error.to_string()))?;
        let mut trials = ledger.trials.clone();
        trials.retain(|name, _| ledger.mutations.iter().any(|mutation| mutation.edit.name == *name));
        Ok(Self { tree: Tree::beside(root)?, root: root.to_owned(), ledger, trials, sound: BTreeSet::new() })
    }

    fn mutation(&self, name: &str) -> Option<&Mutation> {
        self.ledger.mutations.iter().find(|mutation| mutation.edit.name == name)
    }

    /// Returns the tests for a trial of a mutation: all tests that name its requirements and run without
    /// devices. With `again`, returns for each requirement only one test that found the mutation before, so
    /// that little is built.
    fn tests(&self, mutation: &Mutation, again: bool) -> Result<BTreeMap<RowId, Vec<Test>>> {
        let before = self.trials.get(&mutation.edit.name).filter(|_| again);
        let mut tests = BTreeMap::new();
        for row in &mutation.rows {
            let all = self.ledger.proofs.get(row).into_iter().flatten();
            let mut own: Vec<Test> = all.filter(|test| target(&test.file).is_some()).cloned().collect();
            if let Some(before) = before {
                own.retain(|test| before.killers.contains(&test.killer()));
                own.truncate(1);
            }
            if own.is_empty() {
                return Err(lab_error!("no test that can be run here names {row}"));
            }
            tests.insert(*row, own);
        }
        Ok(tests)
    }

    fn trial(&mut self, mutation: &Mutation, again: bool) -> Result<Trial> {
        let tests = self.tests(mutation, again)?;
        let batches = batches(tests.values().flatten().cloned().collect())?;
        self.see_sound(&batches)?;
        let failed = self.tree.broken(&mutation.edit, || {
            batches.iter().map(|batch| self.failures(batch)).collect::<Result<Vec<_>>>()
        })?;
        let failed: BTreeSet<&Test> = failed.into_iter().flatten().collect();
        if let Some((row, _)) =
            tests.iter().find(|(_, tests)| !tests.iter().any(|test| failed.contains(test)))
        {
            return Err(lab_error!("the mutation survives: no test that names {row} fails"));
        }
        let killers: Vec<String> = failed.iter().map(|test| test.killer()).collect();
        let digest = mutation.digest(&killers, &|killer| killer_text(&self.root, killer));
        Ok(Trial { digest, killers })
    }

    /// Checks that every test passes without the mutation. If a test fails without the mutation, its failure
    /// with the mutation means nothing.
    fn see_sound(&mut self, batches: &[Batch]) -> Result<()> {
        for batch in batches {
            if batch.tests.iter().all(|test| self.sound.contains(test)) {
                continue;
            }
            let failed = self.failures(batch)?;
            if let Some(test) = failed.first() {
                return Err(lab_error!("{}: {} also fails without the mutation", test.file, test.name));
            }
            self.sound.extend(batch.tests.iter().cloned());
        }
        Ok(())
    }

    /// Returns the tests of a batch that do not pass: they fail, hang, or crash their program.
    fn failures<'a>(&self, batch: &'a Batch) -> Result<Vec<&'a Test>> {
        let program = self.build(batch)?;
        let package = self.tree.path().join(&batch.package);
        // A hanging test has to be killed by the process id of its program, so cargo must not run the
        // program. `env` replaces itself by the program.
        let running = Run::new("env")
            .arg("-C")
            .arg(package)
            .arg(program)
            .args(batch.tests.iter().map(|test| &test.name))
            .env("RUST_BACKTRACE", "0")
            .spawn()?;
        let text = match running.finish(TESTS) {
            Ok(ended) => ended.text,
            Err(error) => error.to_string(),
        };
        let said = |test: &Test, what: &str| verdicts(&text, test).any(|verdict| verdict == what);
        Ok(batch.tests.iter().filter(|test| said(test, "FAILED") || !said(test, "ok")).collect())
    }

    /// Builds the program of a batch and returns its path.
    fn build(&self, batch: &Batch) -> Result<String> {
        let mut arguments = vec!["--no-run", "--message-format", "json-render-diagnostics"];
        arguments.extend(["-p", &batch.package, "--no-default-features"]);
        arguments.extend(batch.target.iter().map(String::as_str));
        let said = self.tree.cargo("test", &arguments, BUILD)?;
        if !said.status.success() {
            let words: Vec<&str> = said.text.lines().filter(|line| !line.starts_with('{')).collect();
            return Err(lab_error!("does not build: {}", words.join("\n")));
        }
        let mut programs = said.text.lines().filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(message.get("executable")?.as_str()?.to_owned())
        });
        // For a test, cargo also names the programs that the test may start. The test's own program comes
        // last.
        programs.by_ref().last().ok_or_else(|| lab_error!("{}: cargo built no program", batch.package))
    }
}

impl Suite for Requirements {
    fn names(&self) -> Vec<String> {
        self.ledger.mutations.iter().map(|mutation| mutation.edit.name.clone()).collect()
    }

    fn is_recorded(&self, name: &str) -> bool {
        self.trials.contains_key(name)
    }

    fn is_current(&self, name: &str) -> bool {
        let text = |killer: &str| killer_text(&self.root, killer);
        self.mutation(name).zip(self.trials.get(name)).is_some_and(|(it, trial)| it.is_tried(trial, &text))
    }

    fn attempt(&mut self, name: &str, again: bool) -> Result<String> {
        let mutation =
            self.mutation(name).ok_or_else(|| lab_error!("there is no mutation of this name"))?.clone();
        let trial = self.trial(&mutation, again);
        if again {
            return trial.map(|trial| format!("killed by {}", trial.killers.join("; ")));
        }
        self.trials.remove(name);
        let trial = trial?;
        let line = format!("killed by {}", trial.killers.join("; "));
        self.trials.insert(name.to_owned(), trial);
        Ok(line)
    }

    fn record(&self) -> Result<()> {
        mutation::record(&self.root, &self.trials).map_err(|error| LabError::new(error.to_string()))
    }
}

/// Returns the outcomes of `test` in a runner's output. There may be several outcomes, since other modules
/// may have tests of the same name.
fn verdicts<'a>(text: &'a str, test: &'a Test) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (path, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
        is_path_of(path.split(" - ").next()?, test).then_some(verdict)
    })
}

fn batches(tests: Vec<Test>) -> Result<Vec<Batch>> {
    let mut files: BTreeMap<String, BTreeSet<Test>> = BTreeMap::new();
    for test in tests {
        files.entry(test.file.clone()).or_default().insert(test);
    }
    let batch = |(file, tests): (String, BTreeSet<Test>)| {
        let (package, target) =
            target(&file).ok_or_else(|| lab_error!("{file} does not belong to a target"))?;
        Ok(Batch { package, target, tests: tests.into_iter().collect() })
    };
    files.into_iter().map(batch).collect()
}

/// Returns the package and cargo's target arguments for the tests of a file of the protocol crates. Returns
/// `None` for any other file, such as the file of a wire case or of a suite of `tests/tests`.
fn target(file: &str) -> Option<(String, Vec<String>)> {
    let mut parts = file.split('/');
    let folder = parts.next()?;
    let packages = [("dp", "uwarp-dp"), ("tcp-lite", "tcp-lite"), ("iwarp", "iwarp")];
    let (_, package) = packages.into_iter().find(|(name, _)| *name == folder)?;
    let words = match (parts.next()?, parts.next()?) {
        ("src", _) => vec!["--lib".to_owned()],
        ("tests", name) => vec!["--test".to_owned(), name.strip_suffix(".rs").unwrap_or(name).to_owned()],
        _ => return None,
    };
    Some((package.to_owned(), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_target() {
        let words = |file| target(file).map(|(package, words)| format!("{package} {}", words.join(" ")));
        assert_eq!(words("iwarp/src/mpa/frame/tests.rs").as_deref(), Some("iwarp --lib"));
        assert_eq!(words("iwarp/tests/memory_guard.rs").as_deref(), Some("iwarp --test memory_guard"));
        assert_eq!(words("iwarp/tests/it/ddp/wire.rs").as_deref(), Some("iwarp --test it"));
        assert_eq!(words("tests/tests/devices/siw/rping.rs"), None);
        assert_eq!(words("tests/iwprobe/src/cases/ddp.rs"), None);
    }

    #[test]
    fn a_verdict_is_found_by_file_and_name() {
        let text = "running 3 tests\ntest mpa::crc::tests::sums ... ok\ntest mpa::crc::sums_of - should panic ... FAILED\ntest mpa::sums ... FAILED\n";
        let of = |file: &str, name: &str| {
            let test = Test { file: file.into(), name: name.into() };
            verdicts(text, &test).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of("iwarp/src/mpa/crc.rs", "sums"), ["ok"]);
        assert_eq!(of("iwarp/src/mpa/crc.rs", "sums_of"), ["FAILED"]);
        assert_eq!(of("iwarp/tests/it/mpa/mod.rs", "sums"), ["FAILED"]);
        assert!(of("iwarp/src/mpa/crc.rs", "none").is_empty());
    }
}

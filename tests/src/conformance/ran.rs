//! The tests that ran (from the record that `scripts/test` writes), and the required tests that are not in
//! this record.
//!
//! The record has a line for each test: the runner, the test's path and its outcome, separated by tabs. A
//! runner is the crate or test target as cargo names its program, with its root file (`iwarp src/lib.rs`, `it
//! tests/it/main.rs`). A wire case of `iwprobe` has the runner `case`. A skipped suite has the runner
//! `skipped`, with the reason.

use std::collections::{BTreeMap, BTreeSet};

use super::Ledger;
use super::case::CASES;
use super::proof::Test;

/// The name of the suite that runs the wire cases.
const PROBE: &str = "probe";

/// The contents of the record.
#[derive(Debug, Default)]
pub struct Ran {
    /// The tests of each runner, and whether they passed.
    tests: BTreeMap<String, BTreeMap<String, bool>>,
    /// Suites that were skipped.
    skipped: BTreeSet<String>,
}

impl Ran {
    /// Parses the record. A test that ran more than once counts as passed if it passed at least once and
    /// never failed.
    ///
    /// # Errors
    /// If a line has another format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut ran = Self::default();
        for (number, line) in text.lines().enumerate() {
            let [runner, path, outcome] = line.split('\t').collect::<Vec<_>>().try_into().map_err(|_| {
                format!("line {}: `{line}` does not have runner, test and outcome", number + 1)
            })?;
            if runner == "skipped" {
                ran.skipped.insert(path.to_owned());
                continue;
            }
            let tests = ran.tests.entry(runner.to_owned()).or_default();
            match outcome {
                "ok" => _ = tests.entry(path.to_owned()).or_insert(true),
                "FAILED" => _ = tests.insert(path.to_owned(), false),
                // With any other outcome, such as `ignored`, the test did not run.
                _ => {}
            }
        }
        Ok(ran)
    }

    /// Returns a line for each proof of the ledger that did not run or failed. Wire cases may be missing if
    /// their suite was skipped; `scripts/test` checks whether the suite may be skipped.
    pub fn missing(&self, ledger: &Ledger) -> Vec<String> {
        let mut rows: BTreeMap<&Test, Vec<String>> = BTreeMap::new();
        for (row, tests) in &ledger.proofs {
            for test in tests {
                rows.entry(test).or_default().push(row.to_string());
            }
        }
        rows.retain(|test, _| !self.has(test));
        let line = |(test, rows): (&Test, Vec<String>)| {
            format!("{}: {} did not run, but has to prove {}", test.file, test.name, rows.join(", "))
        };
        rows.into_iter().map(line).collect()
    }

    fn has(&self, test: &Test) -> bool {
        if test.file.starts_with(CASES) {
            let cases = self.tests.get("case");
            return self.skipped.contains(PROBE)
                || cases.is_some_and(|cases| cases.get(&test.name) == Some(&true));
        }
        let Some((runner, _)) = place(&test.file) else { return false };
        let tests = self.tests.get(&runner).into_iter().flatten();
        let own = tests.filter(|(path, _)| is_path_of(path, test));
        let passed: Vec<bool> = own.map(|(_, passed)| *passed).collect();
        !passed.is_empty() && passed.into_iter().all(|passed| passed)
    }
}

/// Whether the runner of `test` reports this test by the name `path`. Between the module of the file and the
/// test there may be a module `tests` inside the file.
pub(super) fn is_path_of(path: &str, test: &Test) -> bool {
    let Some((_, module)) = place(&test.file) else { return false };
    let inner = path.strip_prefix(&module).and_then(|path| path.strip_suffix(&test.name));
    inner.is_some_and(|inner| inner.split("::").all(|part| part.is_empty() || part == "tests"))
}

/// Returns the runner of the tests in a file, and the prefix of their paths.
fn place(file: &str) -> Option<(String, String)> {
    let (folder, rest) = file
        .split_once("/src/")
        .map(|(package, rest)| (package, ("src", rest)))
        .or_else(|| file.split_once("/tests/").map(|(package, rest)| (package, ("tests", rest))))?;
    let parts: Vec<&str> = rest.1.strip_suffix(".rs")?.split('/').collect();
    let (runner, modules) = match (rest.0, parts.split_first()?) {
        ("src", _) => {
            let package = folder.rsplit('/').next()?.replace('-', "_");
            (format!("{package} src/lib.rs"), &parts[..])
        }
        (_, (target, [])) => (format!("{target} tests/{target}.rs"), &[][..]),
        (_, (target, modules)) => (format!("{target} tests/{target}/main.rs"), modules),
    };
    let modules = modules.iter().filter(|name| !["mod", "lib", "main"].contains(name));
    Some((runner, modules.map(|name| format!("{name}::")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(file: &str, name: &str) -> Test {
        Test { file: file.into(), name: name.into() }
    }

    #[test]
    fn a_file_has_its_runner_and_module() {
        let of = |file| place(file).map(|(runner, module)| format!("{runner} {module}"));
        for (file, expected) in [
            ("iwarp/src/mpa/framer/tests.rs", "iwarp src/lib.rs mpa::framer::tests::"),
            ("tcp-lite/src/tcp/mod.rs", "tcp_lite src/lib.rs tcp::"),
            ("tests/src/conformance/row.rs", "tests src/lib.rs conformance::row::"),
            ("iwarp/tests/memory_guard.rs", "memory_guard tests/memory_guard.rs "),
            ("iwarp/tests/it/stream/sent.rs", "it tests/it/main.rs stream::sent::"),
            ("iwarp/tests/it/model/mod.rs", "it tests/it/main.rs model::"),
        ] {
            assert_eq!(of(file).as_deref(), Some(expected));
        }
        assert_eq!(of("build.rs"), None);
    }

    #[test]
    fn a_proof_is_what_ran_and_passed() {
        let ran = Ran::parse(
            "iwarp src/lib.rs\tmpa::framer::tests::golden\tok\niwarp src/lib.rs\tmpa::crc::golden\tok\n\
             iwarp src/lib.rs\tmpa::framer::tests::slow\tignored\niwarp src/lib.rs\tddp::bad\tok\n\
             iwarp src/lib.rs\tddp::bad\tFAILED\nit tests/it.rs\tworks\tok\ncase\tone\tok\n",
        )
        .unwrap();
        for (file, name, has) in [
            ("iwarp/src/mpa/framer/tests.rs", "golden", true),
            ("iwarp/src/mpa/framer.rs", "golden", true),
            ("iwarp/src/mpa/crc.rs", "golden", true),
            ("iwarp/src/mpa/mod.rs", "golden", false),
            ("iwarp/src/mpa/framer/tests.rs", "slow", false),
            ("iwarp/src/ddp/mod.rs", "bad", false),
            ("iwarp/tests/it.rs", "works", true),
            ("iwarp/tests/other.rs", "works", false),
            ("iwarp/tests/it.rs", "orks", false),
            ("tests/iwprobe/src/cases/a.rs", "one", true),
            ("tests/iwprobe/src/cases/a.rs", "two", false),
        ] {
            assert_eq!(ran.has(&test(file, name)), has, "{file}: {name}");
        }
    }

    #[test]
    fn cases_are_excused_where_their_suite_was_skipped() {
        let case = test("tests/iwprobe/src/cases/a.rs", "one");
        assert!(Ran::parse("skipped\tprobe\tnetwork namespaces need root\n").unwrap().has(&case));
        assert!(!Ran::parse("skipped\tsiw\tno image\n").unwrap().has(&case));
        assert!(!Ran::parse("").unwrap().has(&case));
        assert!(Ran::parse("case\tone\n").is_err());
    }
}

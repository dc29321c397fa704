//! Compares the sections of `scripts/test` with cargo's targets, since a test that no section runs proves
//! nothing.
//!
//! `scripts/test --list` prints the commands. This module parses each `cargo test` in this output. A feature
//! counts as tested if a section tests its package with the feature enabled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Targets and features that no section has to run, with the reasons.
pub const EXCUSED: [(&str, &str); 9] = [
    ("fuzz bin fuzz", "libFuzzer's program, which runs without end: `scripts/fuzz`"),
    (
        "fuzz feature libfuzzer",
        "needs instrumented code: `scripts/fuzz`; its targets replay their corpora without",
    ),
    ("iwarp-tokio feature dpdk", "selects only that of `iwarp-wire`: its own code is the same without"),
    ("iwarp-tokio feature vhost", "as `iwarp-tokio feature dpdk`"),
    ("benches bench primitives", "only prints times; `clippy --all-targets` builds it"),
    ("uwarp-dp example frames", "only prints the rate of a device; `cargo test` builds it"),
    ("uwarp-dp example local", "only prints the rate and the times of a wire; `cargo test` builds it"),
    ("uwarp-dp example nic", "needs a NIC that is bound to a driver for user space; `cargo test` builds it"),
    ("tcp-lite example loopback", "only prints a rate; `cargo test` builds it"),
];

/// The output of `cargo metadata --no-deps`.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    features: BTreeMap<String, Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
    test: bool,
    doctest: bool,
    #[serde(default, rename = "required-features")]
    required_features: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// The name by which features refer to the dependency, if it differs from `name`.
    rename: Option<String>,
    kind: Option<String>,
    features: Vec<String>,
    uses_default_features: bool,
}

impl Package {
    /// Returns the package and the feature that an entry of this package's features enables: a feature of a
    /// dependency or of this package.
    fn brought<'a>(&'a self, entry: &'a str) -> (&'a str, &'a str) {
        let Some((called, feature)) = entry.split_once('/') else { return (&self.name, entry) };
        let is_meant = |it: &&Dependency| it.rename.as_deref() == Some(called);
        (self.dependencies.iter().find(is_meant).map_or(called, |it| &it.name), feature)
    }
}

impl Target {
    /// Whether the root file has no tests and no modules that could have tests.
    fn has_no_tests(&self) -> Result<bool, String> {
        let text = fs::read_to_string(&self.src_path)
            .map_err(|error| format!("{}: {error}", self.src_path.display()))?;
        Ok(!text.lines().any(|line| line.contains("#[test]") || line.starts_with("mod ")))
    }
}

/// The arguments of one `cargo test`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Command {
    packages: Vec<String>,
    workspace: bool,
    excluded: Vec<String>,
    /// The selected targets as `(kind, name)`. `None` as name selects all targets of the kind. Without
    /// entries, the command runs the targets that `cargo test` runs by default.
    targets: Vec<(&'static str, Option<String>)>,
    features: Vec<String>,
    no_default_features: bool,
}

impl Command {
    /// Parses the `cargo test` in a line of `scripts/test --list`. Returns `None` if the line has no `cargo
    /// test`.
    fn parse(line: &str) -> Result<Option<Self>, String> {
        let mut words = line.split_whitespace().skip_while(|word| *word != "cargo").skip(1);
        if words.next() != Some("test") {
            return Ok(None);
        }
        let mut command = Self::default();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().map(str::to_owned).ok_or_else(|| format!("{line}: nothing follows {word}"));
            match word {
                "-p" | "--package" => command.packages.push(value()?),
                "--workspace" => command.workspace = true,
                "--exclude" => command.excluded.push(value()?),
                "--lib" => command.targets.push(("lib", None)),
                "--bins" => command.targets.push(("bin", None)),
                "--doc" => command.targets.push(("doctest", None)),
                "--benches" => command.targets.push(("bench", None)),
                "--test" => command.targets.push(("test", Some(value()?))),
                "--bin" => command.targets.push(("bin", Some(value()?))),
                "--bench" => command.targets.push(("bench", Some(value()?))),
                "--features" => command.features.extend(value()?.split(',').map(str::to_owned)),
                "--no-default-features" => command.no_default_features = true,
                "--quiet" | "--release" | "--no-fail-fast" => {}
                // The words after `--` are arguments of the test programs.
                "--" => break,
                _ => return Err(format!("{line}: {word} is not understood here")),
            }
        }
        Ok(Some(command))
    }

    fn selects(&self, package: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|name| name == package);
        named(&self.packages) || (self.workspace && !named(&self.excluded))
    }

    /// Whether the command runs `target`. The caller checks that the command selects the package of `target`
    /// and enables its required features.
    fn runs(&self, target: &Target) -> bool {
        let is = |kind: &str| target.kind.iter().any(|it| it == kind);
        if self.targets.is_empty() {
            return target.test;
        }
        self.targets.iter().any(|(kind, name)| {
            is(kind) && name.as_ref().is_none_or(|name| *name == target.name) && (target.test || is("bench"))
        })
    }

    /// Whether the command runs the examples in the documentation of the packages that it selects.
    fn runs_examples_of_documents(&self) -> bool {
        self.targets.is_empty() || self.targets.contains(&("doctest", None))
    }

    /// Returns the enabled features, as `(package, feature)`: the features of the command and of
    /// dependencies, and the features that these features enable.
    fn features<'a>(&'a self, packages: &'a [Package]) -> BTreeSet<(&'a str, &'a str)> {
        let find = |name: &str| packages.iter().find(|package| package.name == name);
        let (mut on, mut todo) = (BTreeSet::new(), Vec::new());
        let (mut seen, mut reached) = (BTreeSet::new(), Vec::new());
        for package in packages.iter().filter(|package| self.selects(&package.name)) {
            if !self.no_default_features {
                todo.push((package.name.as_str(), "default"));
            }
            for feature in &self.features {
                todo.push(feature.split_once('/').unwrap_or((&package.name, feature)));
            }
            reached.push((package, true));
        }
        while let Some((package, selected)) = reached.pop() {
            if !seen.insert((package.name.as_str(), selected)) {
                continue;
            }
            for dependency in &package.dependencies {
                let counts = selected || dependency.kind.as_deref() != Some("dev");
                let Some(found) = find(&dependency.name).filter(|_| counts) else { continue };
                todo.extend(
                    dependency.features.iter().map(|feature| (found.name.as_str(), feature.as_str())),
                );
                if dependency.uses_default_features {
                    todo.push((&found.name, "default"));
                }
                reached.push((found, false));
            }
        }
        while let Some((name, feature)) = todo.pop() {
            let Some(package) = find(name) else { continue };
            let Some(brings) = package.features.get(feature) else { continue };
            if on.insert((name, feature)) {
                todo.extend(brings.iter().map(|it| package.brought(it)));
            }
        }
        on
    }
}

/// Lists the targets and features that no section runs, one on each line. `sections` is the output of
/// `scripts/test --list`. `names` returns whether the tests in a package's folder run an example.
///
/// # Errors
/// If a command cannot be parsed, or a root file cannot be read.
pub fn unrun(
    metadata: &Metadata,
    sections: &str,
    names: &dyn Fn(&Path, &str) -> bool,
) -> Result<Vec<String>, String> {
    let commands = sections.lines().map(Command::parse).collect::<Result<Vec<_>, _>>()?;
    let commands: Vec<Command> = commands.into_iter().flatten().collect();
    let on: Vec<_> = commands.iter().map(|command| command.features(&metadata.packages)).collect();
    let mut found = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let folder = package.manifest_path.parent().unwrap_or(Path::new("."));
        let of_package = || commands.iter().zip(&on).filter(|(command, _)| command.selects(name));
        for target in &package.targets {
            let has_features = |on: &BTreeSet<(&str, &str)>| {
                target.required_features.iter().all(|feature| on.contains(&(name, feature.as_str())))
            };
            let kind = target.kind.first().map_or("", String::as_str);
            let run = of_package().any(|(command, on)| command.runs(target) && has_features(on))
                || kind == "custom-build"
                || (kind == "bin" && !target.test && target.has_no_tests()?)
                || (kind == "example" && names(folder, &target.name));
            if !run {
                found.push(format!("{name} {kind} {}", target.name));
            }
            if target.doctest && !of_package().any(|(command, _)| command.runs_examples_of_documents()) {
                found.push(format!("{name} doctest {}", target.name));
            }
        }
        for feature in package.features.keys().filter(|feature| !feature.starts_with("dep:")) {
            if !of_package().any(|(_, on)| on.contains(&(name, feature.as_str()))) {
                found.push(format!("{name} feature {feature}"));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::root;
    use crate::lab::Run;

    const TEN_SECONDS: std::time::Duration = std::time::Duration::from_secs(10);

    fn metadata() -> Metadata {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let run = Run::new(PathBuf::from(cargo)).args(["metadata", "--no-deps", "--format-version", "1"]);
        let said = run.arg("--manifest-path").arg(root().join("Cargo.toml")).check(TEN_SECONDS).unwrap();
        let json = said.lines().find(|line| line.starts_with('{')).expect("an object");
        serde_json::from_str(json).unwrap()
    }

    fn sections() -> String {
        Run::new(root().join("scripts/test")).arg("--list").check(TEN_SECONDS).unwrap()
    }

    /// Whether the package's tests of examples contain the call that runs this example.
    fn is_run_by_a_test(folder: &Path, example: &str) -> bool {
        let path = folder.join("tests/examples.rs");
        fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("run(\"{example}\")")))
    }

    fn found(sections: &str) -> BTreeSet<String> {
        unrun(&metadata(), sections, &is_run_by_a_test).unwrap().into_iter().collect()
    }

    #[test]
    fn every_test_target_and_every_feature_is_in_a_section_or_excused() {
        let excused: BTreeSet<String> = EXCUSED.iter().map(|(what, _)| (*what).to_owned()).collect();
        assert_eq!(
            found(&sections()),
            excused,
            "left: what no section of scripts/test runs; right: what is excused"
        );
    }

    /// `scripts/test` finds a test by the first two cells of its line. A line in another form, or with a
    /// section that does not exist, would have no effect.
    #[test]
    fn each_line_of_the_register_names_a_test_and_its_section() {
        let register = fs::read_to_string(root().join("tests/flaky.md")).unwrap();
        let listed = sections();
        let lines: Vec<&str> = register.lines().filter(|line| line.starts_with("| `")).collect();
        assert!(!lines.is_empty(), "no line starts with the name of a test");
        for line in lines {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [test, section, date, seen, cause] = cells[..] else { panic!("five cells: {line}") };
            assert!(test.len() > 2 && test.ends_with('`') && !test.contains(' '), "{line}");
            assert!(listed.lines().any(|it| it.starts_with(&format!("{section}: "))), "{section}: {line}");
            assert!(date.len() == 10 && !seen.is_empty() && !cause.is_empty(), "{line}");
        }
    }

    /// Returns the names of the suites of the test target `devices`. Each suite is a file or a folder.
    fn suites() -> BTreeSet<String> {
        let files = fs::read_dir(root().join("tests/tests/devices")).unwrap();
        let names = files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
        names.filter(|name| name != "main").collect()
    }

    #[test]
    fn every_suite_over_devices_has_its_section() {
        let listed = sections();
        let named = listed.lines().filter_map(|line| line.split_once("--test devices -- "));
        let named: BTreeSet<String> = named.map(|(_, suite)| suite.to_owned()).collect();
        assert_eq!(named, suites(), "left: the sections of scripts/test; right: tests/tests/devices");
    }

    /// With `--help` or `-h`, a script says what it does, and does nothing else. Some scripts would otherwise
    /// install packages or measure for an hour.
    #[test]
    fn every_script_says_what_it_does() {
        let mut asked = 0;
        for entry in fs::read_dir(root().join("scripts")).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap_or_default();
            if !text.contains("/lib.sh\"\n") {
                continue;
            }
            asked += 1;
            let first = text.lines().nth(1).unwrap().trim_start_matches("# ");
            for help in ["--help", "-h"] {
                let output = std::process::Command::new("timeout").arg("20").arg(&path).arg(help).output();
                let output = output.unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success() && said.starts_with(first), "{}: {said}", path.display());
                assert!(!said.contains("===="), "{}: {said}", path.display());
            }
        }
        assert!(asked >= 10, "{asked}");
    }

    #[test]
    fn a_section_that_is_gone_is_missed() {
        let all = sections();
        let without = |section: &str| {
            all.lines()
                .filter(|line| !line.starts_with(&format!("{section}: ")))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let missed = |section: &str| {
            let excused = |it: &String| EXCUSED.iter().any(|(what, _)| what == it);
            found(&without(section)).into_iter().filter(|it| !excused(it)).collect::<Vec<_>>()
        };
        assert_eq!(missed("placement"), ["tests test placement"]);
        assert!(missed("unit").contains(&"fuzz lib fuzz".to_owned()));
        assert!(missed("unit").contains(&"measure bin measure".to_owned()));
        assert!(missed("integration").contains(&"uwarp-dp test dpdk".to_owned()));
        assert!(missed("integration").contains(&"fuzz test replay".to_owned()));
        assert!(missed("doc").contains(&"iwarp-tokio doctest iwarp_tokio".to_owned()));
    }

    #[test]
    fn a_program_that_may_have_tests_needs_a_test_program() {
        let target = |path: &str| Target {
            name: "it".into(),
            kind: vec!["bin".into()],
            src_path: root().join(path),
            test: false,
            doctest: false,
            required_features: Vec::new(),
        };
        assert_eq!(target("benches/src/main.rs").has_no_tests(), Ok(true));
        assert_eq!(target("tests/src/bin/bad-write.rs").has_no_tests(), Ok(false), "it has a test");
        assert_eq!(target("tests/src/bin/verbs-scenes/main.rs").has_no_tests(), Ok(false), "it has modules");
        assert!(target("no/such/file.rs").has_no_tests().is_err());
    }

    #[test]
    fn words_that_are_not_understood_are_refused() {
        assert_eq!(Command::parse("siw: scripts/instructions"), Ok(None));
        let known =
            Command::parse("it: env A=b cargo test --quiet -p dp --test eal -- --skip x").unwrap().unwrap();
        assert_eq!((known.packages, known.targets), (vec!["dp".into()], vec![("test", Some("eal".into()))]));
        assert!(Command::parse("it: cargo test --all-features").is_err());
        assert!(Command::parse("it: cargo test -p").is_err());
    }
}

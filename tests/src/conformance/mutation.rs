//! Mutations: edits that break requirements. For each broken requirement, at least one of the tests that name
//! the requirement has to fail.
//!
//! `tests/conformance/mutations/*.toml` has a table for each mutation:
//!
//! ```toml
//! [[mutation]]
//! name = "ddp-version-unchecked"
//! rows = ["DDP-058"]
//! file = "iwarp/src/ddp/header.rs"
//! find = "version != VERSION"
//! replace = "false"
//! ```
//!
//! `tests/conformance/mutations.csv` has the result of the last trial of each mutation, with a digest of the
//! edit, the requirements, and the names and texts of the tests that failed. A mutation causes a finding if
//! its edit or its requirements have changed, or if the text to find no longer occurs exactly once. A test
//! causes a finding if it has changed since it failed.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::{Error, MUTATIONS, Result, RowId, TRIALS, files, read, write};
use crate::mutation::{Edit, function_text};

/// An edit, and the requirements that the edit breaks.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// The edit.
    pub edit: Edit,
    /// The requirements that the edit breaks.
    pub rows: Vec<RowId>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutation: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    rows: Vec<String>,
    file: String,
    find: String,
    replace: String,
}

impl Mutation {
    /// Returns eight hexadecimal digits. The digits change with the edit, with the requirements that the edit
    /// breaks, and with the names and the texts of `killers`, the tests that find the mutation. `text`
    /// returns the text of a test.
    pub fn digest(&self, killers: &[String], text: &dyn Fn(&str) -> Option<String>) -> String {
        let killers = killers.iter().flat_map(|killer| [killer.clone(), text(killer).unwrap_or_default()]);
        self.edit.digest(self.rows.iter().map(RowId::to_string).chain(killers))
    }

    /// Whether a trial was made with the current mutation and the current tests.
    pub fn is_tried(&self, trial: &Trial, text: &dyn Fn(&str) -> Option<String>) -> bool {
        trial.killers.iter().all(|killer| text(killer).is_some())
            && trial.digest == self.digest(&trial.killers, text)
    }
}

/// Returns the text of a test that a record names as `file: name`; `None` if there is no such test.
pub fn killer_text(root: &Path, killer: &str) -> Option<String> {
    let (file, name) = killer.split_once(": ")?;
    function_text(&read(root, file).ok()?, name)
}

/// The result of a trial: the tests that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The [`Mutation::digest`] with the texts of these tests at the time of the trial.
    pub digest: String,
    /// `file: name` of each failed test that names a requirement of the mutation.
    pub killers: Vec<String>,
}

/// Trials by the name of their mutation.
pub type Trials = BTreeMap<String, Trial>;

/// Returns all mutations, and the errors in them.
///
/// # Errors
/// If a file cannot be read or parsed.
pub fn load(root: &Path) -> Result<(Vec<Mutation>, Vec<String>)> {
    let (mut mutations, mut findings): (Vec<Mutation>, _) = (Vec::new(), Vec::new());
    for path in files(root, MUTATIONS, "toml")? {
        for mutation in
            parse(&read(root, &path)?).map_err(|reason| Error::Form { path: path.clone(), reason })?
        {
            if mutations.iter().any(|other| other.edit.name == mutation.edit.name) {
                findings.push(format!("{path}: {} is listed twice", mutation.edit.name));
            }
            let applied = std::fs::read_to_string(root.join(&mutation.edit.file))
                .map_err(|error| format!("{}: {}: {error}", mutation.edit.name, mutation.edit.file))
                .and_then(|text| mutation.edit.apply(&text));
            if let Err(reason) = applied {
                findings.push(format!("{path}: {reason}"));
            }
            mutations.push(mutation);
        }
    }
    Ok((mutations, findings))
}

fn parse(text: &str) -> std::result::Result<Vec<Mutation>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let mutations = file.mutation.into_iter().map(|Entry { name, rows, file, find, replace }| {
        let rows = rows.iter().map(|row| row.parse()).collect::<std::result::Result<Vec<_>, _>>()?;
        if rows.is_empty() {
            return Err(format!("{name} names no row"));
        }
        Ok(Mutation { edit: Edit { name, file, find, replace }, rows })
    });
    mutations.collect()
}

/// Returns the recorded trials; none if there is no record.
///
/// # Errors
/// If the record cannot be read.
pub fn trials(root: &Path) -> Result<Trials> {
    if !root.join(TRIALS).exists() {
        return Ok(Trials::new());
    }
    let text = read(root, TRIALS)?;
    let mut trials = Trials::new();
    for record in csv::Reader::from_reader(text.as_bytes()).records() {
        let record =
            record.map_err(|error| Error::Form { path: TRIALS.into(), reason: error.to_string() })?;
        let [name, digest, killers] = std::array::from_fn(|i| record.get(i).unwrap_or("").to_owned());
        let killers = killers.split("; ").map(str::to_owned).collect();
        trials.insert(name, Trial { digest, killers });
    }
    Ok(trials)
}

/// Replaces the file of the trials with these trials.
///
/// # Errors
/// If the record cannot be written.
pub fn record(root: &Path, trials: &Trials) -> Result<()> {
    let fault =
        |error: &dyn std::fmt::Display| Error::Form { path: TRIALS.into(), reason: error.to_string() };
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["mutation", "digest", "killed_by"]).map_err(|error| fault(&error))?;
    for (name, Trial { digest, killers }) in trials {
        writer.write_record([name, digest, &killers.join("; ")]).map_err(|error| fault(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| fault(&error))?;
    write(root, TRIALS, &String::from_utf8_lossy(&bytes))
}

/// Compares the record with the mutations. These are findings: a mutation without a trial of its current edit
/// and tests, and a trial without a mutation. `text` returns the text of a test.
pub fn compare(
    mutations: &[Mutation],
    trials: &Trials,
    text: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    for mutation in mutations {
        let name = &mutation.edit.name;
        if trials.get(name).is_none_or(|trial| !mutation.is_tried(trial, text)) {
            findings.push(format!(
                "{name} or its tests have changed, it has to be tried again: run `scripts/mutate --new`"
            ));
        }
    }
    for name in trials.keys().filter(|name| !mutations.iter().any(|it| it.edit.name == **name)) {
        findings.push(format!("{TRIALS}: there is no mutation {name}: remove the line"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "[[mutation]]\nname = \"n\"\nrows = [\"DDP-001\"]\nfile = \"f\"\nfind = '''a\nb'''\nreplace = \"c\"\n";

    #[test]
    fn what_is_no_mutation_is_refused() {
        assert!(parse(&ONE.replace("DDP-001", "DDP-1")).is_err());
        assert!(parse(&ONE.replace("\"DDP-001\"", "")).is_err());
        assert!(parse(&ONE.replace("find", "search")).is_err());
    }

    #[test]
    fn a_changed_mutation_has_to_be_tried_again() {
        let text = |_: &str| Some("fn it() {}".to_owned());
        let mutations = parse(ONE).unwrap();
        let killers = vec!["a.rs: it".to_owned()];
        let trial = Trial { digest: mutations[0].digest(&killers, &text), killers: killers.clone() };
        let trials = Trials::from([("n".into(), trial.clone())]);
        assert!(compare(&mutations, &trials, &text).is_empty());
        assert_eq!(compare(&mutations, &Trials::new(), &text).len(), 1);
        let changed = parse(&ONE.replace("\"c\"", "\"d\"")).unwrap();
        assert_eq!(compare(&changed, &trials, &text).len(), 1);
        assert_eq!(compare(&[], &trials, &text).len(), 1);
        let moved = parse(&ONE.replace("'''a\nb'''", "'a'").replace("\"c\"", "\"b\\nc\"")).unwrap();
        assert_ne!(moved[0].digest(&killers, &text), trial.digest);
    }

    #[test]
    fn a_kill_is_stale_when_its_test_changes_or_goes() {
        let before = |_: &str| Some("fn it() { assert!(a) }".to_owned());
        let mutations = parse(ONE).unwrap();
        let killers = vec!["a.rs: it".to_owned()];
        let trial = Trial { digest: mutations[0].digest(&killers, &before), killers };
        let trials = Trials::from([("n".into(), trial)]);
        assert!(compare(&mutations, &trials, &before).is_empty());
        let after = |_: &str| Some("fn it() { assert!(true) }".to_owned());
        assert_eq!(compare(&mutations, &trials, &after).len(), 1);
        assert_eq!(compare(&mutations, &trials, &|_| None).len(), 1);
    }
}

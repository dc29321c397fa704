//! The last figures of each kind of machine: a file of JSON for each kind, with an object for each row.

use std::collections::BTreeMap;
use std::path::Path;

use benches::machine::MachineInfo;
use serde::{Deserialize, Serialize};

/// The last figures of one kind of machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// The processor.
    pub(super) kind: String,
    /// The rows by name.
    pub(super) rows: BTreeMap<String, KeptRow>,
}

/// One row of `scripts/compare`: its median pair in the worse direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptRow {
    /// The day of the run, or the month if the day is not known.
    pub(crate) date: String,
    /// The kernel on which the row was measured.
    pub(crate) kernel: String,
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    pub(crate) unit: String,
    pub(crate) ratio: f64,
    /// Smallest and largest ratio.
    pub(crate) spread: [f64; 2],
    /// The distances of the two cores, as the table shows them. Absent if the row did not use two pinned
    /// cores, or is from a run that did not measure the distance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) one_way: Option<String>,
}

/// Returns the kind of a machine: the processor's name without its clock rate, its marks and its general
/// words.
pub(super) fn kind(machine: &MachineInfo) -> String {
    let (name, model) = machine.cpu.split_once(" (family ").unwrap_or((&machine.cpu, ""));
    let name = name.split('@').next().unwrap_or_default().replace("(R)", "").replace("(TM)", "");
    let words: Vec<&str> =
        name.split_whitespace().filter(|word| !["CPU", "Processor"].contains(word)).collect();
    let name = words.join(" ");
    if model.is_empty() { name } else { format!("{name} (family {model}") }
}

/// Returns the name of the file of a kind.
fn file_name(kind: &str) -> String {
    let words: Vec<String> = kind
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    format!("{}.json", words.join("-"))
}

/// Puts `rows` into the file of this machine's kind in `folder`. A row replaces the row of the same name. The
/// other rows of the file stay.
///
/// # Errors
/// Fails if the file cannot be read or written, or is no file of this kind.
pub(crate) fn keep(
    folder: &Path,
    machine: &MachineInfo,
    rows: impl IntoIterator<Item = (String, KeptRow)>,
) -> Result<(), String> {
    let kind = kind(machine);
    let path = folder.join(file_name(&kind));
    let mut all = match path.exists() {
        true => read(&path)?,
        false => Kind { kind: kind.clone(), rows: BTreeMap::new() },
    };
    if all.kind != kind {
        return Err(format!("{} is of another kind: {}", path.display(), all.kind));
    }
    all.rows.extend(rows);
    let text = serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?;
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, format!("{text}\n")))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads the files of all kinds in `folder`, in the order of their names.
///
/// # Errors
/// Fails if the folder or a file cannot be read.
pub(super) fn read_all(folder: &Path) -> Result<Vec<Kind>, String> {
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<Kind, String> {
    let error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|reason| error(&reason))?;
    serde_json::from_str(&text).map_err(|reason| error(&reason))
}

#[cfg(test)]
pub(super) mod tests {
    use testing::lab::Scratch;

    use super::*;

    pub(crate) fn row(date: &str, ours: f64, theirs: f64) -> KeptRow {
        KeptRow {
            date: date.to_owned(),
            kernel: "Linux 6.18".to_owned(),
            ours,
            theirs,
            unit: "Gb/s".to_owned(),
            ratio: ours / theirs,
            spread: [0.5, 2.0],
            one_way: None,
        }
    }

    fn machine(cpu: &str) -> MachineInfo {
        MachineInfo { cpu: cpu.to_owned(), ..MachineInfo::here() }
    }

    #[test]
    fn a_kind_is_a_processor_without_its_clock_rate() {
        let kinds = [
            "Intel(R) Xeon(R) Processor @ 2.70GHz (family 6, model 207)",
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz (family 6, model 143)",
            "AMD EPYC (family 25, model 1)",
            "unknown processor",
        ]
        .map(|cpu| kind(&machine(cpu)));
        assert_eq!(
            kinds[..2],
            ["Intel Xeon (family 6, model 207)", "Intel Xeon Platinum 8481C (family 6, model 143)"]
        );
        assert_eq!(kinds[2..], ["AMD EPYC (family 25, model 1)", "unknown processor"]);
        assert_eq!(file_name(&kinds[2]), "amd-epyc-family-25-model-1.json");
    }

    #[test]
    fn a_new_row_replaces_its_predecessor_and_no_other() {
        let scratch = Scratch::new().unwrap();
        let folder = scratch.file("kept");
        let [old, new] = ["2026-11-01", "2026-11-30"];
        let epyc = machine("AMD EPYC (family 25, model 1)");
        let both = [("send".to_owned(), row(old, 1.0, 2.0)), ("read".to_owned(), row(old, 3.0, 2.0))];
        keep(&folder, &epyc, both).unwrap();
        keep(&folder, &epyc, [("send".to_owned(), row(new, 5.0, 2.0))]).unwrap();
        keep(&folder, &machine("Other"), [("send".to_owned(), row(new, 7.0, 2.0))]).unwrap();
        std::fs::write(folder.join("notes.txt"), "no JSON").unwrap();
        let kinds = read_all(&folder).unwrap();
        let names: Vec<&str> = kinds.iter().map(|kind| kind.kind.as_str()).collect();
        assert_eq!(names, ["AMD EPYC (family 25, model 1)", "Other"]);
        assert_eq!(kinds[0].rows["send"], row(new, 5.0, 2.0));
        assert_eq!(kinds[0].rows["read"], row(old, 3.0, 2.0));
        assert_eq!(kinds[1].rows.len(), 1);
    }

    #[test]
    fn a_file_of_another_kind_is_not_changed() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.file("amd-epyc-family-25-model-1.json");
        let text = r#"{ "kind": "AMD EPYC (family 25, model 2)", "rows": {} }"#;
        std::fs::write(&path, text).unwrap();
        let folder = path.parent().unwrap();
        let error = keep(folder, &machine("AMD EPYC (family 25, model 1)"), []).unwrap_err();
        assert!(error.contains("another kind"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

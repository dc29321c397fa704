//! Finds the wire cases of `iwprobe` in its source. `any("name", "DDP-001 DDP-002").about("...")` names a
//! case and the requirements that the case tests.

use std::path::Path;

use super::proof::{Proof, Test};
use super::row::RowId;
use super::{Result, files, read};

/// The folder with the sources of the cases.
pub(super) const CASES: &str = "tests/iwprobe/src/cases";

/// Returns the cases in the repository, and the errors in them.
///
/// # Errors
/// If a file cannot be read.
pub fn load(root: &Path) -> Result<(Vec<Proof>, Vec<String>)> {
    let (mut proofs, mut findings) = (Vec::new(), Vec::new());
    for path in files(root, CASES, "rs")? {
        for found in scan(&path, &read(root, &path)?) {
            match found {
                Ok(proof) => proofs.push(proof),
                Err(finding) => findings.push(finding),
            }
        }
    }
    Ok((proofs, findings))
}

fn scan(path: &str, text: &str) -> Vec<std::result::Result<Proof, String>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(".about(") {
        let line = text[..at].lines().count().max(1);
        if !text[..at].lines().last().is_some_and(|line| line.trim_start().starts_with("//")) {
            let head = read_head(&text[..at]).map(|(name, rows)| Proof {
                rows,
                test: Test { file: path.to_owned(), name },
                line,
            });
            found.push(head.map_err(|reason| format!("{path}:{line}: {reason}")));
        }
    }
    found
}

/// Returns the name and the requirements of the case whose head is the end of `text`.
fn read_head(text: &str) -> std::result::Result<(String, Vec<RowId>), String> {
    let arguments = text.trim_end().strip_suffix(')').map(|text| text.trim_end_matches([' ', '\n', ',']));
    let arguments = arguments.and_then(|text| Some(text.rsplit_once('(')?.1.trim()));
    let strings = arguments.and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    let strings: Vec<&str> = strings.map(|text| text.split('"').step_by(2).collect()).unwrap_or_default();
    let [name, rows] = strings[..] else {
        return Err("`.about` has no name and rows above, as in `any(\"name\", \"DDP-001\")`".into());
    };
    let rows = rows.split_whitespace().filter(|word| *word != "\\").map(str::parse);
    Ok((name.to_owned(), rows.collect::<std::result::Result<_, String>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_name_and_rows() {
        let text = "any(\"one\", \"DDP-001 MPA-002\")\n    .about(\"it (\")\n    .run(|p| a(p)),\n\
                    responder(\n    \"two\",\n    \"SEC-003 \\\n     SEC-004\",\n)\n.about(\"b\")";
        let found: Vec<Proof> = scan("c.rs", text).into_iter().map(|it| it.unwrap()).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].test.name.as_str(), found[0].rows.len(), found[0].line), ("one", 2, 2));
        assert_eq!((found[1].test.name.as_str(), found[1].rows.len()), ("two", 2));
        let without = &scan("c.rs", "any(\"three\", \"\").about(\"c\")")[0];
        assert!(without.as_ref().is_ok_and(|proof| proof.rows.is_empty()));
    }

    #[test]
    fn a_case_without_a_name_or_with_what_is_no_id_is_found() {
        for wrong in
            ["any(\"DDP-001\")", "any(NAME, \"DDP-001\")", "any(\"a\", \"DDP_001\")", "any(\"a\", \"DDP-1\")"]
        {
            let text = format!("any(\"a\", \"DDP-001\").about(\"b\"), {wrong}.about(\"b\")");
            let found = scan("c.rs", &text);
            assert!(found.len() == 2 && found[0].is_ok() && found[1].is_err(), "{wrong}: {found:?}");
        }
    }
}

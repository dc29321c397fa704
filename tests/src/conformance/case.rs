//! Wire cases of `iwprobe`: values whose source has the fields `name: "..."` and, below it, `rows:
//! &["DDP-001", ...]`.

use std::path::Path;

use super::proof::{Proof, Test};
use super::{Result, files, read};

/// The folder of the cases.
pub(super) const CASES: &str = "tests/iwprobe/src/cases";

/// The cases in the repository, and the errors in them.
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
    let (mut found, mut from) = (Vec::new(), 0);
    for (at, _) in text.match_indices("rows: &[") {
        let line = text[..at].lines().count().max(1);
        if !text[..at].lines().last().is_some_and(|line| line.trim_start().starts_with("//")) {
            found.push(
                read_one(path, text, from, at, line).map_err(|reason| format!("{path}:{line}: {reason}")),
            );
        }
        from = at;
    }
    found
}

/// The case whose `rows` are at `at`; its name is after the `rows` of the previous case, at `from`.
fn read_one(
    path: &str,
    text: &str,
    from: usize,
    at: usize,
    line: usize,
) -> std::result::Result<Proof, String> {
    const NAME: &str = "name: \"";
    let between = &text[from..at];
    let name = between.rfind(NAME).map(|start| &between[start + NAME.len()..]);
    let name = name.and_then(|rest| rest.split_once('"')).ok_or("`rows` has no `name: \"...\"` above")?.0;
    let list = text[at..].split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let list = list.ok_or("`rows` has no end")?.0;
    let rows = list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| {
        let id = item.strip_prefix('"').and_then(|item| item.strip_suffix('"'));
        id.ok_or_else(|| format!("`{item}` in `rows` is not a string"))?.parse()
    });
    let rows = rows.collect::<std::result::Result<Vec<_>, String>>()?;
    Ok(Proof { rows, test: Test { file: path.to_owned(), name: name.to_owned() }, line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_name_and_rows() {
        let text = "Case {\n name: \"one\",\n rows: &[\"DDP-001\", \"MPA-002\"],\n},\nCase { name: \"two\", rows: \
                    &[\n\"SEC-003\",\n] }";
        let found: Vec<Proof> = scan("c.rs", text).into_iter().map(|it| it.unwrap()).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].test.name.as_str(), found[0].rows.len(), found[0].line), ("one", 2, 3));
        assert_eq!((found[1].test.name.as_str(), found[1].rows.len()), ("two", 1));
    }

    #[test]
    fn a_case_without_a_name_or_with_what_is_no_id_is_found() {
        assert!(scan("c.rs", "Case { rows: &[\"DDP-001\"] }")[0].is_err());
        let second = scan("c.rs", "Case { name: \"a\", rows: &[] }, Case { rows: &[\"DDP-001\"] }");
        assert!(second[0].is_ok() && second[1].is_err());
        assert!(scan("c.rs", "Case { name: \"a\", rows: &[DDP_001] }")[0].is_err());
        assert!(scan("c.rs", "Case { name: \"a\", rows: &[\"DDP-1\"] }")[0].is_err());
        assert!(scan("c.rs", "Case { name: \"a\", rows: &[\"DDP-001\" }")[0].is_err());
    }
}

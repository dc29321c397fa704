//! Proofs: comments above a test that name the requirements (rows of the index) that the test proves.
//!
//! The comment starts with `Proves` ([`statement`]) and is directly above its test: only attributes and
//! further comment lines may be between the two. A test is a function with `#[test]`, so that its name is in
//! the output of its runner ([`ran`](super::ran)).

use std::path::Path;

use super::statement;
use super::{Result, RowId, files, read};

/// A test in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// The path of the file, relative to the root of the repository.
    pub file: String,
    /// The name of the function or of the wire case.
    pub name: String,
}

impl Test {
    /// Returns the name of the test in the record of mutations.
    pub fn killer(&self) -> String {
        format!("{}: {}", self.file, self.name)
    }
}

/// A test, and the requirements that its comment names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The requirements.
    pub rows: Vec<RowId>,
    /// The test.
    pub test: Test,
    /// The number of the comment's line, from 1.
    pub line: usize,
}

/// Returns the proofs in all Rust files of the repository, and the errors in them.
///
/// # Errors
/// If a file cannot be read.
pub fn load(root: &Path) -> Result<(Vec<Proof>, Vec<String>)> {
    let (mut proofs, mut findings) = (Vec::new(), Vec::new());
    for path in files(root, "", "rs")? {
        for found in scan(&path, &read(root, &path)?) {
            match found {
                Ok(proof) => proofs.push(proof),
                Err(finding) => findings.push(finding),
            }
        }
    }
    Ok((proofs, findings))
}

/// Returns the proofs in one file.
fn scan(path: &str, text: &str) -> Vec<std::result::Result<Proof, String>> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(words) = comment(line) else { continue };
        if statement::is_meant(words) || words.starts_with("Proves:") {
            found.push(read_one(path, &lines, at).map_err(|reason| format!("{path}:{}: {reason}", at + 1)));
        }
    }
    found
}

fn read_one(path: &str, lines: &[&str], at: usize) -> std::result::Result<Proof, String> {
    let words: Vec<&str> = lines[at..].iter().map_while(|line| comment(line)).collect();
    let starts = |words: &str| words.starts_with(statement::WORD);
    if !starts(words[0]) {
        return Err("`Proves` does not start its line".into());
    }
    let rows = statement::parse(&words.join(" ")).map_err(|reason| format!("`Proves` {reason}"))?;
    if words[1..].iter().any(|words| starts(words)) {
        return Err("a test has one comment with `Proves`, this one has two".into());
    }
    // Further comment lines may belong to attributes, and an attribute may span several lines.
    let mut below = at + words.len();
    let mut depth = 0;
    while let Some(line) = lines.get(below) {
        if depth == 0 && !line.starts_with("#[") && comment(line).is_none() {
            break;
        }
        depth += line.matches('[').count() as i32 - line.matches(']').count() as i32;
        below += 1;
    }
    let name =
        lines.get(below).and_then(|line| function(line)).ok_or("`Proves` does not stand above a test")?;
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || comment(line).is_some());
    let attributes: Vec<&str> = above.copied().chain(lines[at..below].iter().copied()).collect();
    let has =
        |name: &str| attributes.iter().any(|line| line.starts_with("#[") && line[2..].starts_with(name));
    if has("ignore") {
        return Err(format!("`{name}` is ignored and proves nothing"));
    }
    if !has("test]") {
        return Err(format!("`Proves` stands above `{name}`, which is no test"));
    }
    Ok(Proof { rows, test: Test { file: path.to_owned(), name: name.to_owned() }, line: at + 1 })
}

/// Returns the text of a line that is only a comment.
fn comment(line: &str) -> Option<&str> {
    line.starts_with("//").then(|| line.trim_start_matches('/').trim_start_matches('!').trim())
}

/// Returns the name of the function that a line declares.
fn function(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "async");
    if words.next() != Some("fn") {
        return None;
    }
    let name = words.next()?;
    Some(&name[..name.find(['(', '<'])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of `scan` for a file with these lines, which contain one statement. In the tests
    /// below, each comment begins after a quote, so that it does not count as a statement of this file.
    fn one(path: &str, lines: &[&str]) -> std::result::Result<Proof, String> {
        let text = lines.join("\n");
        let mut found = scan(path, &text);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn a_statement_belongs_to_the_test_below() {
        let proof =
            one("a.rs", &["", "// Proves DDP-001,", "// DDP-002: so.", "#[test]", "fn it() {"]).unwrap();
        assert_eq!(proof.rows, ["DDP-001", "DDP-002"].map(|id| id.parse().unwrap()));
        assert_eq!((proof.test.name.as_str(), proof.line), ("it", 2));
        one("a.rs", &["#[test]", "// Proves DDP-001.", "fn it() {"]).unwrap();
        one("a.rs", &["/// Proves DDP-001.", "/// More.", "#[cfg(", "any[]", ")]", "#[test]", "fn it() {"])
            .unwrap();
        one("a.rs", &["// Proves DDP-001.", "#[test]", "fn it(seed in any::<u64>()) {"]).unwrap();
    }

    #[test]
    fn a_statement_elsewhere_is_found() {
        for bad in [
            &["// Proves DDP-001.", "", "#[test]", "fn it() {"][..],
            &["// Proves DDP-001.", "fn it() {"],
            &["// Proves DDP-001.", "#[test]", "struct It;"],
            &["// The timer. Proves DDP-001.", "#[test]", "fn it() {"],
            &["// Proves DDP-001.", "#[ignore = \"slow\"]", "#[test]", "fn it() {"],
            &["// Proves DDP-002 to DDP-001.", "#[test]", "fn it() {"],
            &["// Proves DDP-001", "#[test]", "fn it() {"],
            &["// Proves: DDP-001.", "#[test]", "fn it() {"],
            &["// Proves DDP-001."],
        ] {
            assert!(one("a.rs", bad).is_err(), "{bad:?}");
        }
        let two = ["// Proves DDP-001.", "// Proves DDP-002.", "#[test]", "fn it() {"].join("\n");
        assert!(scan("a.rs", &two)[0].is_err());
        assert!(scan("a.rs", "// Proves that it works.\nlet x = 1; // Proves DDP-001.").is_empty());
    }
}

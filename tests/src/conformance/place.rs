//! Places: comments in the code that name the rule that the code obeys.
//!
//! A place is a comment such as `RFC 5041 section 5.2 (DDP-071): ...` in the sources of `dp`, `tcp-lite` or
//! `iwarp`, outside of tests. The parentheses contain ids and ranges, as in a [`statement`]. The comment
//! belongs to the item below it, or to the function around it. The head of a file must not name a requirement
//! with MUST or MUST NOT.
//!
//! A rule may have no place, for example because a library obeys it, or because the rule only sums up other
//! rules. For such a rule, a line of `tests/conformance/places/*.csv` gives the reason.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::row::Index;
use super::{Doc, PLACES, Result, RowId, files, read, statement};

/// The folders of the code.
const CODE: [&str; 3] = ["dp/src", "tcp-lite/src", "iwarp/src"];

/// Where a comment that names requirements (rows of the index) is: its file, and the item that the comment is
/// about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The path of the file, relative to the root of the repository.
    pub file: String,
    /// The function or type that the comment is about; empty for a comment about the whole file.
    pub item: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.item.is_empty() { Ok(()) } else { write!(f, ": {}", self.item) }
    }
}

/// The places of the comments that name each requirement, in the order of files and lines.
pub type Places = BTreeMap<RowId, Vec<Place>>;

/// For each requirement that no comment in the code names: the reason.
pub type Reasons = BTreeMap<RowId, String>;

/// Returns the places in the code, and the errors in them.
///
/// # Errors
/// If a file cannot be read.
pub fn load(root: &Path, index: &Index) -> Result<(Places, Vec<String>)> {
    let (mut places, mut findings) = (Places::new(), Vec::new());
    for folder in CODE {
        for path in files(root, folder, "rs")? {
            if is_test(&path) {
                continue;
            }
            for (line, found) in scan(&path, &read(root, &path)?) {
                match found.and_then(|(rows, place)| Ok((placed(index, rows, &place)?, place))) {
                    Ok((rows, place)) => {
                        for row in rows {
                            let all = places.entry(row).or_default();
                            if !all.contains(&place) {
                                all.push(place.clone());
                            }
                        }
                    }
                    Err(reason) => findings.push(format!("{path}:{line}: {reason}")),
                }
            }
        }
    }
    Ok((places, findings))
}

/// Returns the reasons why requirements have no place, and the errors in these reasons. A document need not
/// have a file of reasons.
///
/// # Errors
/// If a file cannot be read.
pub fn reasons(root: &Path, index: &Index, places: &Places) -> Result<(Reasons, Vec<String>)> {
    let (mut reasons, mut findings) = (Reasons::new(), Vec::new());
    for doc in Doc::ALL {
        let path = format!("{PLACES}/{}.csv", doc.file());
        if !root.join(&path).exists() {
            continue;
        }
        let text = read(root, &path)?;
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        if reader.headers().is_ok_and(|head| !head.iter().eq(["row", "reason"])) {
            findings.push(format!("{path}: the file does not start with `row,reason`"));
        }
        for record in reader.records() {
            let last = reasons.last_key_value().map(|(&row, _)| row);
            let checked = record.map_err(|error| error.to_string()).and_then(|record| {
                reason(index, places, doc, last, [0, 1].map(|at| record.get(at).unwrap_or("")))
            });
            match checked {
                Ok((row, reason)) => drop(reasons.insert(row, reason)),
                Err(reason) => findings.push(format!("{path}: {reason}")),
            }
        }
    }
    Ok((reasons, findings))
}

fn reason(
    index: &Index,
    places: &Places,
    doc: Doc,
    last: Option<RowId>,
    [row, reason]: [&str; 2],
) -> std::result::Result<(RowId, String), String> {
    let row: RowId = row.parse()?;
    if row.doc != doc || !index.contains_key(&row) {
        return Err(format!("{row} is no row of this file"));
    }
    if last >= Some(row) {
        return Err(format!("{row} comes twice or out of order"));
    }
    if let Some(place) = places.get(&row).and_then(|places| places.first()) {
        return Err(format!("{row} has a place, {place}: drop the reason"));
    }
    if reason.trim().is_empty() {
        return Err(format!("{row} has no reason"));
    }
    Ok((row, reason.to_owned()))
}

fn known(index: &Index, rows: Vec<RowId>) -> std::result::Result<Vec<RowId>, String> {
    match rows.iter().find(|row| !index.contains_key(row)) {
        Some(row) => Err(format!("there is no row {row}")),
        None => Ok(rows),
    }
}

/// Refuses a MUST that the head of a file names, since a reader looks for the branch that obeys the MUST.
fn placed(index: &Index, rows: Vec<RowId>, place: &Place) -> std::result::Result<Vec<RowId>, String> {
    let rows = known(index, rows)?;
    match rows.iter().find(|row| place.item.is_empty() && index[row].level.binds()) {
        Some(row) => Err(format!("{row} is a {}: name it where the code obeys it", index[row].level.name())),
        None => Ok(rows),
    }
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

type Found = std::result::Result<(Vec<RowId>, Place), String>;

/// Returns the requirements that the comments of a file name, with the line at which each comment begins.
fn scan(path: &str, text: &str) -> Vec<(usize, Found)> {
    let lines: Vec<&str> = text.lines().collect();
    // Unit tests are at the end of the file.
    let end = lines.iter().position(|line| *line == "mod tests {").unwrap_or(lines.len());
    let (mut found, mut at) = (Vec::new(), 0);
    while at < end {
        let words: Vec<&str> = lines[at..end].iter().map_while(|line| comment(line)).collect();
        for named in named(&words.join(" ")) {
            let item = item(&lines, at, at + words.len());
            let place = Place { file: path.to_owned(), item };
            found.push((at + 1, named.map(|rows| (rows, place))));
        }
        at += words.len().max(1);
    }
    found
}

/// Returns the requirements that a comment names, for each of its parentheses.
fn named(words: &str) -> Vec<std::result::Result<Vec<RowId>, String>> {
    let mut found = Vec::new();
    for (open, _) in words.match_indices('(') {
        let inside = &words[open + 1..];
        let Some(close) = inside.find(')') else { continue };
        let first = inside[..close].split([',', ' ']).next().unwrap_or_default();
        if first.parse::<RowId>().is_err() {
            continue;
        }
        let rows = statement::parse(&format!("{} {}.", statement::WORD, &inside[..close]));
        found.push(rows.and_then(|rows| says_where(&words[..open], rows)));
    }
    found
}

/// Checks that the RFC and the section precede the id, so that a reader finds the text of the rule.
fn says_where(before: &str, rows: Vec<RowId>) -> std::result::Result<Vec<RowId>, String> {
    for row in &rows {
        let title = row.doc.title();
        let rfc = title.split_once(',').map_or(title, |(rfc, _)| rfc);
        let behind = before.rfind(rfc).map(|at| &before[at + rfc.len()..]);
        if !behind.is_some_and(|words| words.starts_with(" section") || words.starts_with(" appendix")) {
            return Err(format!("`{rfc} section N` or `appendix A` is missing in front of {row}"));
        }
    }
    Ok(rows)
}

/// Returns the text of a line that is only a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.starts_with("//").then(|| line.trim_start_matches('/').trim_start_matches('!').trim())
}

/// Returns the name of the item to which the comment in `at..below` belongs.
fn item(lines: &[&str], at: usize, below: usize) -> String {
    if lines[at].trim_start().starts_with("//!") {
        return String::new();
    }
    let next = lines[below..].iter().find(|line| !line.trim_start().starts_with("#["));
    if let Some(name) = next.and_then(|line| declared(line)) {
        return name.to_owned();
    }
    let indent = |line: &str| line.len() - line.trim_start().len();
    let depth = indent(lines[at]);
    let mut above = lines[..at].iter().rev().filter(|line| !line.trim().is_empty() && indent(line) < depth);
    above.find_map(|line| declared(line)).unwrap_or_default().to_owned()
}

/// Returns the name of the item that a line declares.
fn declared(line: &str) -> Option<&str> {
    const ITEMS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "macro_rules!"];
    let mut words = line.split_whitespace().skip_while(|word| {
        word.starts_with("pub")
            || ["async", "unsafe", "in", "crate)", "super)"].contains(word)
            || word.ends_with(')')
    });
    let mut word = words.next()?;
    let mut name = words.next();
    if word == "const" && name == Some("fn") {
        (word, name) = ("fn", words.next());
    }
    let name = name.filter(|_| ITEMS.contains(&word))?;
    let end = name.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(name.len());
    (end > 0).then(|| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{root, row};

    fn one(lines: &[&str]) -> std::result::Result<(String, String), String> {
        let mut found = scan("a.rs", &lines.join("\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        let (rows, place) = found.remove(0).1?;
        Ok((rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), place.to_string()))
    }

    #[test]
    fn a_place_belongs_to_the_item_below_or_around() {
        let at = |rows: &str, place: &str| Ok((rows.to_owned(), place.to_owned()));
        let rule = "// RFC 5041 section 5.2 (DDP-071,";
        let more = "    // DDP-073 to DDP-074): so.";
        let all = "DDP-071 DDP-073 DDP-074";
        assert_eq!(one(&["fn it() {", &format!("    {rule}"), more, "    if x {", "}"]), at(all, "a.rs: it"));
        assert_eq!(
            one(&[
                &format!("//{}", rule.replace("071,", "071)")),
                "#[inline]",
                "pub(in crate::x) const fn it() {}"
            ]),
            at("DDP-071", "a.rs: it")
        );
        assert_eq!(one(&["//! RFC 5041 section 5.2 (DDP-071).", "struct It;"]), at("DDP-071", "a.rs"));
        assert_eq!(
            one(&["/// RFC 5041 section 5.2 (DDP-071).", "pub struct It;"]),
            at("DDP-071", "a.rs: It")
        );
        assert!(scan("a.rs", "mod tests {\n    // RFC 5041 section 5.2 (DDP-071): so.\n}").is_empty());
        assert!(scan("a.rs", "// RFC 5041 section 5.2 (see DDP-071), (so).").is_empty());
    }

    #[test]
    fn the_document_and_the_section_stand_in_front() {
        for bad in [
            "// (DDP-071): so.",
            "// RFC 5040 section 5.2 (DDP-071): so.",
            "// RFC 5041 (DDP-071): so.",
            "// RFC 5041 section 5.2 (DDP-071, RDMAP-001): so.",
            "// RFC 5041 section 5.2 (DDP-071 DDP-072): so.",
        ] {
            assert!(one(&[bad, "fn it() {}"]).is_err(), "{bad}");
        }
        let two = "// RFC 5041 section 5.2 and RFC 5040 section 5.1 (DDP-071, RDMAP-001): so.";
        one(&[two, "fn it() {}"]).unwrap();
        one(&["// RFC 5041 appendix A (DDP-071): so.", "fn it() {}"]).unwrap();
    }

    #[test]
    fn the_head_of_a_file_is_no_place_for_a_must() {
        let index = row::load(root()).unwrap();
        let of = |binds| *index.iter().find(|(_, row)| row.level.binds() == binds).unwrap().0;
        let place = |item: &str| Place { file: "a.rs".into(), item: item.into() };
        placed(&index, vec![of(false)], &place("")).unwrap();
        placed(&index, vec![of(true)], &place("it")).unwrap();
        assert!(placed(&index, vec![of(false), of(true)], &place("")).is_err());
    }

    #[test]
    fn a_reason_is_for_a_known_row_without_a_place() {
        let index = row::load(root()).unwrap();
        let place = Place { file: "a.rs".into(), item: "it".into() };
        let places = Places::from([("DDP-005".parse().unwrap(), vec![place])]);
        let check = |last: Option<&str>, row, why| {
            reason(&index, &places, Doc::Ddp, last.map(|last| last.parse().unwrap()), [row, why])
        };
        check(Some("DDP-003"), "DDP-004", "No code does.").unwrap();
        for (last, row, why) in [
            (Some("DDP-004"), "DDP-004", "So."),
            (None, "DDP-004", " "),
            (None, "DDP-999", "So."),
            (None, "MPA-004", "So."),
            (None, "DDP-005", "So."),
        ] {
            assert!(check(last, row, why).is_err(), "{row}");
        }
        assert!(known(&index, vec!["DDP-999".parse().unwrap()]).is_err());
    }
}

//! Claims: what is said of a row that no test shows.

use std::path::Path;
use std::str::FromStr;

use super::row::Index;
use super::{CLAIMS, Doc, Result, RowId};

/// What is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Held by how the code is built.
    Construction,
    /// About documents, other layers or the consumer: nothing to test.
    Untestable,
    /// Deliberately otherwise.
    Deviation,
    /// Not done.
    Open,
}

impl FromStr for Verdict {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "construction" => Ok(Self::Construction),
            "untestable" => Ok(Self::Untestable),
            "deviation" => Ok(Self::Deviation),
            "open" => Ok(Self::Open),
            _ => Err(format!("`{text}` is no verdict: construction, untestable, deviation or open")),
        }
    }
}

/// A line of a claims file.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The row.
    pub row: RowId,
    /// What is claimed of it.
    pub verdict: Verdict,
    /// `path#text that occurs in it`; may be empty where nothing in the code has to do with the row.
    pub place: String,
    /// Why, in a sentence.
    pub reason: String,
}

/// The claims of every document, and what is wrong with them. A document may have no file.
///
/// # Errors
/// When a file cannot be read.
pub fn load(root: &Path, index: &Index) -> Result<(Vec<Claim>, Vec<String>)> {
    let (mut claims, mut findings) = (Vec::new(), Vec::new());
    for doc in Doc::ALL {
        let path = format!("{CLAIMS}/{}.csv", doc.file());
        if !root.join(&path).exists() {
            continue;
        }
        let text = super::read(root, &path)?;
        let mut last = None;
        for (line, claim) in parse(&text) {
            let at = format!("{path}:{line}");
            let claim = match claim.and_then(|claim| checked(root, index, doc, last, claim)) {
                Ok(claim) => claim,
                Err(reason) => {
                    findings.push(format!("{at}: {reason}"));
                    continue;
                }
            };
            last = Some(claim.row);
            claims.push(claim);
        }
    }
    Ok((claims, findings))
}

/// The claims in a file, each with its line.
fn parse(text: &str) -> Vec<(u64, std::result::Result<Claim, String>)> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let mut claims = Vec::new();
    for (number, record) in reader.records().enumerate() {
        let line = |position: Option<&csv::Position>| position.map_or(0, csv::Position::line);
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                claims.push((line(error.position()), Err(error.to_string())));
                continue;
            }
        };
        let at = line(record.position());
        if number == 0 {
            if !record.iter().eq(["id", "verdict", "place", "reason"]) {
                claims.push((at, Err("does not start with `id,verdict,place,reason`".into())));
            }
            continue;
        }
        let [id, verdict, place, reason] = std::array::from_fn(|i| record.get(i).unwrap_or("").to_owned());
        let parsed = id.parse().and_then(|row| Ok(Claim { row, verdict: verdict.parse()?, place, reason }));
        claims.push((at, parsed));
    }
    claims
}

fn checked(
    root: &Path,
    index: &Index,
    doc: Doc,
    last: Option<RowId>,
    claim: Claim,
) -> std::result::Result<Claim, String> {
    let Claim { row, verdict, place, reason } = &claim;
    let known =
        index.get(row).filter(|_| row.doc == doc).ok_or_else(|| format!("{row} is no row of this file"))?;
    if last >= Some(*row) {
        return Err(format!("{row} is claimed twice or out of order"));
    }
    if reason.trim().is_empty() {
        return Err(format!("{row} has no reason"));
    }
    if *verdict == Verdict::Open && known.level.binds() {
        return Err(format!("{row} is a {} and must not stay open", known.level.name()));
    }
    if place.is_empty() {
        return match verdict {
            Verdict::Construction => Err(format!("{row}, held by construction, has no place")),
            _ => Ok(claim),
        };
    }
    let (path, text) = place.split_once('#').unwrap_or((place, ""));
    let source =
        std::fs::read_to_string(root.join(path)).map_err(|error| format!("{row}: {path}: {error}"))?;
    if text.is_empty() || !source.contains(text) {
        return Err(format!("{row}: `{text}` does not occur in {path}"));
    }
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{root, row};

    const PLACE: &str = "tests/src/conformance/claim.rs#pub struct Claim {";

    fn check(last: Option<&str>, line: &str) -> std::result::Result<Claim, String> {
        let index = row::load(root()).unwrap();
        let claim = parse(&format!("id,verdict,place,reason\n{line}\n")).remove(0);
        let last = last.map(|id| id.parse().unwrap());
        claim.1.and_then(|claim| checked(root(), &index, Doc::Ddp, last, claim))
    }

    #[test]
    fn claims_are_sorted_known_and_reasoned() {
        check(Some("DDP-003"), "DDP-004,untestable,,Advice.").unwrap();
        for (last, line) in [
            (Some("DDP-004"), "DDP-004,untestable,,Advice."),
            (Some("DDP-005"), "DDP-004,untestable,,Advice."),
            (None, "DDP-999,untestable,,Advice."),
            (None, "MPA-004,untestable,,Advice."),
            (None, "DDP-004,untestable,, "),
            (None, "DDP-004,fine,,Advice."),
            (None, "DDP-004,untestable,Advice."),
        ] {
            assert!(check(last, line).is_err(), "{line}");
        }
        assert!(parse("id,verdict,reason\n")[0].1.is_err());
    }

    #[test]
    fn a_place_has_to_be_there() {
        check(None, &format!("DDP-004,construction,{PLACE},\"So, it is.\"")).unwrap();
        for place in [
            "",
            "tests/src/conformance/claim.rs",
            "tests/src/none.rs#x",
            "tests/Cargo.toml#pub struct Claim {",
        ] {
            assert!(check(None, &format!("DDP-004,construction,{place},So.")).is_err(), "{place}");
        }
    }

    #[test]
    fn what_binds_never_stays_open() {
        let index = row::load(root()).unwrap();
        let of = |binds| {
            index.iter().find(|(id, row)| id.doc == Doc::Ddp && row.level.binds() == binds).unwrap().0
        };
        check(None, &format!("{},open,,Later.", of(false))).unwrap();
        assert!(check(None, &format!("{},open,,Later.", of(true))).is_err());
    }
}

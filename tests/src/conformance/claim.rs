//! Claims: statements about requirements (rows of the index) that no test proves.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::row::{Index, Level};
use super::{CLAIMS, Doc, Result, RowId};

/// The kind of a claim. The `place` of a claim is a text in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The structure of the code ensures the requirement. The place is code that would have to change to
    /// break the requirement.
    Construction,
    /// The requirement asks for documentation, which is at the place.
    Documented,
    /// The requirement is about documents, other layers or the application, so there is nothing to test.
    Untestable,
    /// The requirement is a permission that the code does not use.
    Unused,
    /// The code deliberately does not follow the requirement.
    Deviation,
    /// The code does not obey the requirement yet.
    Open,
}

impl Verdict {
    /// Whether tests may name the requirement although the requirement has a claim, to prove what the code
    /// does instead.
    pub fn may_be_shown(self) -> bool {
        matches!(self, Self::Deviation | Self::Unused)
    }
}

impl FromStr for Verdict {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "construction" => Ok(Self::Construction),
            "documented" => Ok(Self::Documented),
            "untestable" => Ok(Self::Untestable),
            "unused" => Ok(Self::Unused),
            "deviation" => Ok(Self::Deviation),
            "open" => Ok(Self::Open),
            _ => Err(format!(
                "`{text}` is not a kind of claim: use construction, documented, untestable, unused, deviation or open"
            )),
        }
    }
}

/// A line of a claims file.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The requirement that the claim is about.
    pub row: RowId,
    /// The kind of the claim.
    pub verdict: Verdict,
    /// `path#text`, where the file `path` contains `text` in code, or for [`Verdict::Documented`] in
    /// documentation. The place is empty if no code concerns the requirement.
    pub place: String,
    /// The reason, in one sentence.
    pub reason: String,
}

/// Returns the claims about every document, and the errors in them. A document need not have a file of
/// claims.
///
/// # Errors
/// If a file cannot be read.
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

/// Parses the claims of a file. Returns for each line the number of the line, and the claim or the error in
/// the line.
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
                claims.push((at, Err("the file does not start with `id,verdict,place,reason`".into())));
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
    if *verdict == Verdict::Unused && (known.level.binds() || known.level.advises()) {
        return Err(format!("{row} is a {}, no permission", known.level.name()));
    }
    if *verdict == Verdict::Deviation && known.level == Level::May {
        return Err(format!("{row} is a MAY: use `unused` instead of `deviation`"));
    }
    if place.is_empty() {
        return match verdict {
            Verdict::Construction | Verdict::Documented => {
                Err(format!("{row}: this kind of claim needs a place"))
            }
            _ => Ok(claim),
        };
    }
    let (path, text) = place.split_once('#').unwrap_or((place, ""));
    let source =
        std::fs::read_to_string(root.join(path)).map_err(|error| format!("{row}: {path}: {error}"))?;
    if text.is_empty() || !source.contains(text) {
        return Err(format!("{row}: `{text}` does not occur in {path}"));
    }
    let wanted = if *verdict == Verdict::Documented { Kind::Words } else { Kind::Code };
    if !source.lines().any(|line| kind(path, line, text) == Some(wanted)) {
        return Err(format!("{row}: `{text}` in {path} is no {wanted}"));
    }
    Ok(claim)
}

/// The kind of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Code,
    Words,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Code => "code, but a comment or a document",
            Self::Words => "documentation, but code",
        })
    }
}

/// Returns whether `text` is code or words in this line of a file; `None` if the line does not contain
/// `text`.
fn kind(path: &str, line: &str, text: &str) -> Option<Kind> {
    let before = &line[..line.find(text)?];
    let mark = if path.ends_with(".rs") { "//" } else { "#" };
    let comment = before.trim_start().starts_with(mark)
        || text.trim_start().starts_with(mark)
        || before.contains(&format!(" {mark} "));
    Some(if path.ends_with(".md") || comment { Kind::Words } else { Kind::Code })
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
    fn code_holds_by_construction_and_documents_say() {
        let code = PLACE;
        let comment = "tests/src/conformance/row.rs#Rows of the index";
        let document = "SECURITY.md#The trust boundary";
        for (place, holds) in [(code, true), (comment, false), (document, false)] {
            for verdict in ["construction", "untestable", "deviation"] {
                let line = format!("DDP-004,{verdict},{place},So.");
                assert_eq!(check(None, &line).is_ok(), holds, "{line}");
            }
            assert_eq!(check(None, &format!("DDP-004,documented,{place},So.")).is_ok(), !holds, "{place}");
        }
        assert!(check(None, "DDP-004,documented,,So.").is_err());
        assert_eq!(kind("a.rs", "let a = 0; // none", "none"), Some(Kind::Words));
        assert_eq!(kind("a.rs", "let none = 0; // so", "none"), Some(Kind::Code));
        assert_eq!(kind("a.toml", "# none", "none"), Some(Kind::Words));
        assert_eq!(kind("a.rs", "#[none]", "none"), Some(Kind::Code));
        assert_eq!(kind("a.rs", "one", "none"), None);
    }

    #[test]
    fn what_is_permitted_is_unused_and_no_deviation() {
        let index = row::load(root()).unwrap();
        let of = |level| {
            let mut rows = index.iter().filter(|(id, _)| id.doc == Doc::Ddp);
            *rows.find(|(_, row)| row.level == level).unwrap().0
        };
        for (verdict, level, good) in [
            ("unused", Level::May, true),
            ("unused", Level::Must, false),
            ("unused", Level::ShouldNot, false),
            ("deviation", Level::May, false),
            ("deviation", Level::Should, true),
        ] {
            let line = format!("{},{verdict},,So.", of(level));
            assert_eq!(check(None, &line).is_ok(), good, "{line} {level:?}");
        }
    }

    #[test]
    fn a_claim_that_binds_is_never_open() {
        let index = row::load(root()).unwrap();
        let of = |binds| {
            index.iter().find(|(id, row)| id.doc == Doc::Ddp && row.level.binds() == binds).unwrap().0
        };
        check(None, &format!("{},open,,Later.", of(false))).unwrap();
        assert!(check(None, &format!("{},open,,Later.", of(true))).is_err());
    }
}

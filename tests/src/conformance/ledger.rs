//! Joins requirements (rows of the index), proofs and claims.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::claim::{self, Claim, Verdict};
use super::mutation::{self, Mutation, Trials};
use super::place::{self, Places, Reasons};
use super::proof::{self, Proof, Test};
use super::row::{self, Index};
use super::{PLACES, Result, RowId, case};

/// The state of a requirement.
#[derive(Clone, Copy, Debug)]
pub enum RowState<'a> {
    /// Tests prove the requirement.
    Proved(&'a BTreeSet<Test>),
    /// A claim says why no test proves the requirement, or that the code deliberately deviates from the
    /// requirement.
    Claimed(&'a Claim),
    /// No test and no claim concerns the requirement.
    Open,
}

impl RowState<'_> {
    /// Whether the requirement is open: there is no test and no claim for the requirement, or its claim is
    /// `open`.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Claimed(Claim { verdict: Verdict::Open, .. }))
    }
}

/// All data about conformance, and the contradictions in it.
#[derive(Debug)]
pub struct Ledger {
    /// All requirements.
    pub index: Index,
    /// The tests that prove each requirement.
    pub proofs: BTreeMap<RowId, BTreeSet<Test>>,
    /// The claim for each requirement that has a claim.
    pub claims: BTreeMap<RowId, Claim>,
    /// The places in the code that obey each requirement.
    pub places: Places,
    /// The reasons why requirements have no place.
    pub reasons: Reasons,
    /// All mutations.
    pub mutations: Vec<Mutation>,
    /// The results of the last trials of the mutations.
    pub trials: Trials,
    /// Errors, one line each.
    pub findings: Vec<String>,
}

impl Ledger {
    /// Reads all data about conformance from the repository, and joins the data.
    ///
    /// # Errors
    /// If a file cannot be read at all.
    pub fn load(root: &Path) -> Result<Self> {
        let index = row::load(root)?;
        let (mut proofs, mut findings) = proof::load(root)?;
        let (cases, more) = case::load(root)?;
        proofs.extend(cases);
        findings.extend(more);
        let (claims, more) = claim::load(root, &index)?;
        findings.extend(more);
        let (places, more) = place::load(root, &index)?;
        findings.extend(more);
        let (reasons, more) = place::reasons(root, &index, &places)?;
        findings.extend(more);
        let (mutations, more) = mutation::load(root)?;
        findings.extend(more);
        let trials = mutation::trials(root)?;
        findings
            .extend(mutation::compare(&mutations, &trials, &|killer| mutation::killer_text(root, killer)));
        let mut ledger = Self::join(index, proofs, claims, findings);
        for mutation in &mutations {
            for row in mutation.rows.iter().filter(|row| !ledger.proofs.contains_key(row)) {
                ledger.findings.push(format!("{}: no test names {row}", mutation.edit.name));
            }
        }
        Ok(Self { places, reasons, mutations, trials, ..ledger })
    }

    fn join(index: Index, proofs: Vec<Proof>, claims: Vec<Claim>, findings: Vec<String>) -> Self {
        let claims = claims.into_iter().map(|claim| (claim.row, claim)).collect();
        let (mutations, trials) = (Vec::new(), Trials::new());
        let (places, reasons) = (Places::new(), Reasons::new());
        let proved = BTreeMap::new();
        let mut ledger = Self { index, proofs: proved, claims, places, reasons, mutations, trials, findings };
        for Proof { rows, test, line } in proofs {
            for row in rows {
                let at = format!("{}:{line}", test.file);
                if !ledger.index.contains_key(&row) {
                    ledger.findings.push(format!("{at}: there is no row {row}"));
                    continue;
                }
                let claimed = ledger.claims.get(&row);
                if claimed.is_some_and(|claim| !claim.verdict.may_be_shown()) {
                    ledger
                        .findings
                        .push(format!("{at}: {row} is proved here and has a claim: drop the claim"));
                }
                ledger.proofs.entry(row).or_default().insert(test.clone());
            }
        }
        ledger
    }

    /// Returns the state of a requirement. A deviation or an unused permission keeps its claim even if tests
    /// prove what the code does.
    pub fn standing(&self, row: RowId) -> RowState<'_> {
        match (self.claims.get(&row), self.proofs.get(&row)) {
            (Some(claim), None) => RowState::Claimed(claim),
            (Some(claim), _) if claim.verdict.may_be_shown() => RowState::Claimed(claim),
            (_, Some(tests)) => RowState::Proved(tests),
            (None, None) => RowState::Open,
        }
    }

    /// Whether tests prove a requirement, although no comment in the code names the requirement, and no
    /// reason explains the missing comment.
    fn has_no_place(&self, row: RowId) -> bool {
        matches!(self.standing(row), RowState::Proved(_))
            && !self.places.contains_key(&row)
            && !self.reasons.contains_key(&row)
    }

    /// Returns all findings: errors in the sources; open rows without a claim; and rows with MUST or MUST NOT
    /// that are proved, but have neither a place nor a reason.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = self.findings.clone();
        for (&id, row) in &self.index {
            // Open rows of any level are reported, so that no row becomes open unnoticed when its last test
            // is removed.
            if matches!(self.standing(id), RowState::Open) {
                let said: String = row.requirement.chars().take(100).collect();
                complaints
                    .push(format!("{id} is a {} with neither proof nor claim: {said}", row.level.name()));
            }
            if row.level.binds() && self.has_no_place(id) {
                complaints.push(format!(
                    "{id} is a {} that tests show, and no comment in the code names it: add one, or a line in {PLACES}",
                    row.level.name()
                ));
            }
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::root;

    fn proof(row: &str) -> Proof {
        let test = Test { file: "a.rs".into(), name: "it".into() };
        Proof { rows: vec![row.parse().unwrap()], test, line: 3 }
    }

    fn claim(row: &str, verdict: Verdict) -> Claim {
        Claim { row: row.parse().unwrap(), verdict, place: String::new(), reason: "So.".into() }
    }

    fn join(proofs: &[&str], claims: &[(&str, Verdict)]) -> Ledger {
        let claims = claims.iter().map(|(row, verdict)| claim(row, *verdict)).collect();
        let proofs = proofs.iter().map(|row| proof(row)).collect();
        Ledger::join(row::load(root()).unwrap(), proofs, claims, Vec::new())
    }

    #[test]
    fn a_row_is_proved_or_claimed() {
        let ledger = join(&["DDP-001"], &[("DDP-002", Verdict::Untestable), ("DDP-004", Verdict::Open)]);
        assert!(ledger.findings.is_empty());
        let standing = |row: &str| ledger.standing(row.parse().unwrap());
        assert!(matches!(standing("DDP-001"), RowState::Proved(tests) if tests.len() == 1));
        assert!(matches!(standing("DDP-002"), RowState::Claimed(_)) && !standing("DDP-002").is_open());
        assert!(standing("DDP-003").is_open() && standing("DDP-004").is_open());
        assert_eq!(join(&["DDP-001"], &[("DDP-001", Verdict::Construction)]).findings.len(), 1);
        assert_eq!(join(&["DDP-001"], &[("DDP-001", Verdict::Open)]).findings.len(), 1);
    }

    #[test]
    fn a_deviation_may_be_shown_by_a_test() {
        for verdict in [Verdict::Deviation, Verdict::Unused] {
            let ledger = join(&["DDP-001"], &[("DDP-001", verdict)]);
            assert!(ledger.findings.is_empty());
            assert!(matches!(ledger.standing("DDP-001".parse().unwrap()), RowState::Claimed(_)));
        }
    }

    #[test]
    fn an_unknown_row_and_an_open_row_are_complaints() {
        let ledger = join(&["DDP-999"], &[]);
        assert_eq!(ledger.findings.len(), 1);
        let complaints = ledger.complaints();
        let rows = ledger.index.len();
        assert_eq!(complaints.len(), 1 + rows);

        let proved = join(&["DDP-001"], &[("DDP-004", Verdict::Open)]);
        assert_eq!(proved.complaints().len(), rows - 2);
    }

    #[test]
    fn a_must_that_tests_show_has_a_place_in_the_code_or_a_reason() {
        let index = row::load(root()).unwrap();
        let of = |binds| *index.iter().find(|(_, row)| row.level.binds() == binds).unwrap().0;
        let (must, fact) = (of(true), of(false));
        let mut ledger = join(&[&must.to_string(), &fact.to_string()], &[]);
        assert!(ledger.has_no_place(must));
        assert_eq!(ledger.complaints().iter().filter(|it| it.contains("no comment in the code")).count(), 1);
        ledger.reasons.insert(must, "No code could.".into());
        assert!(!ledger.has_no_place(must));
        ledger.reasons.clear();
        let place = place::Place { file: "a.rs".into(), item: "it".into() };
        ledger.places.insert(must, vec![place]);
        assert!(!ledger.has_no_place(must));
    }
}

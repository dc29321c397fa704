//! The test cases, one file per area. A new case is one more entry in a table: a name, the rows that it
//! checks, the behaviour of a conforming endpoint, and a few lines of code.

mod atomics;
mod close;
mod codes;
mod fpdu;
mod immediate;
mod invalidate;
mod markers;
mod negotiation;
mod operations;
mod ordering;
mod rdmap_header;
mod read;
mod read_faults;
mod scope;
mod send;
mod startup_initiator;
mod startup_responder;
mod tagged;
mod terminate;
mod untagged;
mod watched;

use crate::case::Case;

/// Returns all cases, in the order in which they are run.
pub fn all() -> Vec<Case> {
    [
        startup_responder::CASES,
        negotiation::CASES,
        startup_initiator::CASES,
        fpdu::CASES,
        markers::CASES,
        tagged::CASES,
        untagged::CASES,
        rdmap_header::CASES,
        send::CASES,
        read::CASES,
        read_faults::CASES,
        scope::CASES,
        invalidate::CASES,
        terminate::CASES,
        ordering::CASES,
        operations::CASES,
        immediate::CASES,
        atomics::CASES,
        close::CASES,
        // These cases are last, since they report what was observed in all other cases.
        watched::CASES,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::all;

    #[test]
    fn every_case_has_a_name_of_its_own_and_says_what_it_wants() {
        let cases = all();
        for (index, case) in cases.iter().enumerate() {
            assert!(!cases[..index].iter().any(|other| other.name == case.name), "{} twice", case.name);
            assert!(case.name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'));
            assert!(!case.about.is_empty(), "{}", case.name);
        }
        assert!(cases.len() >= 120, "{}", cases.len());
    }

    /// Every row that a case names is in the tables of requirements.
    #[test]
    fn every_row_exists() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/spec");
        let files = std::fs::read_dir(folder).expect("the tables of requirements");
        let mut known = std::collections::BTreeSet::new();
        for file in files {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            known.extend(text.lines().filter_map(|line| Some(line.split_once(',')?.0.to_owned())));
        }
        for case in all() {
            for row in case.rows() {
                assert!(known.contains(row), "{} names {row}, which is in no table", case.name);
            }
        }
    }
}

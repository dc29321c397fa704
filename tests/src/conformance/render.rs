//! Renders `CONFORMANCE.md`. The same ledger gives the same bytes. A change of one requirement changes the
//! line of this requirement, and the totals.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::claim::Verdict;
use super::proof::Test;
use super::row::{Level, Row};
use super::{Doc, Ledger, RowId, RowState};

const INTRODUCTION: &str = "\
# Conformance

Written by `cargo run -p tests --bin conformance-report`; do not edit.

A **row** is one requirement of a document, with an id, the section it stands in and its force (MUST, SHOULD, MAY; FACT for
what the text states without a key word). The rows are in [tests/conformance/spec](tests/conformance/spec), with what has
to be seen for each to hold.

A **proof** is a test that fails when the row is broken. It names the row in the comment above it (`Proves DDP-001: ...`), or,
as a wire case of `iwprobe`, in its `rows`.

A **claim** says why no test shows a row: it holds by construction, at a place in the code that would have to change to break
it; it asks that something be documented, and this is where; it is untestable, being about documents, other layers or the
application; it is a permission that is not used; or we deviate. The claims are in
[tests/conformance/claims](tests/conformance/claims). A row with neither is an
error. A claim may say that a row is **open**, not for a MUST or MUST NOT.

A **place** is a comment in the code that names the row which the code obeys (`RFC 5041 section 5.2 (DDP-071): ...`). A MUST or
MUST NOT that tests show has one, or a reason in [tests/conformance/places](tests/conformance/places).

`cargo run -p tests --bin conformance-report -- --check` compares all of this with the sources, `-- --check --ran FILE` with the
record of the tests that ran as well; `-- --open [DOC]` lists what is open.
";

const MUTATIONS_INTRODUCTION: &str = "
## Mutations

That a test names a row does not say that it would fail. So requirements are broken in a copy of the code, one at a time
([tests/conformance/mutations](tests/conformance/mutations)), and of each row they break a test that names it has to fail.
`cargo run -p tests --bin mutate requirements [PATTERN]` tries them again.

| broken | rows | in | killed by |
|---|---|---|---|
";

/// Returns the whole report.
pub fn report(ledger: &Ledger) -> String {
    let mut text = INTRODUCTION.to_owned();
    totals(&mut text, ledger);
    for doc in Doc::ALL {
        document(&mut text, ledger, doc);
    }
    mutations(&mut text, ledger);
    text
}

/// Lists the open requirements of one document, or of all documents.
pub fn open(ledger: &Ledger, only: Option<Doc>) -> String {
    let mut text = String::new();
    let rows = ledger.index.iter().filter(|(id, _)| only.is_none_or(|doc| doc == id.doc));
    let mut count = 0;
    for (id, row) in rows.filter(|(id, _)| ledger.standing(**id).is_open()) {
        count += 1;
        put(&mut text, format_args!("{id}  {}  {}  section {}\n", row.level.name(), row.role, row.section));
        put(&mut text, format_args!("    {}\n    test: {}\n", row.requirement, row.test));
    }
    put(&mut text, format_args!("{count} open\n"));
    text
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("writing to a String does not fail");
}

fn rows_of(ledger: &Ledger, doc: Doc) -> impl Iterator<Item = (RowId, &Row, RowState<'_>)> {
    let rows = ledger.index.iter().filter(move |(id, _)| id.doc == doc);
    rows.map(|(&id, row)| (id, row, ledger.standing(id)))
}

fn totals(text: &mut String, ledger: &Ledger) {
    put(
        text,
        format_args!(
            "\n## Totals\n\n| document | rows | MUST, MUST NOT | SHOULD, SHOULD NOT | proved | by construction | documented \
             | untestable | unused | deviations | open | open MUST |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
        ),
    );
    let mut sum = [0; 11];
    for doc in Doc::ALL {
        let mut counts = [0; 11];
        for (_, row, standing) in rows_of(ledger, doc) {
            let column = match standing {
                RowState::Proved(_) => 3,
                RowState::Claimed(claim) => match claim.verdict {
                    Verdict::Construction => 4,
                    Verdict::Documented => 5,
                    Verdict::Untestable => 6,
                    Verdict::Unused => 7,
                    Verdict::Deviation => 8,
                    Verdict::Open => 9,
                },
                RowState::Open => 9,
            };
            counts[0] += 1;
            counts[1] += usize::from(row.level.binds());
            counts[2] += usize::from(row.level.advises());
            counts[column] += 1;
            counts[10] += usize::from(row.level.binds() && standing.is_open());
        }
        put(
            text,
            format_args!("| [{}](#{}) {} |{}\n", doc.prefix(), anchor(doc), doc.title(), cells(&counts)),
        );
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    put(text, format_args!("| all |{}\n", cells(&sum)));
}

fn cells(counts: &[usize]) -> String {
    counts.iter().map(|count| format!(" {count} |")).collect()
}

fn anchor(doc: Doc) -> String {
    let title = format!("{} {}", doc.prefix(), doc.title()).to_lowercase().replace(' ', "-");
    title.replace(',', "")
}

fn document(text: &mut String, ledger: &Ledger, doc: Doc) {
    let (mut proved, mut built, mut documented, mut untestable, mut unused, mut deviations, mut open) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (id, row, standing) in rows_of(ledger, doc) {
        match standing {
            RowState::Proved(tests) => {
                proved.push((id, row, vec![in_code(ledger, id), by_file(tests)]));
            }
            RowState::Open => open.push((id, row, vec![String::new()])),
            RowState::Claimed(claim) => {
                let mut cell = claim.reason.clone();
                if let Some((path, what)) = claim.place.split_once('#') {
                    put(&mut cell, format_args!(" `{what}` in {path}"));
                }
                if let Some(tests) = ledger.proofs.get(&id) {
                    put(&mut cell, format_args!(" Shown by {}", by_file(tests)));
                }
                let lines = match claim.verdict {
                    Verdict::Construction => &mut built,
                    Verdict::Documented => &mut documented,
                    Verdict::Untestable => &mut untestable,
                    Verdict::Unused => &mut unused,
                    Verdict::Deviation => &mut deviations,
                    Verdict::Open => &mut open,
                };
                lines.push((id, row, vec![cell]));
            }
        }
    }
    put(text, format_args!("\n## {} {}\n", doc.prefix(), doc.title()));
    table(text, "Proved", &["in the code", "by"], &proved);
    table(text, "By construction", &["how, where"], &built);
    table(text, "Documented", &["what, where"], &documented);
    table(text, "Untestable", &["why"], &untestable);
    table(text, "Permissions not used", &["instead"], &unused);
    table(text, "Deviations", &["why"], &deviations);
    table(text, "Open", &["why"], &open);
}

fn mutations(text: &mut String, ledger: &Ledger) {
    put(text, format_args!("{MUTATIONS_INTRODUCTION}"));
    let mut all: Vec<_> = ledger.mutations.iter().collect();
    all.sort_by_key(|mutation| &mutation.rows);
    for mutation in all {
        let rows = mutation.rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let killers = ledger.trials.get(&mutation.edit.name).map(|trial| trial.killers.join("; "));
        let killers = killers.unwrap_or_else(|| "not tried".into());
        put(text, format_args!("| {} | {rows} | {} | {killers} |\n", mutation.edit.name, mutation.edit.file));
    }
}

/// A row of the index, and further columns for its line of a table.
type Line<'a> = (RowId, &'a Row, Vec<String>);

/// Appends a table under its title. The title contains the document's name, so that links to the tables of
/// different documents differ. Without `lines`, appends nothing.
fn table(text: &mut String, title: &str, columns: &[&str], lines: &[Line<'_>]) {
    let Some((id, ..)) = lines.first() else { return };
    put(text, format_args!("\n### {title} ({})\n\n", id.doc.prefix()));
    let (heads, rules) = (columns.join(" | "), "---|".repeat(columns.len()));
    put(text, format_args!("| row | section | level | {heads} |\n|---|---|---|{rules}\n"));
    for (id, row, cells) in lines {
        let cells = cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | ");
        let level = if row.level == Level::Fact { "" } else { row.level.name() };
        put(text, format_args!("| {id} | {} | {level} | {cells} |\n", row.section));
    }
}

/// Returns the places in the code that obey a requirement, or the reason why there is no place.
fn in_code(ledger: &Ledger, id: RowId) -> String {
    match (ledger.places.get(&id), ledger.reasons.get(&id)) {
        (Some(places), _) => places.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        (None, Some(reason)) => reason.clone(),
        (None, None) => String::new(),
    }
}

/// Returns the tests grouped by file: `file`: name, name; `file`: name.
fn by_file(tests: &BTreeSet<Test>) -> String {
    let mut text = String::new();
    let mut file = None;
    for test in tests {
        if file == Some(&test.file) {
            put(&mut text, format_args!(", {}", test.name));
        } else {
            let separator = if file.is_some() { "; " } else { "" };
            put(&mut text, format_args!("{separator}{}: {}", test.file, test.name));
        }
        file = Some(&test.file);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::root;

    #[test]
    fn the_report_is_the_same_each_time_and_every_row_is_in_it_once() {
        let ledger = Ledger::load(root()).unwrap();
        let text = report(&ledger);
        assert_eq!(text, report(&Ledger::load(root()).unwrap()));
        for id in ledger.index.keys() {
            assert_eq!(text.matches(&format!("\n| {id} |")).count(), 1, "{id}");
        }
    }

    #[test]
    fn tests_are_grouped_by_file() {
        let test = |file: &str, name: &str| Test { file: file.into(), name: name.into() };
        let tests = BTreeSet::from([test("a.rs", "x"), test("b.rs", "y"), test("a.rs", "w")]);
        assert_eq!(by_file(&tests), "a.rs: w, x; b.rs: y");
    }
}

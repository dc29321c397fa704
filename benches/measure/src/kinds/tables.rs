//! The tables with the figures of all kinds of machines.

use super::kept::{KeptRow, Kind};
use crate::compare::measures::{MEASURES, Measure, find};
use crate::compare::sample::Verdict;
use crate::compare::table;

/// The rows of README.md.
const FEW: [&str; 5] = ["shim_send_64", "shim_write", "local_wake", "default_9000", "stream_64k"];

/// Number of kinds of machines on which a row of README.md has to be measured.
const KINDS: usize = 2;

/// Returns the table of README.md: the ratio of each kind, and the mark that all kinds reached.
///
/// # Errors
/// Fails if a row was measured on fewer than [`KINDS`] kinds.
pub(super) fn few(kinds: &[Kind]) -> Result<String, String> {
    rows_of(&FEW, kinds)
}

fn rows_of(ids: &[&str], kinds: &[Kind]) -> Result<String, String> {
    let has_one = |kind: &&Kind| ids.iter().any(|id| kind.rows.contains_key(*id));
    let kinds: Vec<&Kind> = kinds.iter().filter(has_one).collect();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.kind.as_str()).collect();
    let mut text = format!("| ours | compared with | {} | goal | reached |\n", names.join(" | "));
    text += &format!("|---|---|{}---:|---|\n", "---:|".repeat(names.len()));
    for id in ids {
        let measure = find(id).ok_or_else(|| format!("{id} is no row"))?;
        let rows: Vec<Option<&KeptRow>> = kinds.iter().map(|kind| kind.rows.get(*id)).collect();
        let measured = rows.iter().flatten().count();
        if measured < KINDS {
            return Err(format!(
                "{id} was measured on {measured} kind of machine, so README.md cannot have it"
            ));
        }
        let ratios: Vec<String> =
            rows.iter().map(|row| row.map(|row| table::short(row.ratio)).unwrap_or_default()).collect();
        text += &format!(
            "| {} (`{id}`) | {} | {} | {} | {} |\n",
            measure.what,
            measure.against,
            ratios.join(" | "),
            table::mark(measure, measure.goal),
            reached(measure, &rows),
        );
    }
    Ok(text)
}

/// Returns the word for the mark that a row reached on all kinds, or on how many kinds it reached its goal.
fn reached(measure: &Measure, rows: &[Option<&KeptRow>]) -> String {
    let verdicts: Vec<Verdict> = rows.iter().flatten().map(|row| Verdict::of(measure, row.ratio)).collect();
    let missed = verdicts.iter().filter(|verdict| **verdict == Verdict::Missed).count();
    match missed {
        0 if verdicts.iter().all(|verdict| *verdict == Verdict::Aim) => Verdict::Aim.word().to_owned(),
        0 => Verdict::Goal.word().to_owned(),
        missed if missed == verdicts.len() => Verdict::Missed.word().to_owned(),
        missed => format!("goal on {} of {}", verdicts.len() - missed, verdicts.len()),
    }
}

/// Returns the tables of docs/performance.md: all rows of each kind, as `scripts/compare` prints them, with
/// the day of each row.
///
/// # Errors
/// Fails if a kept row is no row of `scripts/compare` any more, or has another unit.
pub(super) fn all(kinds: &[Kind]) -> Result<String, String> {
    let mut text = String::new();
    for Kind { kind, rows } in kinds {
        for (id, row) in rows {
            let unit = find(id).map(|measure| measure.unit);
            if unit != Some(row.unit.as_str()) {
                return Err(format!("{kind}: {id} in {} is no row of scripts/compare", row.unit));
            }
        }
        text += &format!("\n### {kind}\n\n");
        text += &format!("    {:<106}  day\n", table::heading());
        for measure in &MEASURES {
            if let Some(row) = rows.get(measure.id) {
                text += &format!("    {:<106}  {}\n", table::kept_row(measure, row), row.date);
            }
        }
    }
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::kept::tests::row;
    use super::*;

    fn kind(name: &str, rows: &[(&str, f64)]) -> Kind {
        let rows: BTreeMap<String, KeptRow> =
            rows.iter().map(|(id, ours)| ((*id).to_owned(), row("2026-11-30", *ours, 10.0))).collect();
        Kind { kind: name.to_owned(), rows }
    }

    #[test]
    fn a_row_of_one_kind_alone_is_refused() {
        let kinds = [kind("A", &[("send", 9.5), ("read", 11.0)]), kind("B", &[("read", 9.5)])];
        let error = rows_of(&["read", "send"], &kinds).unwrap_err();
        assert!(error.contains("send was measured on 1 kind"), "{error}");
        assert!(rows_of(&["read"], &kinds).is_ok());
        assert!(rows_of(&["write"], &kinds).unwrap_err().contains("no row"));
    }

    #[test]
    fn a_line_has_the_ratio_of_each_kind() {
        let kinds = [
            kind("A", &[("send", 9.5), ("read", 11.0)]),
            kind("B", &[("send", 5.0)]),
            kind("C", &[("read", 12.0)]),
            kind("D", &[("markers", 1.0)]),
        ];
        let text = rows_of(&["send", "read"], &kinds).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| ours | compared with | A | B | C | goal | reached |");
        assert_eq!(lines[1].matches("---").count(), 7);
        assert!(
            lines[2].ends_with("| our Writes | 0.950 | 0.500 |  | >= 0.900 | goal on 1 of 2 |"),
            "{text}"
        );
        assert!(lines[3].ends_with("| our Writes | 1.10 |  | 1.20 | >= 0.900 | aim |"), "{text}");
    }

    #[test]
    fn what_all_kinds_reached_is_the_least_of_them() {
        let measure = find("send").unwrap();
        let of = |ratios: &[f64]| {
            let rows: Vec<KeptRow> = ratios.iter().map(|ratio| row("", *ratio, 1.0)).collect();
            let rows: Vec<Option<&KeptRow>> = rows.iter().map(Some).chain([None]).collect();
            reached(measure, &rows)
        };
        assert_eq!(of(&[1.0, 1.1]), "aim");
        assert_eq!(of(&[1.0, 0.95]), "goal");
        assert_eq!(of(&[0.5, 0.6]), "missed");
        assert_eq!(of(&[0.5, 0.95, 1.1]), "goal on 2 of 3");
    }

    #[test]
    fn each_kind_has_its_rows_in_the_order_of_the_table() {
        let text = all(&[kind("A", &[("read", 8.0), ("send", 9.0)]), kind("B", &[("read", 9.0)])]).unwrap();
        let words: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(words, ["###", "id", "send", "read", "###", "id", "read"]);
        let (heading, line) = (text.lines().nth(3).unwrap(), text.lines().nth(4).unwrap());
        assert!(line.contains(" goal ") && line.ends_with("2026-11-30"), "{text}");
        assert_eq!(line.find("2026-11-30"), heading.find("day"));
        assert!(all(&[kind("A", &[("gone", 1.0)])]).unwrap_err().contains("gone"));
        assert!(all(&[kind("A", &[("rate_64", 1.0)])]).unwrap_err().contains("rate_64 in Gb/s"));
    }
}

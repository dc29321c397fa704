//! The statement by which a test names the requirements (rows of the index) that the test proves: `Proves`,
//! then ids and ranges (`DDP-003 to DDP-005`), separated by commas or `and`, up to the first `:` or `.`.

use super::RowId;

/// The first word of a statement.
pub const WORD: &str = "Proves";

/// Returns the named requirements in the order in which the text names them. `text` starts with [`WORD`]. The
/// text after the first `:` or `.` is for human readers.
///
/// # Errors
/// If the text does not follow the grammar.
pub fn parse(text: &str) -> Result<Vec<RowId>, String> {
    let list = text.strip_prefix(WORD).ok_or_else(|| format!("does not start with `{WORD}`"))?;
    let end = list.find([':', '.']).ok_or("has no `:` or `.` after the ids")?;
    let mut rows = Vec::new();
    let parts = list[..end].split(',').map(str::trim);
    for item in parts.flat_map(|part| part.strip_prefix("and ").unwrap_or(part).split(" and ")) {
        let mut ends = item.split(" to ").map(|id| id.trim().parse::<RowId>());
        let first = ends.next().ok_or("names no row")??;
        let last = ends.next().unwrap_or(Ok(first))?;
        if ends.next().is_some() {
            return Err(format!("`{item}` has more than two ends"));
        }
        if first.doc != last.doc || first > last || (first == last && item.contains(" to ")) {
            return Err(format!("`{item}` runs backwards or across documents"));
        }
        for number in first.number..=last.number {
            let row = RowId { doc: first.doc, number };
            if rows.contains(&row) {
                return Err(format!("names {row} twice"));
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Whether the text of a comment is meant as a statement: [`WORD`] is followed by an id.
pub fn is_meant(text: &str) -> bool {
    text.match_indices(WORD).any(|(at, _)| {
        let next = text[at + WORD.len()..].trim_start();
        let id: String = next.chars().take_while(|it| it.is_ascii_alphanumeric() || *it == '-').collect();
        id.split_once('-').is_some_and(|(doc, number)| {
            doc.parse::<super::Doc>().is_ok() && number.starts_with(|it: char| it.is_ascii_digit())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<String, String> {
        Ok(parse(text)?.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn lists_ranges_and_the_end_of_the_list() {
        assert_eq!(names("Proves DDP-001: DDP-002 is told elsewhere."), Ok("DDP-001".into()));
        assert_eq!(names("Proves DDP-001, and some."), Err("`some` is no id like DDP-001".into()));
        assert_eq!(
            names("Proves DDP-009 to DDP-011, MPA2-001, and SEC-002."),
            Ok("DDP-009 DDP-010 DDP-011 MPA2-001 SEC-002".into())
        );
    }

    #[test]
    fn what_is_not_of_the_grammar_is_refused() {
        for bad in [
            "Proves DDP-001",
            "Proves: DDP-001.",
            "Proves .",
            "Proves DDP-001,.",
            "Proves DDP-002 to DDP-001.",
            "Proves DDP-001 to DDP-001.",
            "Proves DDP-001 to DDP-002 to DDP-003.",
            "Proves DDP-001 to MPA-002.",
            "Proves DDP-001, DDP-001.",
            "Proves DDP-001 to DDP-003, DDP-002.",
            "Proves DDP-001 to 003.",
            "Proves DDP-001; DDP-002.",
            "Shows DDP-001.",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn free_text_is_told_from_a_misplaced_statement() {
        assert!(is_meant("The timer. Proves MPA-001."));
        assert!(is_meant("Proves MPA-1."));
        assert!(!is_meant("Proves that MPA-001 is hard."));
        assert!(!is_meant("What MPA-001 asks."));
    }
}

//! Outcomes as text, in lines of at most 100 columns.

use crate::case::{Case, Side, Verdict};
use crate::log::Direction;
use crate::run::{Outcome, count};
use crate::wire::describe;

/// Maximum number of columns of a line.
const WIDTH: usize = 100;
/// Maximum number of bytes that `-v` shows of one message, and in one line.
const SHOWN: usize = 96;
const SHOWN_IN_A_LINE: usize = 32;

/// Returns the text of one outcome: a line, and for a deviation an explanation below it (with `verbose`, for
/// every outcome).
pub fn outcome(outcome: &Outcome, expected: bool, verbose: bool) -> String {
    let verdict = if expected {
        format!("{} (expected)", outcome.verdict.name())
    } else {
        outcome.verdict.name().into()
    };
    let mut text = line(&format!("{verdict:<19} {:<36} ", outcome.name), &outcome.rows.join(" "));
    if outcome.verdict != Verdict::Deviates && !verbose {
        return text;
    }
    text += &line("    wanted: ", outcome.about);
    if !outcome.reason.is_empty() {
        let what = if outcome.verdict == Verdict::Deviates { "found" } else { "reason" };
        text += &line(&format!("    {what}: "), &outcome.reason);
    }
    for passed in &outcome.passed {
        let arrow = if passed.direction == Direction::Sent { ">" } else { "<" };
        text += &line(&format!("    {arrow} "), &passed.text);
        if verbose {
            text += &bytes(&passed.bytes);
        }
    }
    text
}

/// Returns the first bytes of a message, in hexadecimal.
fn bytes(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes[..bytes.len().min(SHOWN)].chunks(SHOWN_IN_A_LINE) {
        text += &format!("      {}\n", describe::hex(chunk));
    }
    if bytes.len() > SHOWN {
        text += &format!("      and {} bytes more\n", bytes.len() - SHOWN);
    }
    text
}

/// Returns `front` followed by the words of `text`. Words that do not fit are in further lines, below the
/// first word. A word that does not fit into a whole line is cut.
fn line(front: &str, text: &str) -> String {
    let indent = front.chars().count();
    let room = WIDTH - indent;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for piece in letters.chunks(room) {
            let piece: String = piece.iter().collect();
            let last = lines.last_mut().expect("there is one from the start");
            let length = last.chars().count();
            if length == 0 {
                *last = piece;
            } else if length + 1 + piece.chars().count() <= room {
                *last += " ";
                *last += &piece;
            } else {
                lines.push(piece);
            }
        }
    }
    let below = format!("\n{}", " ".repeat(indent));
    format!("{front}{}", lines.join(&below)).trim_end().to_owned() + "\n"
}

/// Returns the last line of the table.
pub fn summary(outcomes: &[Outcome]) -> String {
    let cases = if outcomes.len() == 1 { "1 case".to_owned() } else { format!("{} cases", outcomes.len()) };
    format!(
        "{cases}: {} conform, {} deviate, {} not applicable, {} need a target\n",
        count(outcomes, Verdict::Conforms),
        count(outcomes, Verdict::Deviates),
        count(outcomes, Verdict::NotApplicable),
        count(outcomes, Verdict::NeedsTarget),
    )
}

/// Returns an entry of `--list`.
pub fn listed(case: &Case) -> String {
    let side = match case.side {
        Side::Any => "either",
        Side::Responder => "responder",
        Side::Initiator => "initiator",
    };
    line(&format!("{:<36} {side:<10} ", case.name), &case.rows().join(" ")) + &line("    ", case.about)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Passed;

    #[test]
    fn no_line_is_longer_than_the_width() {
        let mut entries: Vec<String> = crate::cases::all().iter().map(listed).collect();
        for case in crate::cases::all() {
            let bytes = vec![0xab; 500];
            let passed =
                Passed { direction: Direction::Sent, bytes, text: "word ".repeat(60) + &"f".repeat(300) };
            let told = Outcome {
                name: case.name,
                rows: case.rows(),
                about: case.about,
                verdict: Verdict::Deviates,
                reason: "because of that and this ".repeat(9),
                passed: vec![passed],
            };
            entries.push(outcome(&told, true, true));
        }
        for text in entries {
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_goes_on_below() {
        let text = line("front ", &"12345678 ".repeat(12));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("front 12345678 ") && lines[1].starts_with("      12345678"));
    }
}

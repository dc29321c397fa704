//! A quantity as bars: that of uwarp, and those of its peers.

use benches::plot::{Bar, Page};

use super::quantities::Quantity;
use crate::compare::measures::{Direction, find};
use crate::compare::session::Tally;
use crate::compare::table::short;

/// Length of the longest bar in the terminal, in characters.
const WIDTH: usize = 28;

/// Width of the names in the terminal, in characters.
const NAMES: usize = 24;

/// The bars of one quantity.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Picture {
    /// The quantity, its unit, and which bar is better.
    pub(crate) title: String,
    /// The bar of uwarp, and then the bars of its peers.
    pub(crate) bars: Vec<Bar>,
    /// The peers whose rows could not be measured, with the reasons.
    pub(crate) failures: Vec<String>,
}

impl Picture {
    /// Takes the figures of a quantity from the measured rows.
    pub(crate) fn new(quantity: &Quantity, tally: &Tally) -> Self {
        let Quantity { what, ours, peers } = quantity;
        let (mut title, mut bars, mut failures) = ((*what).to_owned(), Vec::new(), Vec::new());
        for peer in *peers {
            let Some(measure) = find(peer.row) else { continue };
            let (word, is_less) = match measure.better {
                Direction::HigherIsBetter => ("more", false),
                Direction::LowerIsBetter => ("less", true),
            };
            title = format!("{what}, {} ({word} is better)", measure.unit);
            let row = match tally.row(measure) {
                Ok(row) => row,
                Err(reason) => {
                    failures.push(format!("{} could not be measured: {reason}", peer.name));
                    continue;
                }
            };
            let median = row.sample().median;
            let [own, theirs] = [median.ours, median.theirs].map(|figure| peer.factor * figure);
            if bars.is_empty() {
                bars.push(Bar { name: (*ours).to_owned(), value: own, note: short(own) });
            }
            let ratio = if is_less { theirs / own } else { own / theirs };
            let note = format!("{}   uwarp: {} times as good", short(theirs), short(ratio));
            bars.push(Bar { name: peer.name.to_owned(), value: theirs, note });
        }
        Self { title, bars, failures }
    }

    /// Returns the lines of the terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n  {}\n", self.title);
        let longest = self.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        for Bar { name, value, note } in &self.bars {
            // A figure that is not 0 has at least one character.
            let length = ((value / longest * WIDTH as f64).round() as usize).clamp(1, WIDTH);
            text += &format!("    {name:<NAMES$} {} {note}\n", "█".repeat(length));
        }
        self.failures.iter().for_each(|failure| text += &format!("    {failure}\n"));
        text
    }

    /// Adds the bars to a page.
    pub(crate) fn draw(&self, page: &mut Page) {
        page.bars(&self.title, &self.bars);
        self.failures.iter().for_each(|failure| page.paragraph(failure));
    }
}

#[cfg(test)]
mod tests {
    use testing::lab::LabError;

    use super::super::quantities::Peer;
    use super::*;
    use crate::compare::sample::Pair;

    const QUANTITY: Quantity = Quantity {
        what: "64 bytes there and back",
        ours: "uwarp",
        peers: &[
            Peer { row: "shim_send_64", name: "TCP", factor: 1.0 },
            Peer { row: "ucx_shm_64", name: "UCX", factor: 2.0 },
        ],
    };

    #[test]
    fn each_figure_stands_beside_ours_in_one_scale() {
        let mut tally = Tally::silent();
        tally.add("shim_send_64", "both", Ok(Pair::new(3.0, 12.0)));
        tally.add("ucx_shm_64", "both", Ok(Pair::new(1.5, 0.75)));
        let picture = Picture::new(&QUANTITY, &tally);
        assert_eq!(picture.title, "64 bytes there and back, us (less is better)");
        assert_eq!(picture.bars.iter().map(|bar| bar.value).collect::<Vec<_>>(), [3.0, 12.0, 1.5]);
        let text = picture.text();
        let lengths: Vec<usize> = text.lines().skip(2).map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [WIDTH / 4, WIDTH, WIDTH / 8 + 1], "{text}");
        let ends = ["3.00", "12.0   uwarp: 4.00 times as good", "1.50   uwarp: 0.500 times as good"];
        assert!(text.lines().skip(2).zip(ends).all(|(line, end)| line.ends_with(end)), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn a_rate_is_better_if_it_is_larger() {
        let quantity =
            Quantity { peers: &[Peer { row: "shim_write", name: "TCP", factor: 1.0 }], ..QUANTITY };
        let mut tally = Tally::silent();
        tally.add("shim_write", "both", Ok(Pair::new(30.0, 20.0)));
        let picture = Picture::new(&quantity, &tally);
        assert_eq!(picture.title, "64 bytes there and back, Gb/s (more is better)");
        assert_eq!(picture.bars[1].note, "20.0   uwarp: 1.50 times as good");
    }

    #[test]
    fn a_peer_that_is_not_there_is_named_and_the_others_are_shown() {
        let mut tally = Tally::silent();
        tally.add("ucx_shm_64", "both", Ok(Pair::new(1.5, 0.75)));
        tally.fail("shim_send_64", &LabError::new("no such program"));
        let picture = Picture::new(&QUANTITY, &tally);
        assert_eq!(picture.bars.iter().map(|bar| bar.value).collect::<Vec<_>>(), [3.0, 1.5]);
        assert_eq!(picture.failures, ["TCP could not be measured: no such program"]);
        assert!(picture.text().contains("no such program"));
    }

    #[test]
    fn a_tiny_figure_still_has_a_bar() {
        let mut tally = Tally::silent();
        tally.add("shim_send_64", "both", Ok(Pair::new(0.001, 1000.0)));
        assert!(Picture::new(&QUANTITY, &tally).text().contains("uwarp                    █ 0.001"));
    }
}

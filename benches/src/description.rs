//! Describes a test in one line.

use crate::params::Params;
use crate::rate::Rate;
use crate::runs::Row;
use crate::table::Unit;

/// Describes the test in one line.
pub(crate) fn description(params: &Params) -> String {
    let plural = if params.qps == 1 { "" } else { "s" };
    with_queue_pairs(params, &format!("{} queue pair{plural}", params.qps))
}

/// Describes several runs of a test in one line, with the message sizes and numbers of queue pairs of `rows`.
pub(crate) fn of_rows(params: &Params, rows: &[Row]) -> String {
    let range = |number: fn(&Row) -> u32, one: &str, many: &str| {
        let numbers = || rows.iter().map(number);
        match (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0)) {
            (1, 1) => format!("1 {one}"),
            (low, high) if low == high => format!("{low} {many}"),
            (low, high) => format!("{low} to {high} {many}"),
        }
    };
    let queue_pairs = range(|row| row.queue_pairs, "queue pair", "queue pairs");
    let sizes = range(|row| row.size, "byte", "bytes");
    let iters = match params.iters {
        0 => String::new(),
        iters => format!(", {iters} messages on each"),
    };
    format!("{}, {sizes}{iters}", with_queue_pairs(params, &queue_pairs))
}

fn with_queue_pairs(params: &Params, queue_pairs: &str) -> String {
    let Params { test, tx_depth, cq_mod, bidirectional, duration_s, outs, rate, burst, .. } = params;
    let ways = if *bidirectional { ", both ways" } else { "" };
    let time = if *duration_s > 0 { format!(", {duration_s} s") } else { String::new() };
    let reads = if test.verb().is_answered() { format!(", outstanding reads {outs}") } else { String::new() };
    let rate = match rate {
        Some(Rate::Bytes(bytes)) => format!(", {:.3} Gb/s", Unit::GigabitsPerSecond.of(*bytes as f64)),
        Some(Rate::Messages(messages)) => format!(", {messages} messages/s"),
        None => String::new(),
    };
    let bursts = if *burst > 1 { format!(" in bursts of {burst}") } else { String::new() };
    let checks = if params.validate { ", every byte checked" } else { "" };
    format!(
        "{}{ways}: {queue_pairs}, depth {tx_depth}, CQ moderation {cq_mod}{reads}{time}{rate}{bursts}{checks}",
        test.name(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Test, example};

    #[test]
    fn several_runs_are_described_by_their_ranges() {
        let row = |size, queue_pairs| Row { size, queue_pairs, ..Row::default() };
        let params = example(Test::AtomicBw);
        let text = of_rows(&params, &[row(8, 1), row(8, 16)]);
        assert!(text.starts_with("atomic-bw: 1 to 16 queue pairs, depth 128"), "{text}");
        assert!(text.ends_with("outstanding reads 16, 8 bytes, 5000 messages on each"), "{text}");
        let text = of_rows(&example(Test::WriteBw), &[row(2, 1), row(4096, 1)]);
        assert!(text.contains(": 1 queue pair, ") && text.contains(", 2 to 4096 bytes"), "{text}");
    }
}

//! `--stats`: the counters that are not zero, in groups, with their rates.

use iwarp::engine::EngineCounters;

/// The groups, and the sets of counters in them.
const GROUPS: [(&str, &str); 4] = [
    ("port", "PortCounters"),
    ("TCP", "StackCounters"),
    ("out of order", "OutOfOrder"),
    ("RDMA", "EngineCounters"),
];

/// The lines of the table. `seconds` is the measured time. The counters also include the short exchange
/// before and after the measured time.
pub(super) fn lines(counters: &EngineCounters, seconds: f64) -> Vec<String> {
    let mut counted = Vec::new();
    counters.for_each(&mut |metric| {
        if metric.value != 0 {
            counted.push(metric);
        }
    });
    let mut lines = vec![format!(" {:<32} {:>20} {:>16}", "counter", "value", "a second")];
    for (group, set) in GROUPS {
        let mut of_group = counted.iter().filter(|metric| metric.set == set).peekable();
        lines.extend(of_group.peek().map(|_| format!(" {group}")));
        lines.extend(of_group.map(|metric| line(metric.field, metric.value, seconds)));
    }
    lines
}

fn line(name: &str, value: u64, seconds: f64) -> String {
    // A maximum has no rate.
    let rate = if seconds > 0.0 && !name.starts_with("max_") {
        format!("{:.0}", value as f64 / seconds)
    } else {
        "-".into()
    };
    format!("   {name:<30} {value:>20} {rate:>16}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_in_a_group() {
        EngineCounters::default()
            .for_each(&mut |metric| assert!(GROUPS.iter().any(|(_, set)| *set == metric.set), "{metric:?}"));
    }

    #[test]
    fn only_what_was_counted_is_told_with_its_rate() {
        let mut counters = EngineCounters { tx_fpdus: 3000, ..EngineCounters::default() };
        counters.stack.out_of_order.max_held_bytes = 9;
        let lines = lines(&counters, 2.0);
        let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                vec!["counter", "value", "a", "second"],
                vec!["out", "of", "order"],
                vec!["max_held_bytes", "9", "-"],
                vec!["RDMA"],
                vec!["tx_fpdus", "3000", "1500"],
            ]
        );
        assert!(lines.iter().all(|line| line.len() <= lines[0].len()));
    }
}

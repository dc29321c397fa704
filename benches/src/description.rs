//! A test described in one line.

use crate::params::Params;
use crate::rate::Rate;
use crate::table::Unit;

/// The test in one line.
pub(crate) fn description(params: &Params) -> String {
    let Params { test, qps, tx_depth, cq_mod, bidirectional, duration_s, outs, rate, burst, .. } = params;
    let ways = if *bidirectional { ", both ways" } else { "" };
    let time = if *duration_s > 0 { format!(", {duration_s} s") } else { String::new() };
    let reads =
        if test.name().starts_with("read") { format!(", outstanding reads {outs}") } else { String::new() };
    let rate = match rate {
        Some(Rate::Bytes(bytes)) => format!(", {:.3} Gb/s", Unit::GigabitsPerSecond.of(*bytes as f64)),
        Some(Rate::Messages(messages)) => format!(", {messages} messages/s"),
        None => String::new(),
    };
    let bursts = if *burst > 1 { format!(" in bursts of {burst}") } else { String::new() };
    let checks = if params.validate { ", every byte checked" } else { "" };
    format!(
        "{}{ways}: {qps} queue pair{}, depth {tx_depth}, CQ moderation {cq_mod}{reads}{time}{rate}{bursts}{checks}",
        test.name(),
        if *qps == 1 { "" } else { "s" },
    )
}

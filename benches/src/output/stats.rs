//! `--stats`: the counters that are not zero, in groups, with their rates.

use dp::PortCounters;
use iwarp::engine::EngineCounters;
use tcp_lite::{OutOfOrder, StackCounters};

/// Names with values.
type Counts = Vec<(&'static str, u64)>;

/// All counters of a struct: a new one does not compile until it is named here.
macro_rules! counts {
    ($of:expr, $type:ident { $($name:ident),* $(,)? } $(, $rest:ident)*) => {{
        let $type { $($name,)* $($rest: _,)* } = $of;
        vec![$((stringify!($name), $name)),*]
    }};
}

/// The lines of a table. `seconds`: the time that was measured; the exchange before and after it counts as
/// well, and is short.
pub(super) fn lines(counters: &EngineCounters, seconds: f64) -> Vec<String> {
    let groups = [
        ("port", port(counters)),
        ("TCP", stack(counters)),
        ("out of order", out_of_order(counters)),
        ("RDMA", rdma(counters)),
    ];
    let told = |(group, counts): (&str, Counts)| {
        let told: Counts = counts.into_iter().filter(|(_, value)| *value != 0).collect();
        let heading = (!told.is_empty()).then(|| format!(" {group}"));
        heading.into_iter().chain(told.into_iter().map(|(name, value)| line(name, value, seconds)))
    };
    let head = format!(" {:<32} {:>20} {:>16}", "counter", "value", "a second");
    [head].into_iter().chain(groups.into_iter().flat_map(told)).collect()
}

fn line(name: &str, value: u64, seconds: f64) -> String {
    // The greatest value so far has no rate.
    let rate = if seconds > 0.0 && !name.ends_with("_max") {
        format!("{:.0}", value as f64 / seconds)
    } else {
        "-".into()
    };
    format!("   {name:<30} {value:>20} {rate:>16}")
}

fn port(counters: &EngineCounters) -> Counts {
    counts!(
        counters.port,
        PortCounters {
            rx_frames,
            rx_bytes,
            tx_frames,
            tx_bytes,
            rx_dropped,
            rx_missed,
            rx_errors,
            rx_no_mbuf,
            tx_ring_full,
            tx_link_down,
            tx_dropped,
            link_changes,
        }
    )
}

fn out_of_order(counters: &EngineCounters) -> Counts {
    counts!(
        counters.stack.out_of_order,
        OutOfOrder { held_bytes, held_bytes_max, pinned_bytes, pinned_bytes_max }
    )
}

fn rdma(counters: &EngineCounters) -> Counts {
    counts!(
        *counters,
        EngineCounters {
            rx_fpdus,
            rx_fpdus_early,
            rx_not_ready,
            tx_fpdus,
            rx_placed_bytes,
            tx_fetched_bytes,
            tx_zero_copy_bytes,
            tx_terminates,
            rx_terminates,
            connections,
            connections_without_crc,
            connections_failed,
            connections_refused,
            request_growths,
            busy_polls,
            busy_cycles,
            polls,
        },
        port,
        stack
    )
}

fn stack(counters: &EngineCounters) -> Counts {
    counts!(
        counters.stack,
        StackCounters {
            rx_frames,
            handed_over,
            handed_over_dropped,
            rx_handed_over,
            rx_segments,
            rx_slow,
            rx_malformed,
            rx_bad_checksum,
            rx_not_ours,
            rx_no_connection,
            rx_syn_dropped,
            time_wait_recycled,
            tx_syn_cookies,
            rx_syn_cookies,
            rx_fragments_dropped,
            rx_reassembled,
            rx_out_of_order_dropped,
            rx_out_of_order_evicted,
            out_of_order_over_connection,
            out_of_order_over_stack,
            out_of_order_no_buffers,
            rx_duplicate_bytes,
            challenge_acks,
            challenge_acks_withheld,
            tx_segments,
            tx_trains,
            tx_retransmits,
            rx_congestion_experienced,
            ecn_reductions,
            rto_expired,
            fast_retransmits,
            lost_retransmits,
            reordering_seen,
            tail_loss_probes,
            spurious_timeouts,
            spurious_recoveries,
            dsack_received,
            icmp_soft_errors,
            icmp_ignored,
            address_conflicts,
            tx_assertions,
            neighbor_moves_refused,
            link_downs,
            path_mtu_black_holes,
            path_mtu_probes,
            path_mtu_probes_answered,
            path_mtu_probes_lost,
            path_mtu_searches_put_off,
            rx_old_timestamps,
            window_probes,
            tx_cut_by_emss,
            tx_cut_by_persist,
            tx_acks,
            tx_resets,
            tx_no_mbuf,
            rx_no_mbuf,
        },
        out_of_order
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_counted_is_told_with_its_rate() {
        let mut counters = EngineCounters { tx_fpdus: 3000, ..EngineCounters::default() };
        counters.stack.out_of_order.held_bytes_max = 9;
        let lines = lines(&counters, 2.0);
        let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                vec!["counter", "value", "a", "second"],
                vec!["out", "of", "order"],
                vec!["held_bytes_max", "9", "-"],
                vec!["RDMA"],
                vec!["tx_fpdus", "3000", "1500"],
            ]
        );
        assert!(lines.iter().all(|line| line.len() <= lines[0].len()));
    }
}

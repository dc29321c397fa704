//! What the overview shows.

/// Quantities between two processes on one kind of wire.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) heading: &'static str,
    /// Whether the group needs network namespaces, which only root can make.
    pub(crate) needs_hosts: bool,
    pub(crate) quantities: &'static [Quantity],
}

/// A quantity of uwarp, which is compared with the same quantity of some peers.
#[derive(Debug)]
pub(crate) struct Quantity {
    /// The quantity. The unit is that of the rows.
    pub(crate) what: &'static str,
    /// The program that measured uwarp's figure.
    pub(crate) ours: &'static str,
    pub(crate) peers: &'static [Peer],
}

/// A peer, and the row of `compare` that has its figure.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) row: &'static str,
    pub(crate) name: &'static str,
    /// The figures of the row are multiplied by this. It is 2 for rows that have half of a round trip.
    pub(crate) factor: f64,
}

const fn peer(row: &'static str, name: &'static str) -> Peer {
    Peer { row, name, factor: 1.0 }
}

/// All groups, in the order in which they are measured and shown.
pub(crate) const GROUPS: &[Group] = &[
    Group {
        heading: "Two processes on this host, through shared memory (unmodified perftest, no privilege)",
        needs_hosts: false,
        quantities: &[
            Quantity {
                what: "64 bytes there and back",
                ours: "uwarp, ib_send_lat",
                peers: &[
                    peer("shim_send_64", "kernel TCP, both poll"),
                    Peer { factor: 2.0, ..peer("ucx_shm_64", "UCX, shared memory") },
                ],
            },
            Quantity {
                what: "messages of 64 bytes",
                ours: "uwarp, ib_send_bw",
                peers: &[
                    peer("local_rate_64", "kernel TCP, a call each"),
                    peer("ucx_shm_rate_64", "UCX, shared memory"),
                ],
            },
            Quantity {
                what: "Writes of 64 KiB",
                ours: "uwarp, ib_write_bw",
                peers: &[
                    peer("shim_write", "kernel TCP, iperf3"),
                    peer("local_write_64k", "two bare copies"),
                ],
            },
            Quantity {
                what: "64 bytes there and back, both processes sleep while they wait",
                ours: "uwarp",
                peers: &[peer("local_wake", "Unix socket")],
            },
        ],
    },
    Group {
        heading: "Two hosts, on interfaces that the kernel keeps (packet sockets, CRC on)",
        needs_hosts: true,
        quantities: &[
            Quantity {
                what: "Writes of 64 KiB, MTU 1500",
                ours: "uwarp, iwperf",
                peers: &[
                    peer("packet_1500", "kernel TCP, iperf3"),
                    peer("packet_ucx_1500", "UCX over kernel TCP"),
                ],
            },
            Quantity {
                what: "Writes of 64 KiB, MTU 9000",
                ours: "uwarp, iwperf",
                peers: &[
                    peer("packet_9000", "kernel TCP, iperf3"),
                    peer("packet_ucx_9000", "UCX over kernel TCP"),
                ],
            },
            Quantity {
                what: "64 bytes there and back",
                ours: "uwarp, iwperf",
                peers: &[
                    peer("packet_64", "kernel TCP, both poll"),
                    Peer { factor: 2.0, ..peer("packet_ucx_64", "UCX over kernel TCP") },
                ],
            },
        ],
    },
    Group {
        heading: "Two processes, on DPDK's vhost-user (CRC on)",
        needs_hosts: true,
        quantities: &[
            Quantity {
                what: "Writes of 1 MiB, MTU 1500",
                ours: "uwarp, iwperf",
                peers: &[peer("default_1500", "kernel TCP, iperf3")],
            },
            Quantity {
                what: "Writes of 1 MiB, MTU 9000",
                ours: "uwarp, iwperf",
                peers: &[peer("default_9000", "kernel TCP, iperf3")],
            },
            Quantity {
                what: "64 bytes there and back",
                ours: "uwarp, iwperf",
                peers: &[peer("pingpong_64", "kernel TCP, both poll")],
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::compare::measures::find;

    #[test]
    fn each_row_is_in_the_table_and_shown_once() {
        let mut seen = BTreeSet::new();
        for quantity in GROUPS.iter().flat_map(|group| group.quantities) {
            let measures = quantity.peers.iter().map(|peer| (peer.row, find(peer.row)));
            for (row, measure) in measures {
                let measure = measure.unwrap_or_else(|| panic!("{row} is not in the table"));
                let first = find(quantity.peers[0].row).unwrap();
                assert_eq!((measure.unit, measure.better), (first.unit, first.better), "{row}");
                assert!(seen.insert(row), "{row} is shown twice");
            }
        }
        assert!(seen.len() > 10);
    }

    #[test]
    fn what_people_ask_most_needs_no_privilege_and_comes_first() {
        assert!(!GROUPS[0].needs_hosts);
        assert!(GROUPS[1..].iter().all(|group| group.needs_hosts));
    }
}
